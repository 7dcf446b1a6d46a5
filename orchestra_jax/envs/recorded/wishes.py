"""Wishes of users of recorded questions: kinds and weights from the settings, in the words of every environment.

`env.options.wishes` maps a kind to its weights of outcome (1 if it is left out), cost and latency (Eq. 2). The kind
`none` says nothing: it is the wish of a user who does not speak of money. Without the setting preferences are drawn as
everywhere (`data.preferences`).

A policy without earlier knowledge learns from examples alone that "affordable" and "cheap" mean the same, and
evaluation says wishes in sentences that training does not have. So training has many more of them here than elsewhere.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.data.preferences import WORDINGS, make_preference
from orchestra_jax.types import Preference, ToolSpec

NONE = "none"
FAST = "fast"
KINDS = (NONE, "accuracy", "low_cost", FAST)
_WEIGHTS = ("outcome", "compute", "latency")
_MORE: Mapping[str, list[str]] = json.loads(Path(__file__).with_name("more_wordings.json").read_text())


def wishes_problem(wishes: Any) -> str | None:
    """Return one sentence on what is wrong with the setting; None: nothing."""
    if wishes is None:
        return None
    if not isinstance(wishes, Mapping) or not wishes or not wishes.keys() <= set(KINDS):
        return f"env.options.wishes maps some of {', '.join(KINDS)} to weights, and is not {wishes}."
    for kind, weights in wishes.items():
        if not isinstance(weights, Mapping) or not weights.keys() <= set(_WEIGHTS):
            return f"env.options.wishes.{kind} has the weights {', '.join(_WEIGHTS)}, and is not {weights}."
        if wrong := [w for w in weights.values() if not isinstance(w, int | float) or not 0 <= w <= 1]:
            return f"env.options.wishes.{kind} has the weight {wrong[0]}, which is not within [0, 1]."
    return None


def mind_seconds(wishes: Mapping[str, Any] | None) -> bool:
    """Return whether users may mind seconds: where none does, seconds on a menu would only tell models apart."""
    return wishes is None or FAST in wishes or any(weights.get("latency") for weights in wishes.values())


def make_wish(kind: str, wishes: Mapping[str, Any] | None, tools: Sequence[ToolSpec], words: str) -> Preference:
    """Return the preference of a kind for a menu, with the settings' weights for the kind, else the usual ones."""
    weights = (wishes or {}).get(kind)
    if weights is None:
        return make_preference("accuracy" if kind == NONE else kind, tools, words)
    return Preference(kind, words, **weights)


def draw_wish(wishes: Mapping[str, Any], tools: Sequence[ToolSpec], rng: np.random.Generator, split: str) -> Preference:
    """Draw one of the kinds, all equally likely, in a random wording of the split ("train" or "eval")."""
    return wish_of(tuple(wishes)[int(rng.integers(len(wishes)))], wishes, tools, rng, split)


def wish_of(
    kind: str, wishes: Mapping[str, Any], tools: Sequence[ToolSpec], rng: np.random.Generator, split: str
) -> Preference:
    """Return the preference of a kind in a random wording of the split."""
    return make_wish(kind, wishes, tools, "" if kind == NONE else draw_words(kind, rng, split))


def draw_words(kind: str, rng: np.random.Generator, split: str) -> str:
    """Draw a wording of a kind."""
    wordings = wordings_of(kind, split)
    return wordings[int(rng.integers(len(wordings)))]


def wordings_of(kind: str, split: str) -> list[str]:
    """Return the sentences of a split ("train" or "eval") that say a wish."""
    return [*WORDINGS[kind][split], *(_MORE.get(kind, []) if split == "train" else [])]
