"""Preferences of the quickstart world's users: sentences of each split, and the vector P."""

from collections.abc import Collection, Mapping
from functools import cache

import numpy as np

from orchestra_jax.envs.quickstart.facts import RIVALS, pick
from orchestra_jax.types import Preference, ToolSpec

# By kind of preference; a wording is a phrase in a frame.
PHRASES: Mapping[str, tuple[str, ...]] = {
    "accuracy": (
        "be right", "get it right", "make no mistake", "give the right answer", "be accurate",
        "find the correct answer",
    ),
    "cost": (
        "keep the cost low", "spend little money", "be cheap", "save money", "use a small budget",
        "keep the bill small",
    ),
    "fast": ("be fast", "be quick", "hurry", "answer soon", "save time", "waste no time"),
    "local": (
        "stay on this machine", "use local tools", "keep my data here", "keep it local", "keep my data private",
        "stay local",
    ),
}  # fmt: skip  # a list of phrases
FRAMES = ("{}", "Please {}", "Above all {}", "Try to {}", "You must {}", "I want you to {}", "Remember to {}")
PREFERENCE_SHARES = {"accuracy": 0.28, "cost": 0.26, "fast": 0.26, "local": 0.20}


@cache
def wordings(kind: str, split: str) -> tuple[str, ...]:
    """Return the sentences of one kind of preference. No sentence is in both splits; every phrase and frame is."""
    return tuple(
        f"{sentence[0].upper()}{sentence[1:]}."
        for f, frame in enumerate(FRAMES)
        for p, sentence in enumerate(map(frame.format, PHRASES[kind]))
        if ((f + p + p // 6) % 4 == 0) == (split == "eval")
    )


def draw_preference(
    kind: str, split: str, kinds: Collection[str], menu: tuple[ToolSpec, ...], rng: np.random.Generator
) -> Preference:
    """Draw a wording, with its vector P (its elements sum to 1); only tools that can do a step have weights."""
    wording = pick(wordings(kind, split), rng)
    local = [spec.name for spec in menu if spec.local and any(spec.name in RIVALS[kind] for kind in kinds)]
    weights = {"cost": {"compute": 0.5}, "fast": {"latency": 0.5}}.get(kind, {})
    tools = dict.fromkeys(local, 0.5 / len(local)) if kind == "local" and local else {}
    return Preference(kind, wording, tools, 0.5 if weights or tools else 1.0, **weights)
