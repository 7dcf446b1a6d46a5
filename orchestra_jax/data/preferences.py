"""Handwritten preference pairs (instruction, P) for any menu, with separate wordings for training and evaluation."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from orchestra_jax.types import Preference, ToolSpec

WORDINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "accuracy": {
        "train": (
            "Only the right answer matters; spend whatever it takes.",
            "I care about correctness alone, not about money or time.",
            "Be as accurate as you can, cost and speed are no concern.",
        ),
        "eval": ("The answer has to be right, everything else is secondary.", "Get it right at any price."),
    },
    "low_cost": {
        "train": (
            "Please keep the cost as low as possible.",
            "My budget is small: use the cheapest way that works.",
            "Spend as little money as you can on this.",
        ),
        "eval": ("I want this done for the least money.", "Avoid expensive calls, I have to pay for each of them."),
    },
    "fast": {
        "train": (
            "I need the answer quickly.",
            "Please be as fast as possible, I am waiting.",
            "Time is short: avoid slow tools.",
        ),
        "eval": ("Hurry, every second counts.", "Prefer whatever responds soonest."),
    },
    "local": {
        "train": (
            "My data is confidential: prefer tools that run on my own machine.",
            "Use local tools where you can and avoid sending anything to outside services.",
            "Please stay on this machine as far as possible.",
        ),
        "eval": (
            "Keep everything in house, nothing should leave my computer.",
            "I prefer tools that I host myself.",
        ),
    },
    "free": {
        "train": (
            "Please use free tools only, avoid the paid ones.",
            "Do not call anything that costs money if it can be avoided.",
            "Prefer tools without a charge.",
        ),
        "eval": ("I do not want to pay for tools.", "Stick to what comes free of charge."),
    },
}


def applicable(tools: Iterable[ToolSpec]) -> tuple[str, ...]:
    """The preferences that this menu can follow: "local" and "free" need a tool to prefer and one to avoid."""
    menu = tuple(tools)
    names = ["accuracy", "low_cost", "fast"]
    for name, preferred in (("local", [spec.local for spec in menu]), ("free", [_is_free(spec) for spec in menu])):
        if any(preferred) and not all(preferred):
            names.append(name)
    return tuple(names)


def make_preference(name: str, tools: Sequence[ToolSpec], instruction: str) -> Preference:
    """The vector of one kind of preference for a menu; the outcome weighs 1 in each.

    Raises:
        ValueError: an unknown name.
    """
    match name:
        case "accuracy":
            return Preference(name, instruction)
        case "low_cost":
            return Preference(name, instruction, compute=1.0)
        case "fast":
            return Preference(name, instruction, latency=1.0)
        case "local":
            return Preference(name, instruction, {spec.name: 1.0 for spec in tools if spec.local})
        case "free":
            return Preference(name, instruction, {spec.name: 1.0 for spec in tools if _is_free(spec)}, compute=1.0)
        case _:
            raise ValueError(f"Unknown preference {name!r}; known are {', '.join(WORDINGS)}.")


def sample_preference(tools: Sequence[ToolSpec], rng: np.random.Generator, split: str = "train") -> Preference:
    """A random applicable preference in a random wording of the split.

    Raises:
        ValueError: a split other than "train" and "eval".
    """
    if split not in ("train", "eval"):
        raise ValueError(f"Preferences are split into 'train' and 'eval', not {split!r}.")
    names = applicable(tools)
    name = names[int(rng.integers(len(names)))]
    wordings = WORDINGS[name][split]
    return make_preference(name, tools, wordings[int(rng.integers(len(wordings)))])


def _is_free(spec: ToolSpec) -> bool:
    """A tool without a price per call is priced per token, unless it runs on the user's own machine."""
    return spec.local if spec.price_usd is None else spec.price_usd == 0
