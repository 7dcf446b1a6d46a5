"""Preferences of the quickstart world's users: sentences of each split, and the vector P."""

from collections.abc import Mapping
from functools import cache

import numpy as np

from orchestra_jax.envs.quickstart.facts import pick, success_probability
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
    "free": (
        "use free tools", "avoid paid tools", "pay nothing", "take free tools", "keep away from paid tools",
        "stick to free tools",
    ),
}  # fmt: skip
PHRASES = {
    **PHRASES,
    **{
        f"{first}_{second}": tuple(f"{a} and {b}" for a in PHRASES[name] for b in PHRASES["fast"])
        for name, first, second in (("cost", "cheap", "fast"), ("local", "local", "fast"))
    },
}
FRAMES = ("{}", "Please {}", "Above all {}", "Try to {}", "You must {}", "I want you to {}", "Remember to {}")
# Shares are such that the preferences for and against each tool are about as frequent.
PREFERENCE_SHARES = {
    "accuracy": 0.40, "cost": 0.16, "fast": 0.14, "local": 0.12, "free": 0.04, "cheap_fast": 0.10, "local_fast": 0.04,
}  # fmt: skip


@cache
def wordings(kind: str, split: str) -> tuple[str, ...]:
    """Return the sentences of one kind of preference. No sentence is in both splits; every phrase and frame is."""
    found = []
    for f, frame in enumerate(FRAMES):
        for p, phrase in enumerate(PHRASES[kind]):
            if ((f + p + p // 6) % 4 == 0) == (split == "eval"):
                sentence = frame.format(phrase) + "."
                found.append(sentence[0].upper() + sentence[1:])
    return tuple(found)


def draw_preference(
    kind: str, split: str, family: str, menu: tuple[ToolSpec, ...], rng: np.random.Generator
) -> Preference:
    """Draw a wording, with its vector P (its elements sum to 1); only tools that can answer have weights."""
    wording = pick(wordings(kind, split), rng)
    able = [spec for spec in menu if success_probability(spec.name, family) >= 0.5]
    local = {spec.name: 0.5 for spec in able if spec.local}
    free = {spec.name: 0.2 for spec in able if spec.price_usd == 0}
    match kind:
        case "accuracy":
            return Preference(kind, wording)
        case "cost":
            return Preference(kind, wording, {}, 0.5, compute=0.5)
        case "fast":
            return Preference(kind, wording, {}, 0.5, latency=0.5)
        case "local":
            return Preference(kind, wording, local, 0.5 if local else 1.0)
        case "free":
            return Preference(kind, wording, free, 0.5, compute=0.3 if free else 0.5)
        case "cheap_fast":
            return Preference(kind, wording, {}, 0.4, compute=0.15, latency=0.45)
        case _:  # local_fast
            return Preference(kind, wording, local, 0.4, latency=0.1 if local else 0.6)
