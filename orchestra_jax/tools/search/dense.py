"""Dense search: passages as vectors in a FAISS index on disk, memory-mapped, for collections beyond memory.

A folder holds everything: `manifest.json`, `index.faiss`, and `passages.jsonl` with `offsets.npy`. `dense_build` writes
it.
"""

import asyncio
import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from orchestra_jax.tools.search.bm25 import Hit, Passage
from orchestra_jax.tools.search.embeddings import EndpointEmbedder
from orchestra_jax.tools.search.local import BatchIndex

MANIFEST = "manifest.json"
FORMAT = 1


class PassageFile:
    """Passages of a folder's passages.jsonl, read from disk when asked for; their offsets are memory-mapped too."""

    def __init__(self, directory: Path) -> None:
        self._offsets = np.load(directory / "offsets.npy", mmap_mode="r")
        with (directory / "passages.jsonl").open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._data) != self._offsets[-1]:
            raise ValueError(f"{str(directory / 'passages.jsonl')!r} was changed after the build; build it again.")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Passage:
        if not 0 <= index < len(self):
            raise IndexError(index)
        row = json.loads(self._data[self._offsets[index] : self._offsets[index + 1]])
        return Passage(row["title"], row["text"])


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
            hits = await asyncio.to_thread(self._hits, vectors, min(k, len(self.passages)))
            for number, row in zip(asked, hits, strict=True):
                found[number] = row
        return found

    async def close(self) -> None:
        await self.embedder.close()

    def _hits(self, vectors: Float[np.ndarray, "Q D"], k: int) -> list[list[Hit]]:
        if vectors.shape[1] != self._index.d:
            raise ValueError(
                f"The embedder gives vectors of {vectors.shape[1]} numbers and the index holds {self._index.d}; "
                f"use the embedder that it was built with, or build it again."
            )
        found = self._index.search(np.ascontiguousarray(vectors, np.float32), k)  # scores, numbers of passages: [Q, k]
        return [
            [Hit(self.passages[int(i)], float(s)) for s, i in zip(*row, strict=True) if i >= 0]  # -1: fewer than k
            for row in zip(*found, strict=True)
        ]

    @classmethod
    def load(
        cls,
        directory: str | Path,
        embedder: EndpointEmbedder | None = None,
        *,
        embedder_url: str | None = None,
        memory_map: bool = True,
        probes: int | None = None,
        ef_search: int | None = None,
    ) -> "DenseIndex":
        """Opens what `build` wrote.

        Args:
            directory: of the index.
            embedder: for queries; None: the one it was built with, from the settings in the index.
            embedder_url: where that one's server is now, None for where it was.
            memory_map: see `read_index`.
            probes, ef_search: see `tune`.

        Raises:
            FileNotFoundError: there is no index.
            ValueError: it is of another format, damaged, or was built with another embedder.
        """
        path = Path(directory)
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
        index = read_index(path / "index.faiss", memory_map)
        passages = PassageFile(path)
        if index.ntotal != len(passages):
            raise ValueError(
                f"{str(path)!r} holds {index.ntotal} vectors for {len(passages)} passages; build it again."
            )
        tune(index, probes, ef_search)
        return cls(passages, index, embedder, manifest["kind"])


def read_index(path: str | Path, memory_map: bool = True) -> Any:
    """Read a FAISS index from its file; memory-mapped, its vectors stay on disk until they are read."""
    faiss = require_faiss()
    # The older IO_FLAG_MMAP maps the lists of IVF only.
    flags = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP) if memory_map else 0
    return faiss.read_index(str(path), flags)


def tune(index: Any, probes: int | None = None, ef_search: int | None = None) -> None:
    """Sets how thoroughly an approximate index is searched.

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
    """The module faiss; raises ImportError, and says how to install it."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError("Dense search needs FAISS; install it with pip install orchestra-jax[tools].") from error
    return faiss
