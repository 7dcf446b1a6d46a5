"""Preference pairs (instruction, P) from a file: wordings that models wrote, for any menu.

P is given for kinds of tools, not for tools, so a pair fits every menu that has tools of its kinds and others too. A
line of the file:

{"split": "train" | "eval", "instruction": "...", "prefers": {kind: weight}, "compute": 0, "latency": 0, "outcome": 1}.

An instruction for the kind "maker" holds {maker}, which stands for the preferred maker of models.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.data.preferences import PREFERS, makers, sample_preference
from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.types import MADE_BY, OPEN_WEIGHTS, Preference, ToolSpec

MAKER = "maker"


def _is_model(spec: ToolSpec) -> bool:
    return any(trait.startswith(MADE_BY) for trait in spec.traits)


# The tools of each kind; the kind "maker" also needs the maker's name.
KINDS: Mapping[str, Callable[[ToolSpec], bool]] = {
    **PREFERS,
    "closed": lambda spec: _is_model(spec) and OPEN_WEIGHTS not in spec.traits,
    "models": _is_model,
    "plain": lambda spec: not _is_model(spec),
}
SPLITS = ("train", "eval")


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
        if not self.instruction.strip() or (MAKER in self.prefers) != ("{maker}" in self.instruction):
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


class Pairs:
    """Pairs by split and name."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._named: dict[str, dict[str, list[Pair]]] = {split: defaultdict(list) for split in SPLITS}
        for pair in pairs:
            self._named[pair.split][pair.name].append(pair)

    @classmethod
    def load(cls, path: str | Path) -> "Pairs":
        """Read a file of lines.

        Raises:
            FileNotFoundError: no such file.
            ValueError: a line that is no pair, by its number, or a split without a pair.
        """
        file = Path(path)
        if not file.is_file():
            raise FileNotFoundError(f"No preferences at {str(file)!r}; experiments/synthesize.py makes them.")
        pairs = []
        for number, line in enumerate(file.read_bytes().splitlines(), start=1):
            try:
                pairs.append(_pair(read_json(line)))
            except (Unreadable, ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"{file.name}, line {number} is no preference: {error}.") from None
        found = cls(pairs)
        if lacking := [split for split in SPLITS if not found._named[split]]:
            raise ValueError(f"{file.name} has no preference of the split {lacking[0]!r}.")
        return found

    def draw(self, tools: Sequence[ToolSpec], rng: np.random.Generator, split: str = "train") -> Preference:
        """Draw a preference that this menu can follow: first its kind, then the wording and a maker.

        Raises:
            ValueError: a split other than "train" and "eval", or no pair that fits the menu.
        """
        if split not in SPLITS:
            raise ValueError(f"Preferences are split into 'train' and 'eval', not {split!r}.")
        offered = makers(tools)
        fitting = list[tuple[list[Pair], list[str]]]()
        for _, pairs in sorted(self._named[split].items()):  # those of one name prefer tools of the same kinds
            whose = offered if MAKER in pairs[0].prefers else [""]
            if some := [who for who in whose if pairs[0].fits(tools, who)]:
                fitting.append((pairs, some))
        if not fitting:
            raise ValueError("No preference of the file can be followed with this menu: add some for accuracy alone.")
        pairs, whose = fitting[int(rng.integers(len(fitting)))]
        pair = pairs[int(rng.integers(len(pairs)))]
        return pair.preference(tools, whose[int(rng.integers(len(whose)))])

    def said(self, words: str, tools: Sequence[ToolSpec]) -> Preference | None:
        """Return what a user weighs who says these words of the file; None: they are not there."""
        for pair in (pair for named in self._named.values() for pairs in named.values() for pair in pairs):
            for maker in makers(tools) if MAKER in pair.prefers else [""]:
                if (meant := pair.preference(tools, maker)).instruction == words:
                    return meant
        return None


# Draws a preference for a menu, from a split.
Draw = Callable[[Sequence[ToolSpec], np.random.Generator, str], Preference]


def drawn_from(path: str | None) -> Draw:
    """Return the function that draws preferences from a file, or from our own ones if `path` is None.

    Args:
        path: data.preferences_file.

    Raises:
        ConfigError: the file is not there or broken.
    """
    if path is None:
        return sample_preference
    try:
        return Pairs.load(path).draw
    except (OSError, ValueError) as error:
        raise ConfigError(f"data.preferences_file={path}: {error}") from error


def _pair(row: Any) -> Pair:
    """Make the pair of a line; other keys of the line are ignored."""
    fields = {key: row[key] for key in Pair.__dataclass_fields__ if key in row}
    if not isinstance(fields.get("instruction"), str) or not isinstance(fields.get("prefers", {}), dict):
        raise ValueError("it needs an instruction, and prefers as {kind: weight}")
    return Pair(**{**fields, "prefers": {kind: weight for kind, weight in fields.get("prefers", {}).items() if weight}})
