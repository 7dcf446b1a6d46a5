"""The menu of one instance (§3.3): a random subset of tools in random order."""

from collections.abc import Iterable, Sequence

import numpy as np

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
