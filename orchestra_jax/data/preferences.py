"""Handwritten preference pairs (instruction, P) for any menu, with separate wordings for training and evaluation.

A preference for tools weighs every tool of one kind: those on the user's own machines, without a charge, with open
weights, by one maker, that search, or that compute with code.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from orchestra_jax.types import CODE, FREE, MADE_BY, OPEN_WEIGHTS, PAID, SEARCH, Preference, ToolSpec

WORDINGS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "accuracy": {
        "train": (
            "Only the right answer matters; spend whatever it takes.",
            "I care about correctness alone, not about money or time.",
            "Be as accurate as you can, cost and speed are no concern.",
            "What counts is that the answer is correct, take all the time and money you need.",
            "A wrong answer would be worse than an expensive one, so check everything.",
            "This has to be right. I do not mind what it costs or how long it takes.",
            "Go for quality only; the bill and the clock are not your worry.",
            "Please be thorough, a mistake here would hurt me a lot.",
        ),
        "eval": (
            "The answer has to be right, everything else is secondary.",
            "Get it right at any price.",
            "I would rather wait and pay than get something false.",
            "Nothing but a correct result helps me.",
        ),
    },
    "low_cost": {
        "train": (
            "Please keep the cost as low as possible.",
            "My budget is small: use the cheapest way that works.",
            "Spend as little money as you can on this.",
            "Money is tight here, so go easy on the expensive tools.",
            "Please watch the bill: every cent that you save counts.",
            "I am paying for this out of my own pocket, keep it cheap.",
            "Choose the least expensive way that still gets there.",
            "We have almost used up this month's budget, so be frugal.",
        ),
        "eval": (
            "I want this done for the least money.",
            "Avoid expensive calls, I have to pay for each of them.",
            "Try to keep the bill small.",
            "Cheap is good: do not spend more than the task is worth.",
        ),
    },
    "fast": {
        "train": (
            "I need the answer quickly.",
            "Please be as fast as possible, I am waiting.",
            "Time is short: avoid slow tools.",
            "I have a meeting in five minutes and need this before it.",
            "Quick, please: whatever answers first is fine with me.",
            "Do not keep me waiting, speed matters most to me.",
            "Take the quickest route to an answer.",
            "I am in a rush, so skip everything that takes long.",
        ),
        "eval": (
            "Hurry, every second counts.",
            "Prefer whatever responds soonest.",
            "Let me have it as soon as you can.",
            "I cannot wait long for this one.",
        ),
    },
    "local": {
        "train": (
            "My data is confidential: prefer tools that run on my own machine.",
            "Use local tools where you can and avoid sending anything to outside services.",
            "Please stay on this machine as far as possible.",
            "These are patient records, so keep the work on our own computers.",
            "We have plenty of hardware here: rely on what we run ourselves.",
            "No outside services for this if you can help it.",
            "What I give you is secret and should stay within our walls.",
            "Work with the tools on my own hardware first.",
        ),
        "eval": (
            "Keep everything in house, nothing should leave my computer.",
            "I prefer tools that I host myself.",
            "Our rules forbid sending data to others, so use what runs with us.",
            "Let my own machines do the work.",
        ),
    },
    "free": {
        "train": (
            "Please use free tools only, avoid the paid ones.",
            "Do not call anything that costs money if it can be avoided.",
            "Prefer tools without a charge.",
            "I have no credit left, so use what is free.",
            "Only tools that come without a bill, please.",
            "Rely on whatever is available at no charge.",
            "I would like to spend nothing at all on this.",
            "Leave the paid services alone and see how far the free ones get you.",
        ),
        "eval": (
            "I do not want to pay for tools.",
            "Stick to what comes free of charge.",
            "Nothing that I am charged for, please.",
            "Do it with tools that cost nothing.",
        ),
    },
    "open": {
        "train": (
            "Prefer models whose weights are open.",
            "Our policy is to work with open models, so avoid closed ones where you can.",
            "Please let openly available models do the work.",
            "I want this reproducible, so choose models whose weights anybody can download.",
            "Stay with open-weight models where they can do the job.",
            "We only publish results of open models: please work with those.",
            "Proprietary models are not welcome in this project.",
            "Give the work to models that are freely available to everyone.",
        ),
        "eval": (
            "I would rather rely on open models.",
            "Closed models should stay out of this if possible.",
            "Use models that everybody can inspect and run.",
            "Leave proprietary models aside, open ones will do.",
        ),
    },
    "maker": {
        "train": (
            "Prefer the models made by {maker}.",
            "We have a contract with {maker}: use their models where you can.",
            "I trust models made by {maker} more than others.",
            "Our licence covers {maker}, so let their models answer.",
            "I have had good results with {maker}; stay with their models.",
            "Wherever a model is needed, take one from {maker}.",
            "We are comparing vendors and this is the turn of {maker}.",
            "Models by {maker} should do as much of this as possible.",
        ),
        "eval": (
            "Let the models made by {maker} do it.",
            "If you can, choose something made by {maker}.",
            "For this job I count on {maker} and their models.",
            "Whatever comes from {maker} gets my vote.",
        ),
    },
    "search": {
        "train": (
            "Please look things up rather than rely on memory.",
            "I want an answer that rests on sources: use search.",
            "Prefer searching to guessing.",
            "Please search for the facts before you answer.",
            "I need something that I can cite, so find sources for it.",
            "Look it up: memory is not good enough here.",
            "Check the facts against documents that you have found.",
            "Do some research on this instead of answering off the top of your head.",
        ),
        "eval": (
            "Back this up with what a search finds.",
            "Do not trust recollection, search instead.",
            "Consult sources for this.",
            "I only believe what can be found and read.",
        ),
    },
    "code": {
        "train": (
            "Please work this out with code where that is possible.",
            "Prefer running a program to reasoning in the head.",
            "Use code to compute and to check.",
            "Write a small program for this and run it.",
            "Do the arithmetic by machine, mental arithmetic goes wrong.",
            "I would like to see this calculated by a script.",
            "Verify the result with code before you answer.",
            "Let Python do whatever can be computed.",
        ),
        "eval": (
            "Let a program do the calculating.",
            "I trust results that code has produced.",
            "A script should find the result.",
            "Run something rather than estimate it.",
        ),
    },
}

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
    """Return whether the menu says so; if it does not say, a tool on the user's machine is free and others are not."""
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
