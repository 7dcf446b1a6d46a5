"""Near-duplicates among texts: equal once normalised, or with most of their word triples in common."""

import re
import unicodedata
from collections import Counter, defaultdict

_WORD = re.compile(r"[^\W_]+(?:['.,:-][^\W_]+)*")
_WIDTH = 3  # words in a row


class Seen:
    """Texts so far, to find repetitions.

    Args:
        share: two texts are one if they share so many of their triples (Jaccard).
    """

    def __init__(self, share: float = 0.6) -> None:
        self._share = share
        self._texts: list[tuple[str, int]] = []  # original text, number of triples
        self._exact: dict[str, int] = {}
        self._holding: dict[tuple[str, ...], list[int]] = defaultdict(list)

    def add(self, text: str) -> str | None:
        """Add a text and return None, or return the earlier text that it repeats."""
        plain = normal(text)
        if plain in self._exact:
            return self._texts[self._exact[plain]][0]
        triples = _triples(plain)
        common = Counter(at for triple in triples for at in self._holding[triple])
        for at, count in common.most_common():
            if count / (len(triples) + self._texts[at][1] - count) >= self._share:
                return self._texts[at][0]
        at = len(self._texts)
        self._texts.append((text, len(triples)))
        self._exact[plain] = at
        for triple in triples:
            self._holding[triple].append(at)
        return None


def normal(text: str) -> str:
    """Return lower-case words with one blank between them, without accents and punctuation around words."""
    plain = unicodedata.normalize("NFKD", text)
    return " ".join(_WORD.findall("".join(c for c in plain if not unicodedata.combining(c)).casefold()))


def _triples(plain: str) -> set[tuple[str, ...]]:
    words = ["", *plain.split(), ""]
    return {tuple(words[at : at + _WIDTH]) for at in range(max(1, len(words) - _WIDTH + 1))}
