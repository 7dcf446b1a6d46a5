"""BM25 search over passages on this machine (library bm25s, numpy only)."""

import functools
import hashlib
import json
import logging
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestra_jax.io.stopwatch import worked
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.executor import ToolHandler
from orchestra_jax.types import SEARCH, ToolResult, ToolSpec, Usage

if TYPE_CHECKING:
    import bm25s

TOOL = ToolSpec(
    name="local_search",
    description="Searches a local collection of passages by keywords and returns the best ones.",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string", "description": "Keywords or a question."}},
        "required": ["query"],
    },
    local=True,
    traits=(SEARCH,),
)
NO_RESULTS = "no results"
_WORDS = re.compile(r"\w+")
_PASSAGES, _MANIFEST = "passages.jsonl", "manifest.json"  # within an index's folder; the latter of a dense one
_PARAMETERS = "params.index.json"  # of bm25s: marks a folder as a saved index


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
        self._scorer = scorer

    @classmethod
    def build(cls, passages: Iterable[Passage]) -> "LocalIndex":
        """Index titles and texts, in about 0.1 ms per passage; raise ValueError: there is no word to index."""
        collection = tuple(passages)
        words = [_content_words(f"{passage.title} {passage.text}") for passage in collection]
        if not any(words):
            raise ValueError("A local index needs at least one passage with a word in it.")
        scorer = _bm25()(method="lucene")
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
        scores = self._scorer.get_scores(words)
        matches = np.flatnonzero(scores)
        best = matches[np.argsort(-scores[matches], kind="stable")[:k]]
        return [Hit(self.passages[index], float(scores[index])) for index in best]

    def answer(self, query: str, k: int = 3, max_chars: int = 500) -> str:
        """Return the observation of a search: a "title: text" line per hit, cut at `max_chars`, or "no results"."""
        return render(self.search(query, k), max_chars)

    def save(self, directory: str | Path) -> None:
        """Write the index and its passages as the folder `directory`, in place of one that was saved there before.

        Raises:
            ValueError: the folder holds something else.
        """
        path = Path(directory)
        if path.is_dir() and any(path.iterdir()) and not (path / _PARAMETERS).is_file():
            raise ValueError(f"{str(path)!r} is a folder with other files; choose another for the local index.")
        partial = path.with_name(f"{path.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        self._scorer.save(str(partial), show_progress=False)
        with (partial / _PASSAGES).open("w", encoding="utf-8") as file:
            for passage in self.passages:
                file.write(json.dumps({"title": passage.title, "text": passage.text}) + "\n")
        old = path.with_name(f"{path.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if path.is_dir():
            path.rename(old)
        partial.rename(path)
        shutil.rmtree(old, ignore_errors=True)

    @classmethod
    def load(cls, directory: str | Path) -> "LocalIndex":
        """Read what `save` wrote; raise FileNotFoundError: there is no saved index."""
        path = Path(directory)
        if not (path / _PARAMETERS).is_file():
            raise FileNotFoundError(f"No local index in {str(path)!r}; write one with LocalIndex.save.")
        return cls(read_passages(path / _PASSAGES), _bm25().load(str(path), show_progress=False))


class BatchIndex(ABC):
    """An index that is awaited, because it leaves this process or computes for long; else like `LocalIndex`."""

    @abstractmethod
    async def search_batch(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Search for several queries at once, which takes less time than one by one."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections."""

    async def search(self, query: str, k: int = 3) -> list[Hit]:
        """Return the at most `k` best passages, best first; raise as `search_batch` does."""
        return (await self.search_batch([query], k))[0]

    async def answer(self, query: str, k: int = 3, max_chars: int = 500) -> str:
        """Return the observation of a search, as `LocalIndex.answer` does."""
        return render(await self.search(query, k), max_chars)


def search_handler(index: LocalIndex | BatchIndex, k: int = 3) -> ToolHandler:
    """Make the handler of `TOOL` on any index; its ledger row bears the seconds that the search took."""

    async def search(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        start = worked()
        answer = index.answer(arguments["query"], k)
        text = answer if isinstance(answer, str) else await answer
        return ToolResult(text, (Usage(TOOL.name, seconds=worked() - start),))

    return search


def render(hits: Iterable[Hit], max_chars: int) -> str:
    """Return one "title: text" line per hit, each cut at `max_chars`, or "no results"."""
    lines = []
    for hit in hits:
        line = f"{hit.passage.title}: {hit.passage.text}" if hit.passage.title else hit.passage.text
        lines.append(line if len(line) <= max_chars else line[:max_chars] + "...")
    return "\n".join(lines) or NO_RESULTS


def read_passages(path: str | Path) -> Iterator[Passage]:
    """Read passages of a `.jsonl` file or of a `.json` list, each row with the keys title and text.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another suffix, no JSON, or a row without one of the keys (names file and row).
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"No passages at {str(source)!r}; give a .jsonl or .json file with title and text.")
    if source.suffix not in (".jsonl", ".json"):
        raise ValueError(f"Passages must be a .jsonl or .json file, not {source.name!r}.")
    from orchestra_jax.data.rows import rows_of

    for number, _, read in rows_of(source):
        row = read()
        for key in ("title", "text"):
            if not isinstance(row.get(key), str):
                raise ValueError(f"Row {number} of {source.name!r} has no {key!r} that is a text.")
        yield Passage(row["title"], row["text"])


def content_of(path: str | Path) -> str:
    """Return a digest of the passages in a file or an index's folder, with a dense one's embedder; "" if it is neither.

    It does not depend on where they lie.
    """
    source = Path(path)
    manifest = source / _MANIFEST
    if manifest.is_file():  # it has the digest of its passages
        said = json.loads(manifest.read_text())
        parts = json.dumps([said.get(key) for key in ("format", "kind", "embedder", "source")])
        return hashlib.sha256(parts.encode()).hexdigest()
    passages = source / _PASSAGES if source.is_dir() else source
    if not passages.is_file():
        return ""
    with passages.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _content_words(text: str) -> list[str]:
    """Return the words of `text` in lower case, in their order, without the English stop words of bm25s."""
    stopwords = _stopwords()
    return [word for word in _WORDS.findall(text.lower()) if word not in stopwords]


@functools.cache
def _stopwords() -> frozenset[str]:
    # Importing bm25s starts JAX, which has to wait until a run has said which devices it wants: below too.
    from bm25s.stopwords import STOPWORDS_EN

    return frozenset(STOPWORDS_EN)


def _bm25() -> "type[bm25s.BM25]":
    """Return the class that scores."""
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG and reports every index
    return bm25s.BM25
