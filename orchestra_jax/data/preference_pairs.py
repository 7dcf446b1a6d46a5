"""Preference pairs by split: our own handwritten ones, or wordings that models wrote, from a file.

A line of the file:

{"split": "train" | "eval", "instruction": "...", "prefers": {kind: weight}, "compute": 0, "latency": 0, "outcome": 1}.

An instruction for the kind "maker" holds {maker}, which stands for the preferred maker of models.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.data.preferences import MAKER, SPLITS, WORDINGS, Pair, makers, own_pair
from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.types import Preference, ToolSpec

_OWN = ("accuracy", "low_cost", "fast", "local", "free", "open", "search", "code", MAKER)


class Pairs:
    """Pairs by split and name; draws depend on the order of the names."""

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
        found = cls(sorted(pairs, key=lambda pair: pair.name))
        if lacking := [split for split in SPLITS if not found._named[split]]:
            raise ValueError(f"{file.name} has no preference of the split {lacking[0]!r}.")
        return found

    def fitting(self, tools: Sequence[ToolSpec], split: str) -> list[tuple[list[Pair], list[str]]]:
        """Return the pairs of each name that this menu can follow, with the makers that can be preferred, else [""]."""
        found = list[tuple[list[Pair], list[str]]]()
        for pairs in self._named[split].values():  # those of one name prefer tools of the same kinds
            whose = makers(tools) if MAKER in pairs[0].prefers else [""]
            if some := [who for who in whose if pairs[0].fits(tools, who)]:
                found.append((pairs, some))
        return found

    def draw(self, tools: Sequence[ToolSpec], rng: np.random.Generator, split: str = "train") -> Preference:
        """Draw a preference that this menu can follow: first its kind, then the wording and a maker.

        Raises:
            ValueError: a split other than "train" and "eval", or no pair that fits the menu.
        """
        if split not in SPLITS:
            raise ValueError(f"Preferences are split into 'train' and 'eval', not {split!r}.")
        fitting = self.fitting(tools, split)
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


OWN = Pairs(own_pair(kind, split, words) for kind in _OWN for split in SPLITS for words in WORDINGS[kind][split])
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
        return OWN.draw
    try:
        return Pairs.load(path).draw
    except (OSError, ValueError) as error:
        raise ConfigError(f"data.preferences_file={path}: {error}") from error


def preference_of(words: str, tools: Sequence[ToolSpec]) -> Preference:
    """Return what a user weighs who says these words of our own, of either split; others ask for a right answer."""
    return OWN.said(words, tools) or Preference("accuracy", words)


def _pair(row: Any) -> Pair:
    """Make the pair of a line; other keys of the line are ignored, unless they are nearly one of its own."""
    own = Pair.__dataclass_fields__
    if typos := [(key, near[0]) for key in row if key not in own and (near := get_close_matches(key, own, 1))]:
        raise ValueError(f"its key {typos[0][0]!r} means nothing; write {typos[0][1]}")
    fields = {key: row[key] for key in own if key in row}
    words, prefers = fields.get("instruction"), fields.get("prefers", {})
    if not isinstance(words, str) or not words.strip() or not isinstance(prefers, dict):
        raise ValueError("it needs an instruction, and prefers as {kind: weight}")
    return Pair(**{"split": None, **fields, "prefers": {kind: weight for kind, weight in prefers.items() if weight}})
