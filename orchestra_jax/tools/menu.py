"""The menu of one instance (§3.3): a random subset of tools under a random schedule of prices and latencies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from orchestra_jax.tools import schema
from orchestra_jax.types import ToolSpec


def sample_menu(
    catalogue: Sequence[ToolSpec],
    rng: np.random.Generator,
    *,
    must_include: Iterable[str] = (),
    size_range: tuple[int, int] | None = None,
) -> tuple[ToolSpec, ...]:
    """A random subset of the catalogue in random order, so that no position tells which tool it is.

    Args:
        catalogue: all tools, names unique.
        rng: the only source of randomness.
        must_include: names that are always on the menu.
        size_range: fewest and most tools, both inclusive, drawn uniformly; None offers everything. The required
            tools raise the fewest where they are more.

    Raises:
        ValueError: an unknown or repeated name, or a size range that cannot be met.
    """
    names = [spec.name for spec in catalogue]
    if len(set(names)) != len(names):
        raise ValueError(f"Two tools of the catalogue share a name: {sorted(names)}.")
    required = set(must_include)
    unknown = sorted(required - set(names))
    if unknown:
        raise ValueError(f"Tool {unknown[0]!r} must be on the menu but the catalogue has only {sorted(names)}.")
    fewest, most = size_range if size_range is not None else (len(names), len(names))
    fewest = max(fewest, len(required))
    if not 0 <= fewest <= most <= len(names):
        raise ValueError(
            f"Menu size {size_range} cannot be met with {len(names)} tools of which {len(required)} are required."
        )
    size = int(rng.integers(fewest, most + 1))
    optional = [index for index, name in enumerate(names) if name not in required]
    chosen = rng.choice(len(optional), size=size - len(required), replace=False)
    indices = [index for index, name in enumerate(names) if name in required] + [optional[i] for i in chosen]
    return tuple(catalogue[indices[i]] for i in rng.permutation(len(indices)))


def apply_schedule(
    specs: Iterable[ToolSpec],
    prices: Mapping[str, float | None],
    latencies: Mapping[str, float | None],
) -> tuple[ToolSpec, ...]:
    """The same tools with the schedule's dollars per call and seconds per call.

    Args:
        specs: the tools; a schedule may name more tools than these.
        prices: dollars per call by tool; None where the price is per token.
        latencies: seconds per call by tool; None when unknown.

    Raises:
        ValueError: a tool is missing from the schedule, or a figure is negative or not finite.
    """
    menu = []
    for spec in specs:
        for label, table in (("price", prices), ("latency", latencies)):
            if spec.name not in table:
                raise ValueError(f"The schedule has no {label} for tool {spec.name!r}; add it (None is allowed).")
        priced = replace(spec, price_usd=prices[spec.name], latency_s=latencies[spec.name])
        schema.check_figures(priced)
        menu.append(priced)
    return tuple(menu)


def render_menu(specs: Iterable[ToolSpec]) -> str:
    """One line per tool, "- name: description Price: ... Latency: ...", for prompts without a tool template."""
    lines = []
    for spec in specs:
        note = schema.price_note(spec)
        lines.append(f"- {spec.name}: {spec.description}{' ' + note if note else ''}")
    return "\n".join(lines)
