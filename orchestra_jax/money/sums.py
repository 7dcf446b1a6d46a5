"""Sums of what budgets spent, by model or tool, as checkpoints and bills keep them."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

# By name: dollars as the text of a fraction, tokens, calls; as `Budget.get_state` gives it.
State = dict[str, list[Any]]


def added(states: Iterable[Mapping[str, Sequence[Any]]]) -> State:
    """Add up what several budgets spent, by name."""
    found: dict[str, tuple[Fraction, int, int]] = {}
    for state in states:
        for name, (usd, tokens, calls) in state.items():
            before = found.get(name, (Fraction(0), 0, 0))
            found[name] = before[0] + Fraction(usd), before[1] + int(tokens), before[2] + int(calls)
    return {name: [str(usd), tokens, calls] for name, (usd, tokens, calls) in found.items()}
