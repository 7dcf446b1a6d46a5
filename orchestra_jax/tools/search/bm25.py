"""BM25 search over passages in memory (library bm25s, numpy only)."""

import functools
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import bm25s

NO_RESULTS = "no results"
_LINE_CHARS = 500
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Passage:
    """One passage of the collection."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage and its score, higher is better: BM25's, always positive, or the inner product of unit vectors."""

    passage: Passage
    score: float


class LocalIndex:
    """An index in memory; searching is a pure function of the query.

    Attributes:
        passages: the collection, in the order it was given.
    """

    def __init__(self, passages: Iterable[Passage], scorer: "bm25s.BM25") -> None:
        self.passages = tuple(passages)
        self.scorer = scorer

    @classmethod
    def build(cls, passages: Iterable[Passage]) -> "LocalIndex":
        """Index titles and texts, in about 0.1 ms per passage; raise ValueError: there is no word to index."""
        collection = tuple(passages)
        words = [_content_words(f"{passage.title} {passage.text}") for passage in collection]
        if not any(words):
            raise ValueError("A local index needs at least one passage with a word in it.")
        scorer = scorer_class()(method="lucene")
        scorer.index(words, show_progress=False)
        return cls(collection, scorer)

    def search(self, query: str, k: int = 3) -> list[Hit]:
        """Return the at most `k` passages that share a word with the query, best first; equal scores in their order.

        Raises:
            ValueError: k < 1.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}.")
        words = _content_words(query)
        if not words:
            return []
        # retrieve() takes four times as long for one query: it is made for batches.
        scores = self.scorer.get_scores(words)
        matches = np.flatnonzero(scores)
        best = matches[np.argsort(-scores[matches], kind="stable")[:k]]
        return [Hit(self.passages[index], float(scores[index])) for index in best]

    def answer(self, query: str, k: int = 3) -> str:
        """Return the observation of a search: a "title: text" line per hit, cut at 500 characters, or "no results"."""
        return render(self.search(query, k))


def render(hits: Iterable[Hit]) -> str:
    """Return the observation of a search, see `LocalIndex.answer`."""
    lines = []
    for hit in hits:
        line = f"{hit.passage.title}: {hit.passage.text}" if hit.passage.title else hit.passage.text
        lines.append(line if len(line) <= _LINE_CHARS else line[:_LINE_CHARS] + "...")
    return "\n".join(lines) or NO_RESULTS


def _content_words(text: str) -> list[str]:
    """Return the words of `text` in lower case, in their order, without the English stop words of bm25s."""
    stopwords = _stopwords()
    return [word for word in _WORDS.findall(text.lower()) if word not in stopwords]


@functools.cache
def _stopwords() -> frozenset[str]:
    # Importing bm25s starts JAX, which has to wait until a run has said which devices it wants: below too.
    from bm25s.stopwords import STOPWORDS_EN

    return frozenset(STOPWORDS_EN)


def scorer_class() -> "type[bm25s.BM25]":
    """Return the class of bm25s that scores."""
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG and reports every index
    return bm25s.BM25
