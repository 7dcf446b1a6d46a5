"""Golden calls that the policy made, found by names and arguments.

An argument that is null or has its default counts as left out. Every other argument must be equal on both sides: one
that the policy left out differs, and so does one that it made up.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orchestra_jax.envs.database.frozen import canonical
from orchestra_jax.types import ToolCall, ToolSpec


def arguments_in_full(call: ToolCall, spec: ToolSpec | None = None) -> dict[str, Any]:
    """Return the arguments without nulls, and with the defaults of the tool's schema if it is known."""
    given = {name: value for name, value in call.arguments.items() if value is not None}
    known = {} if spec is None else spec.parameters.get("properties", {})
    return {name: each["default"] for name, each in known.items() if "default" in each} | given


def same_call(
    golden: ToolCall, made: ToolCall, spec: ToolSpec | None = None, only: Sequence[str] | None = None
) -> bool:
    """Return whether a call is the golden one.

    Args:
        golden: the call that was to be made.
        made: the call that was made.
        spec: of the tool, for its defaults.
        only: names of the arguments that matter; None: all of them.
    """
    if golden.name != made.name:
        return False
    sides = [arguments_in_full(call, spec) for call in (golden, made)]
    if only is not None:
        sides = [{name: value for name, value in side.items() if name in only} for side in sides]
    return canonical(sides[0]) == canonical(sides[1])


def missing_calls(
    golden: Sequence[ToolCall],
    made: Sequence[ToolCall],
    specs: Mapping[str, ToolSpec] | None = None,
    only: Sequence[Sequence[str] | None] | None = None,
) -> list[ToolCall]:
    """Return the golden calls that nobody made. Each needs a call of its own: one payment does not stand for two.

    Args:
        golden: in any order.
        made: the calls that did not fail, in any order.
        specs: of the tools, by name.
        only: for each golden call, see `same_call`.
    """
    matters = only if only is not None else [None] * len(golden)
    fits = [
        [at for at, call in enumerate(made) if same_call(gold, call, (specs or {}).get(gold.name), which)]
        for gold, which in zip(golden, matters, strict=True)
    ]
    taken: dict[int, int] = {}  # place of a made call -> of the golden call that it stands for

    def place(gold: int, tried: set[int]) -> bool:
        for at in fits[gold]:
            if at not in tried:
                tried.add(at)
                if at not in taken or place(taken[at], tried):
                    taken[at] = gold
                    return True
        return False

    return [gold for at, gold in enumerate(golden) if not place(at, set())]
