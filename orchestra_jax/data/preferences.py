"""Handwritten preference pairs (instruction, P) for any menu, with separate wordings for training and evaluation.

A preference for tools weighs every tool of one kind: those on the user's own machines, without a charge, with open
weights, by one maker, that search, or that compute with code.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from orchestra_jax.types import CODE, FREE, MADE_BY, OPEN_WEIGHTS, PAID, SEARCH, Preference, ToolSpec

WORDINGS: Mapping[str, Mapping[str, Sequence[str]]] = json.loads(Path(__file__).with_name("wordings.json").read_text())

_SPOKEN = {"best": "accuracy", "cheap": "low_cost", "fast": "fast"}


def applicable(tools: Iterable[ToolSpec]) -> tuple[str, ...]:
    """Return the preferences that this menu can follow: those for tools need a tool to prefer and one to avoid."""
    menu = tuple(tools)
    names = ["accuracy", "low_cost", "fast"]
    names += [name for name, prefers in PREFERS.items() if 0 < sum(map(prefers, menu)) < len(menu)]
    return (*names, "maker") if makers(menu) else tuple(names)


def makers(tools: Iterable[ToolSpec]) -> list[str]:
    """Return the makers of some of the menu's models, without a maker of all of its tools."""
    menu = tuple(tools)
    found = Counter(trait for spec in menu for trait in spec.traits if trait.startswith(MADE_BY))
    return sorted(trait.removeprefix(MADE_BY) for trait, count in found.items() if count < len(menu))


def make_preference(name: str, tools: Sequence[ToolSpec], instruction: str, maker: str = "") -> Preference:
    """Return one kind of preference for a menu; the outcome weighs 1 in each.

    Args:
        maker: the preferred maker, for the kind "maker"; the instruction names it as {maker}.

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
        case "maker":
            weights = {spec.name: 1.0 for spec in tools if MADE_BY + maker in spec.traits}
            return Preference(name, instruction.format(maker=maker), weights)
        case _ if name in PREFERS:
            weights = {spec.name: 1.0 for spec in tools if PREFERS[name](spec)}
            return Preference(name, instruction, weights, compute=float(name == "free"))
        case _:
            raise ValueError(f"Unknown preference {name!r}; known are {', '.join(WORDINGS)}.")


def preference_of(words: str, tools: Sequence[ToolSpec]) -> Preference:
    """Return what a user weighs who says these words, of either split; other words ask for a right answer."""
    for kind, splits in WORDINGS.items():
        for wording in (wording for some in splits.values() for wording in some):
            for maker in makers(tools) if kind == "maker" else [""]:
                if words == (wording.format(maker=maker) if maker else wording):
                    return make_preference(kind, tools, wording, maker)
    return make_preference("accuracy", tools, words)


def spoken_wishes() -> dict[str, str]:
    """Return what a user of a served policy may name in a word, and the sentence that it stands for."""
    return {name: WORDINGS[kind]["train"][0] for name, kind in _SPOKEN.items()}


def sample_preference(tools: Sequence[ToolSpec], rng: np.random.Generator, split: str = "train") -> Preference:
    """Draw an applicable preference in a wording of the split.

    Raises:
        ValueError: a split other than "train" and "eval".
    """
    if split not in ("train", "eval"):
        raise ValueError(f"Preferences are split into 'train' and 'eval', not {split!r}.")
    names = applicable(tools)
    name = names[int(rng.integers(len(names)))]
    wordings = WORDINGS[name][split]
    wording = wordings[int(rng.integers(len(wordings)))]
    offered = makers(tools) if name == "maker" else [""]
    return make_preference(name, tools, wording, offered[int(rng.integers(len(offered)))])


def _is_free(spec: ToolSpec) -> bool:
    """Return whether the menu calls the tool free; without a price, tools on the user's machine are free."""
    if spec.price_usd is not None:
        return spec.price_usd == 0
    return FREE in spec.traits or (spec.local and PAID not in spec.traits)


def _is_local(spec: ToolSpec) -> bool:
    return spec.local


def _with(trait: str) -> Callable[[ToolSpec], bool]:
    return lambda spec: trait in spec.traits


# The tools that each kind of preference is for.
PREFERS: Mapping[str, Callable[[ToolSpec], bool]] = {
    "local": _is_local,
    "free": _is_free,
    "open": _with(OPEN_WEIGHTS),
    "search": _with(SEARCH),
    "code": _with(CODE),
}
