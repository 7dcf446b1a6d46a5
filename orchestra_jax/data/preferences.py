"""Preference pairs (instruction, P) for any menu, and our own wordings of them for training and evaluation.

P is given for kinds of tools, not for tools, so a pair fits every menu that has tools of its kinds and others too. A
preference for tools weighs every tool of one kind: those on the user's own machines, without a charge, with open
weights, by one maker, that search, or that compute with code.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestra_jax.types import CODE, FREE, MADE_BY, OPEN_WEIGHTS, PAID, SEARCH, Preference, ToolSpec

WORDINGS: Mapping[str, Mapping[str, Sequence[str]]] = json.loads(Path(__file__).with_name("wordings.json").read_text())
SPLITS = ("train", "eval")
MAKER = "maker"
_SPOKEN = {"best": "accuracy", "cheap": "low_cost", "fast": "fast"}
_WITHOUT_TOOLS = ("accuracy", "low_cost", "fast")


def makers(tools: Iterable[ToolSpec]) -> list[str]:
    """Return the makers of some of the menu's models, without a maker of all of its tools."""
    menu = tuple(tools)
    found = Counter(trait for spec in menu for trait in spec.traits if trait.startswith(MADE_BY))
    return sorted(trait.removeprefix(MADE_BY) for trait, count in found.items() if count < len(menu))


def spoken_wishes(kinds: Iterable[str] = _WITHOUT_TOOLS) -> dict[str, str]:
    """Return what a user of a policy trained on `kinds` may name in a word, and the sentence that it stands for."""
    return {name: WORDINGS[kind]["train"][0] for name, kind in _SPOKEN.items() if kind in set(kinds)}


def refuse_untrained(wish: str | None, trained: Collection[str]) -> None:
    """Raise ValueError if a wish is a word of `spoken_wishes` that is none of those of the policy's training."""
    if wish in spoken_wishes().keys() - set(trained):
        known = "".join(f"{name}, " for name in trained)
        raise ValueError(
            f"This policy was not trained on the wish {wish!r}: write {known and known + 'or '}a sentence of your own."
        )


def _is_free(spec: ToolSpec) -> bool:
    """Return whether the menu calls the tool free; without a price, tools on the user's machine are free."""
    if spec.price_usd is not None:
        return spec.price_usd == 0
    return FREE in spec.traits or (spec.local and PAID not in spec.traits)


def _is_model(spec: ToolSpec) -> bool:
    return any(trait.startswith(MADE_BY) for trait in spec.traits)


def _with(trait: str) -> Callable[[ToolSpec], bool]:
    return lambda spec: trait in spec.traits


# The tools of each kind; the kind "maker" also needs the maker's name.
KINDS: Mapping[str, Callable[[ToolSpec], bool]] = {
    "local": lambda spec: spec.local,
    "free": _is_free,
    "open": _with(OPEN_WEIGHTS),
    "search": _with(SEARCH),
    "code": _with(CODE),
    "closed": lambda spec: _is_model(spec) and OPEN_WEIGHTS not in spec.traits,
    "models": _is_model,
    "plain": lambda spec: not _is_model(spec),
}


def _is_kind(spec: ToolSpec, kind: str, maker: str) -> bool:
    return MADE_BY + maker in spec.traits if kind == MAKER else KINDS[kind](spec)


@dataclass(frozen=True, slots=True)
class Pair:
    """An instruction and its P for any menu.

    Attributes:
        instruction: in words; holds {maker} where a maker is preferred.
        split: "train" | "eval".
        prefers: weight by kind of tools, of KINDS or MAKER.
        compute, latency, outcome: the last elements of P.
    """

    instruction: str
    split: str
    prefers: Mapping[str, float] = field(default_factory=dict)
    compute: float = 0.0
    latency: float = 0.0
    outcome: float = 1.0

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.prefers if kind not in KINDS and kind != MAKER]
        weights = (*self.prefers.values(), self.compute, self.latency, self.outcome)
        if unknown:
            raise ValueError(f"there is no kind of tools {unknown[0]!r}; known are {', '.join((*KINDS, MAKER))}")
        if not all(isinstance(w, int | float) and not isinstance(w, bool) and 0 <= w <= 1 for w in weights):
            raise ValueError("a weight is not within [0, 1]")
        if self.split not in SPLITS:
            raise ValueError("its split is neither train nor eval")
        if (MAKER in self.prefers) != ("{maker}" in self.instruction):
            raise ValueError("an instruction holds {maker} exactly where a maker is preferred")

    @property
    def name(self) -> str:
        """The kinds of preference that it asks for, for reports: "accuracy", "local", "fast+open"."""
        kinds = [kind for kind, weight in self.prefers.items() if weight]
        # A user who wants free tools wants low cost too, which then has no name of its own.
        cheap = ["low_cost"] if self.compute and "free" not in kinds else []
        return "+".join(sorted([*kinds, *cheap, *(["fast"] if self.latency else [])])) or "accuracy"

    def weights(self, tools: Iterable[ToolSpec], maker: str = "") -> dict[str, float]:
        """Return the weight of each preferred tool: the largest weight of its kinds."""
        found = dict[str, float]()
        for spec in tools:
            weights = [weight for kind, weight in self.prefers.items() if _is_kind(spec, kind, maker)]
            if weight := max(weights, default=0.0):
                found[spec.name] = float(weight)
        return found

    def fits(self, tools: Sequence[ToolSpec], maker: str = "") -> bool:
        """Return whether this menu has tools of every preferred kind, and others."""
        if not self.prefers:
            return True
        each = [any(_is_kind(spec, kind, maker) for spec in tools) for kind in self.prefers]
        return all(each) and len(self.weights(tools, maker)) < len(tools)

    def preference(self, tools: Sequence[ToolSpec], maker: str = "") -> Preference:
        """Return instruction and P for a menu."""
        words = self.instruction.replace("{maker}", maker)
        return Preference(self.name, words, self.weights(tools, maker), self.outcome, self.compute, self.latency)


def own_pair(kind: str, split: str, instruction: str) -> Pair:
    """Return the pair of one of our own kinds of preference, with these words; the outcome weighs 1 in each."""
    prefers = {} if kind in _WITHOUT_TOOLS else {kind: 1.0}
    return Pair(instruction, split, prefers, float(kind in ("low_cost", "free")), float(kind == "fast"))


def make_preference(kind: str, tools: Sequence[ToolSpec], instruction: str) -> Preference:
    """Return a preference of one of our own kinds, in any words; the kind "maker" is not among them."""
    return replace(own_pair(kind, "train", "").preference(tools), instruction=instruction)
