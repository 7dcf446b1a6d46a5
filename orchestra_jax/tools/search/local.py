"""The tool `local_search` on any index, and the files of passages and of BM25 indices."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra_jax.io.stopwatch import worked
from orchestra_jax.io.whole import whole_folder
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.executor import ToolHandler
from orchestra_jax.tools.schema import one_text
from orchestra_jax.tools.search.bm25 import Hit, LocalIndex, Passage, render, scorer_class
from orchestra_jax.types import SEARCH, ToolResult, ToolSpec, Usage

TOOL = ToolSpec(
    name="local_search",
    description="Searches a local collection of passages by keywords and returns the best ones.",
    parameters=one_text("query", "Keywords or a question."),
    local=True,
    traits=(SEARCH,),
)
_PASSAGES, _MANIFEST = "passages.jsonl", "manifest.json"  # within an index's folder; the latter of a dense one
_TEXTS = ("text", "contents", "content")  # the key of a passage's text, in ours and in other collections
_ENDS = 1 << 20  # bytes at each end of a file that is too large to be read for its digest
_PARAMETERS = "params.index.json"  # of bm25s: marks a folder as a saved index


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

    async def answer(self, query: str, k: int = 3) -> str:
        """Return the observation of a search, as `LocalIndex.answer` does."""
        return render(await self.search(query, k))


def search_handler(index: LocalIndex | BatchIndex, k: int = 3) -> ToolHandler:
    """Make the handler of `TOOL` on any index; its ledger row bears the seconds that the search took."""

    async def search(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        start = worked()
        answer = index.answer(arguments["query"], k)
        text = answer if isinstance(answer, str) else await answer
        return ToolResult(text, (Usage(TOOL.name, seconds=worked() - start),))

    return search


def save_index(index: LocalIndex, directory: str | Path) -> None:
    """Write an index and its passages as the folder `directory`, in place of one that was saved there before.

    Raises:
        ValueError: see `refuse_folder`.
    """
    refuse_folder(path := Path(directory))
    with whole_folder(path.absolute(), overwrite=True) as partial:
        index.scorer.save(str(partial), show_progress=False)
        with (partial / _PASSAGES).open("w", encoding="utf-8") as file:
            for passage in index.passages:
                file.write(json.dumps({"title": passage.title, "text": passage.text}) + "\n")


def refuse_folder(path: Path) -> None:
    """Raise ValueError if an index cannot be saved as this folder, which holds something else or is a file."""
    if path.is_file():
        raise ValueError(f"{str(path)!r} is a file; name a folder for the local index.")
    if path.is_dir() and any(path.iterdir()) and not (path / _PARAMETERS).is_file():
        raise ValueError(f"{str(path)!r} is a folder with other files; choose another for the local index.")


def load_index(directory: str | Path) -> LocalIndex:
    """Read what `save_index` wrote; raise FileNotFoundError: there is no saved index."""
    path = Path(directory)
    if not (path / _PARAMETERS).is_file():
        raise FileNotFoundError(f"No local index in {str(path)!r}; write one with tools.search.local.save_index.")
    return LocalIndex(read_passages(path / _PASSAGES), scorer_class().load(str(path), show_progress=False))


def read_passages(path: str | Path) -> Iterator[Passage]:
    """Read passages of a `.jsonl` file or of a `.json` list, see `passage_of`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another suffix, no JSON, or a row that is no passage (names file and row).
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"No passages at {str(source)!r}; give a .jsonl or .json file with title and text.")
    if source.suffix not in (".jsonl", ".json"):
        raise ValueError(f"Passages must be a .jsonl or .json file, not {source.name!r}.")
    from orchestra_jax.data.rows import rows_of

    for number, _, read in rows_of(source):
        yield passage_of(read(), f"Row {number} of {source.name!r}")


def passage_of(row: Mapping[str, Any], place: str) -> Passage:
    """Return the passage in a row: its text (or, as other collections call it, contents), and its title if it has one.

    Raises:
        ValueError: it has no text, or its title is none.
    """
    key = next((key for key in _TEXTS if row.get(key) is not None), _TEXTS[0])
    title = "" if row.get("title") is None else row["title"]
    for name, value in (("title", title), (key, row.get(key))):
        if not isinstance(value, str):
            raise ValueError(f"{place} has no {name!r} that is a text.")
    return Passage(title, row[key])


def pair_of(path: str | Path) -> tuple[Path, Path] | None:
    """Return a FAISS file NAME.index and its passages NAME.jsonl, where `path` is that file or a folder of one pair.

    None: it is neither, such as a folder of `dense_build`.

    Raises:
        ValueError: there are several, or the passages are missing; one sentence.
    """
    source = Path(path)
    found = [source] if source.suffix == ".index" and source.is_file() else sorted(source.glob("*.index"))
    if not found or (source / _MANIFEST).is_file():
        return None
    if len(found) > 1:
        raise ValueError(f"{str(source)!r} has {len(found)} indices: name one, such as {str(found[0])!r}.")
    passages = found[0].with_suffix(".jsonl")
    if not passages.is_file():
        raise ValueError(f"The passages of {str(found[0])!r} are not there: {passages.name} must lie beside it.")
    return found[0], passages


def content_of(path: str | Path) -> str:
    """Return a digest of the passages in a file or an index's folder, with a dense one's embedder; "" if it is neither.

    It does not depend on where they lie. Of a pair of foreign files, which may have many gigabytes, it takes sizes and
    ends.
    """
    source = Path(path)
    manifest = source / _MANIFEST
    if manifest.is_file():  # it has the digest of its passages
        said = json.loads(manifest.read_text())
        parts = json.dumps([said.get(key) for key in ("format", "kind", "embedder", "source")])
        return hashlib.sha256(parts.encode()).hexdigest()
    if pair := pair_of(source):
        return hashlib.sha256(b"".join(map(_ends, pair))).hexdigest()
    passages = source / _PASSAGES if source.is_dir() else source
    if not passages.is_file():
        return ""
    with passages.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ends(path: Path) -> bytes:
    """Return the size of a file, and what it begins and ends with."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_ENDS)
        file.seek(max(0, size - _ENDS))
        return b"%d" % size + head + file.read()
