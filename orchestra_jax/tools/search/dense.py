"""Dense search: passages as vectors in a FAISS index on disk, memory-mapped, for collections beyond memory.

A folder holds everything: `manifest.json`, `index.faiss`, and `passages.jsonl` with `offsets.npy`. `dense_build` writes
it. An index that others built is a pair of files, NAME.index of FAISS and NAME.jsonl with a passage a line.
"""

import asyncio
import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from orchestra_jax.io.whole import replacing
from orchestra_jax.tools.search.bm25 import Hit, Passage
from orchestra_jax.tools.search.embeddings import EndpointEmbedder
from orchestra_jax.tools.search.local import BatchIndex, pair_of, passage_of

MANIFEST = "manifest.json"
FORMAT = 1
FOREIGN_MODEL = "Qwen/Qwen3-Embedding-8B"  # the paper's, with which the authors built their index
_BLOCK = 64 << 20  # bytes of a file in which ends of lines are searched at a time


class PassageFile:
    """Passages of a .jsonl file, read from disk when asked for; their offsets are memory-mapped too."""

    def __init__(self, passages: Path, offsets: Path) -> None:
        self._name, self._offsets = passages.name, np.load(offsets, mmap_mode="r")
        with passages.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._data) != self._offsets[-1]:
            raise ValueError(f"{str(passages)!r} was changed after the build; build it again.")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Passage:
        if not 0 <= index < len(self):
            raise IndexError(index)
        row = json.loads(self._data[self._offsets[index] : self._offsets[index + 1]])
        return passage_of(row, f"Line {index + 1} of {self._name!r}")


class DenseIndex(BatchIndex):
    """Passages by the inner product of their vectors with the query's. Safe for concurrent searches.

    Made by `dense_build.build` or `load`.

    Attributes:
        passages: the collection, in the order it was given.
        embedder: makes the vectors of queries; closed with the index.
        kind: "flat" | "ivf" | "hnsw" or a FAISS factory string.
    """

    def __init__(self, passages: PassageFile, index: Any, embedder: EndpointEmbedder, kind: str) -> None:
        self.passages, self.embedder, self.kind = passages, embedder, kind
        self._index = index

    async def search_batch(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """See `BatchIndex`; none for an empty query.

        Raises:
            ValueError: k < 1, or vectors of another dimension than the index holds.
            InfrastructureError: the embedding server failed.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}.")
        asked = [number for number, query in enumerate(queries) if query.strip()]
        found: list[list[Hit]] = [[] for _ in queries]
        if asked:
            vectors = await self.embedder.embed([queries[number] for number in asked], "query")
            for number, row in zip(asked, await self.nearest(vectors, k), strict=True):
                found[number] = row
        return found

    @property
    def dim(self) -> int:
        """Numbers of a vector."""
        return int(self._index.d)

    async def nearest(self, vectors: Float[np.ndarray, "Q D"], k: int) -> list[list[Hit]]:
        """Return the at most `k` passages nearest to each vector, best first.

        Raises:
            ValueError: vectors of another dimension than the index holds.
        """
        return await asyncio.to_thread(self._hits, vectors, min(k, len(self.passages)))

    async def close(self) -> None:
        await self.embedder.close()

    def _hits(self, vectors: Float[np.ndarray, "Q D"], k: int) -> list[list[Hit]]:
        if vectors.shape[1] != self.dim:
            raise ValueError(
                f"The embedder gives vectors of {vectors.shape[1]} numbers and the index holds {self.dim}; "
                f"use the embedder that it was built with, or build it again."
            )
        scores, numbers = self._index.search(np.ascontiguousarray(vectors, np.float32), k)  # [Q, k] both
        if self._index.metric_type == require_faiss().METRIC_L2:
            scores = 1 - scores / 2  # squared distances of unit vectors as inner products
        return [
            [Hit(self.passages[int(i)], float(s)) for s, i in zip(*row, strict=True) if i >= 0]  # -1: fewer than k
            for row in zip(scores, numbers, strict=True)
        ]

    @classmethod
    def load(
        cls,
        directory: str | Path,
        embedder: EndpointEmbedder | None = None,
        *,
        embedder_url: str | None = None,
        probes: int | None = None,
        ef_search: int | None = None,
    ) -> "DenseIndex":
        """Open what `build` wrote, or a pair of foreign files (`local.pair_of`).

        Args:
            directory: of the index, or a pair's file.
            embedder: for queries; None: the one it was built with, from the settings in the index; of a pair
                FOREIGN_MODEL.
            embedder_url: where that one's server is now, None for where it was; a pair does not say.
            probes, ef_search: see `tune`.

        Raises:
            FileNotFoundError: there is no index.
            ValueError: it is of another format, damaged, or was built with another embedder; or a pair has no
                `embedder_url`.
        """
        path = Path(directory)
        if pair := pair_of(path):
            return _foreign(*pair, embedder, embedder_url, (probes, ef_search))
        if not (path / MANIFEST).is_file():
            begun = path.with_name(f"{path.name}.partial").is_dir()
            fix = "its build was not finished: run that again" if begun else "build one with experiments/index.py"
            raise FileNotFoundError(f"No dense index in {str(path)!r}; {fix}.")
        manifest = json.loads((path / MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            raise ValueError(
                f"The index in {str(path)!r} has format {manifest['format']}, not {FORMAT}; build it again."
            )
        if embedder is None:
            settings = {**manifest["settings"], **({"url": embedder_url} if embedder_url else {})}
            if (kind := settings.pop("type", None)) != "endpoint":
                raise ValueError(f"The index was embedded by {kind!r}; pass that embedder to DenseIndex.load.")
            embedder = EndpointEmbedder(**settings)
        if embedder.identity != manifest["embedder"]:
            raise ValueError(
                f"The index in {str(path)!r} was built with {manifest['embedder']}, not with {embedder.identity}; use "
                f"the same embedder, or build it again."
            )
        passages = PassageFile(path / "passages.jsonl", path / "offsets.npy")
        index = _opened(path / "index.faiss", passages, (probes, ef_search))
        return cls(passages, index, embedder, manifest["kind"])


def _foreign(
    index: Path,
    passages: Path,
    embedder: EndpointEmbedder | None,
    url: str | None,
    thoroughness: tuple[int | None, int | None],
) -> DenseIndex:
    """Open a pair of foreign files, see `DenseIndex.load`."""
    if embedder is None and url is None:
        raise ValueError(
            f"{str(index)!r} does not say where its queries are embedded: set tools.search.embedder_url to a server of "
            f"{FOREIGN_MODEL} (docs/search.md)."
        )
    texts = PassageFile(passages, line_offsets(passages))
    opened = _opened(index, texts, thoroughness)
    # A Matryoshka model serves shorter vectors too.
    return DenseIndex(texts, opened, embedder or EndpointEmbedder(str(url), FOREIGN_MODEL, dim=opened.d), index.name)


def _opened(path: Path, passages: PassageFile, thoroughness: tuple[int | None, int | None]) -> Any:
    """Return the FAISS index of these passages; raise ValueError: it is of other ones, or of another measure."""
    index = read_index(path)
    if index.ntotal != len(passages):
        raise ValueError(
            f"{str(path)!r} holds {index.ntotal} vectors for {len(passages)} passages; build it again, or fetch both "
            "files again."
        )
    if index.metric_type not in (require_faiss().METRIC_INNER_PRODUCT, require_faiss().METRIC_L2):
        raise ValueError(f"{str(path)!r} is searched neither by inner product nor by distance: build it again.")
    tune(index, *thoroughness)
    return index


def line_offsets(passages: Path) -> Path:
    """Return the file with the offsets of a .jsonl file's lines and its end, which is made beside it where it is not.

    Raises:
        OSError: it cannot be written there.
        ValueError: the file holds no line, or an empty one.
    """
    path = passages.with_name(f"{passages.stem}.offsets.npy")
    size = passages.stat().st_size
    if path.is_file() and np.load(path, mmap_mode="r")[-1] == size:
        return path
    found, start = [np.zeros(1, np.int64)], 0
    with passages.open("rb") as file:
        while len(block := np.frombuffer(file.read(_BLOCK), np.uint8)):
            found.append(start + 1 + np.flatnonzero(block == ord("\n")))
            start += len(block)
    offsets = np.concatenate(found)
    if offsets[-1] != size:  # the last line has no end
        offsets = np.append(offsets, size)
    if len(offsets) == 1 or np.diff(offsets).min() < 2:
        raise ValueError(f"{str(passages)!r} holds no passages, or an empty line.")
    with replacing(path) as part, part.open("wb") as file:
        np.save(file, offsets)
    return path


def read_index(path: str | Path) -> Any:
    """Open a FAISS index, memory-mapped: its vectors stay on disk until they are read."""
    faiss = require_faiss()
    # The older IO_FLAG_MMAP maps the lists of IVF only.
    return faiss.read_index(str(path), getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP))


def tune(index: Any, probes: int | None = None, ef_search: int | None = None) -> None:
    """Set how thoroughly an approximate index is searched.

    Args:
        index: of FAISS; a flat one has nothing to set.
        probes: IVF lists per search; None: a sixteenth of them, at least 64 and at most 256.
        ef_search: candidates that HNSW keeps; None: 128.
    """
    faiss = require_faiss()
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        ivf.nprobe = min(ivf.nlist, probes or min(256, max(64, ivf.nlist // 16)))
    core = faiss.downcast_index(index)
    if hasattr(core, "hnsw"):
        core.hnsw.efSearch = ef_search or 128


def require_faiss() -> Any:
    """Return the module faiss; raise ImportError, which says how to install it."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError("Dense search needs FAISS; install it with pip install orchestra-jax[tools].") from error
    return faiss
