"""Whom a policy's calls go to: the strongest model of the menu, and models of its own kind (Fig. 3 and appendix A).

A call of a model is an executed call of an expert: of a catalogue's "role/model", or of a tool whose name begins with
"expert", as those of the quickstart and simulated ones do. The strongest model of a menu is the one whose output tokens
cost most by the instance's price list; where no model has such a price, the one whose call costs most; several where
they cost the same. A model is of the policy's own kind where both names have the same family, such as gpt-5 and
gpt-5-mini.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestra_jax.evaluation.intervals import Interval, bootstrap
from orchestra_jax.types import Status, Task, Trajectory

OUTPUT_USD, CALL_USD = "output_usd", "call_usd"  # per million output tokens; a call
_VERSION = re.compile(r"\d+(\.\d+)*[a-z]?(?<!b)$")  # such as 3.3 or 4o, not the size 70b

# What the models of a menu cost, by what they are ("generalist/gpt-5"): {OUTPUT_USD or CALL_USD: dollars}.
Offered = Mapping[str, Mapping[str, float]]


def family(model: str) -> str:
    """A model's name without its size and variant: "qwen3" of "Qwen/Qwen3-8B", "gpt-5" of "gpt-5-mini"."""
    first, *rest = model.lower().rsplit("/", 1)[-1].split("-")
    versioned = rest and not re.search(r"\d", first) and _VERSION.match(rest[0])
    return f"{first}-{rest[0]}" if versioned else first


def is_model(tool: str) -> bool:
    """Whether a tool, told by what it is, is a model."""
    return "/" in tool or tool.startswith("expert")


def tool_of(name: str, arguments: Mapping[str, Any], keys: Mapping[str, str]) -> str:
    """What a call is of: behind the alias of a menu is a tool of the catalogue, or a model that an argument names.

    Args:
        keys: what every name of the menu stands for; empty where each stands for itself.
    """
    return keys.get(str(arguments.get("model")), keys.get(name, name))


def called_tools(trajectory: Trajectory) -> list[str]:
    """What was called, in order, see `tool_of`."""
    keys = trajectory.task.extra.get("instance", {}).get("tools", {})
    return [tool_of(call.name, call.arguments, keys) for call in trajectory.calls]


def offered_models(task: Task) -> dict[str, dict[str, float]]:
    """The models on a task's menu with their prices; a price that nobody states is left out."""
    instance = task.extra.get("instance", {})
    specs, keys = {spec.name: spec for spec in task.tools}, instance.get("tools", {})
    found: dict[str, dict[str, float]] = {}
    for name, key in (keys or {name: name for name in specs}).items():
        if not is_model(key):
            continue
        call = specs[name].price_usd if name in specs else None
        prices = {OUTPUT_USD: instance.get(OUTPUT_USD, {}).get(key), CALL_USD: call}
        found[key] = {unit: usd for unit, usd in prices.items() if usd is not None}
    return found


def strongest(offered: Offered) -> set[str]:
    """The dearest of them, see the module; nothing where no price is known."""
    for unit in (OUTPUT_USD, CALL_USD):
        if prices := {key: usd[unit] for key, usd in offered.items() if unit in usd}:
            return {key for key, usd in prices.items() if usd == max(prices.values())}
    return set()


@dataclass(frozen=True)
class Delegated:
    """Counts of calls.

    Attributes:
        models: calls of models.
        ranked: those on a menu whose strongest model is known; strongest: those that went to it.
        own: those to models of the policy's own kind; None where that is not known.
    """

    models: int
    ranked: int
    strongest: int
    own: int | None


def delegated(called: Sequence[str], offered: Offered, own: str | None) -> Delegated:
    """Counts of one trajectory.

    Args:
        called: what was called, by what it is.
        own: the name of the policy's own model, None where it is not known.
    """
    models, top = [key for key in called if key in offered], strongest(offered)
    kin = None if own is None else sum(family(key.rpartition("/")[2]) == family(own) for key in models)
    return Delegated(len(models), len(models) if top else 0, sum(key in top for key in models), kin)


@dataclass(frozen=True)
class Shares:
    """Of all calls of models: the share that went to the strongest, and to the policy's own kind; None: not known.

    Attributes:
        strongest_interval, own_interval: at 95 %, by bootstrap over the questions.
    """

    strongest: float | None
    strongest_interval: Interval | None
    own: float | None
    own_interval: Interval | None


def shares(questions: Sequence[Sequence[Delegated]]) -> Shares:
    """The shares of all samples of some questions."""

    def of(pairs: Sequence[Sequence[tuple[int, int]]]) -> tuple[float | None, Interval | None]:
        sums = [tuple(map(sum, zip(*some, strict=True))) for some in pairs if some]
        asked = [(part, whole) for part, whole in sums if whole]
        if not asked:
            return None, None
        parts, wholes = zip(*asked, strict=True)
        each = [part / whole for part, whole in asked]
        return sum(parts) / sum(wholes), bootstrap(each, weights=wholes)

    strong = of([[(one.strongest, one.ranked) for one in some] for some in questions])
    known = all(one.own is not None for some in questions for one in some)
    own = of([[(one.own or 0, one.models) for one in some] for some in questions]) if known else (None, None)
    return Shares(*strong, *own)


def share_figures(trajectories: Sequence[Trajectory], own: str | None) -> dict[str, float | None]:
    """Figures of what did not fail: calls of models a question, and the shares; nothing where no menu has a model."""
    counted = [t for t in trajectories if t.status is not Status.FAILED]
    offers = [offered_models(t.task) for t in counted]
    if not any(offers):
        return {}
    found = [delegated(called_tools(t), offer, own) for t, offer in zip(counted, offers, strict=True)]
    both = shares([[one] for one in found])
    calls = sum(one.models for one in found) / len(found)
    return {"model_calls": calls, "strongest_share": both.strongest, "own_share": both.own}
