"""Builds a dense index on disk, shard by shard: a build that was killed goes on, and none is ever half there.

Everything is written to `FOLDER.partial`, each file under another name first, and the folder is renamed when all is
there. The vectors' shards are deleted last.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from orchestra_jax.io.whole import replacing
from orchestra_jax.tools.search.dense import FORMAT, MANIFEST, DenseIndex, PassageFile, require_faiss
from orchestra_jax.tools.search.embeddings import EndpointEmbedder
from orchestra_jax.tools.search.local import read_passages

KINDS = ("flat", "ivf", "hnsw")
ShowProgress = Callable[[str, int, int], None]

_PLAN = "plan.json"
_SHARDS = "vectors"
_TRAINING_ROWS = 64  # per IVF list; FAISS asks for at least 39
_DIVISIBLE = 40_320  # a dimension that any sensible number of sub-vectors divides
_NAMES = {"source": "passages", "kind": "kind of index"}  # in errors


async def build(
    source: str | Path,
    directory: str | Path,
    embedder: EndpointEmbedder,
    *,
    kind: str = "flat",
    shard: int = 8192,
    progress: ShowProgress = lambda stage, done, total: None,
) -> DenseIndex:
    """Embed the passages of a file, write their index and open it; continue where a killed build ended.

    The vectors are computed and stored shard by shard. FAISS then needs memory for all of them once (with a factory
    string of compressed vectors, such as SQ8 or PQ, for those).

    Args:
        source: `.jsonl` or `.json` file of passages, see `read_passages`.
        directory: of the index; a finished one of the same passages and settings is opened as it is.
        kind: "flat" (exact), "ivf" or "hnsw" (approximate), or a FAISS factory string such as "IVF65536,SQ8".
        shard: passages that are embedded and written at a time.
        progress: called with a stage, how many passages of it are done, and of how many.

    Raises:
        FileNotFoundError: no such source. ImportError: no FAISS.
        ValueError: bad passages or another kind, the folder is in use, or belongs to other passages or settings.
        InfrastructureError: the embedding server failed; run it again to go on.
    """
    source, directory = Path(source), Path(directory)
    if shard < 1:
        raise ValueError(f"shard must be at least 1, not {shard}.")
    _factory(kind, _DIVISIBLE, 1)  # a mistyped kind is found before hours of embedding
    wanted = {"format": FORMAT, "kind": kind, "embedder": embedder.identity, "source": _digest(source)}
    if (directory / MANIFEST).is_file():
        _agree(json.loads((directory / MANIFEST).read_text()), wanted, directory)
        _clean(directory)
        return DenseIndex.load(directory, embedder)
    if directory.exists():
        raise ValueError(f"{str(directory)!r} exists and holds no dense index; choose another folder.")
    partial = directory.with_name(f"{directory.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    with _alone(partial):
        plan = {**wanted, "shard": shard}
        if (partial / _PLAN).is_file():
            _agree(json.loads((partial / _PLAN).read_text()), plan, partial)
        else:
            _copy_passages(source, partial, progress)
            with _written(partial / _PLAN) as file:
                file.write(json.dumps(plan).encode())
        passages = PassageFile(partial / "passages.jsonl", partial / "offsets.npy")
        shards = await _embed(partial / _SHARDS, passages, embedder, shard, progress)
        dim = write_faiss(partial / "index.faiss", shards, len(passages), kind, progress)
        own = {"settings": embedder.settings, "dim": dim, "passages": len(passages)}
        with _written(partial / MANIFEST) as file:
            file.write(json.dumps({**wanted, **own}, indent=1).encode())
        partial.rename(directory)
        _clean(directory)
    return DenseIndex.load(directory, embedder)


def _agree(begun: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> None:
    """Raise ValueError if a folder was begun with something else."""
    for key in wanted:
        if begun.get(key) != wanted[key]:
            raise ValueError(
                f"{str(folder)!r} was built with another {_NAMES.get(key, key)} ({begun.get(key)}, not {wanted[key]}); "
                f"keep to that one, delete the folder, or choose another."
            )


@contextmanager
def _alone(partial: Path) -> Iterator[None]:
    """Keep other builds out of the folder; the lock goes with this process, however it ends."""
    folder = os.open(partial, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"Another process is building in {str(partial)!r}; wait for it.") from None
        yield
    finally:
        os.close(folder)


def _clean(directory: Path) -> None:
    shutil.rmtree(directory / _SHARDS, ignore_errors=True)
    (directory / _PLAN).unlink(missing_ok=True)


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """Open a file that is written whole or not at all: it is on the disk before it gets its name."""
    with replacing(path) as part, part.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _digest(source: Path) -> str:
    if not source.is_file():
        raise FileNotFoundError(f"No passages at {str(source)!r}; give a .jsonl or .json file with title and text.")
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy_passages(source: Path, partial: Path, progress: ShowProgress) -> None:
    offsets = [0]
    with _written(partial / "passages.jsonl") as file:
        for number, passage in enumerate(read_passages(source), 1):
            offsets.append(offsets[-1] + file.write(json.dumps(asdict(passage)).encode() + b"\n"))
            if number % 10_000 == 0:
                progress("read", number, 0)
    if len(offsets) == 1:
        raise ValueError(f"{str(source)!r} holds no passages.")
    with _written(partial / "offsets.npy") as file:
        np.save(file, np.asarray(offsets, np.int64))
    progress("read", len(offsets) - 1, len(offsets) - 1)


async def _embed(
    folder: Path, passages: PassageFile, embedder: EndpointEmbedder, shard: int, progress: ShowProgress
) -> list[Path]:
    """Return the files of the vectors of titles and texts, in order; compute those that are not there."""
    os.makedirs(folder, exist_ok=True)
    starts = range(0, len(passages), shard)
    paths = [folder / f"{number:06d}.npy" for number in range(len(starts))]
    for path, start in zip(paths, starts, strict=True):
        end = min(start + shard, len(passages))
        if not path.is_file():
            part = [passages[number] for number in range(start, end)]
            texts = [f"{passage.title}\n{passage.text}" if passage.title else passage.text for passage in part]
            vectors = np.asarray(await embedder.embed(texts, "passage"), np.float32)
            if len(vectors) != end - start:
                raise ValueError(f"The embedder gave {len(vectors)} vectors for {end - start} texts.")
            with _written(path) as file:
                np.save(file, vectors)
        progress("embed", end, len(passages))
    return paths


def write_faiss(
    path: Path, shards: Sequence[Path], count: int, kind: str, progress: ShowProgress = lambda stage, done, total: None
) -> int:
    """Write the FAISS index of the vectors in `shards`, `count` in all, and return their dimension."""
    faiss = require_faiss()
    dim = np.load(shards[0], mmap_mode="r").shape[1]
    index = _factory(kind, dim, count)
    if not index.is_trained:
        ivf = faiss.try_extract_index_ivf(index)
        wanted = _TRAINING_ROWS * max(1024, ivf.nlist if ivf is not None else 0)
        step = max(1, count // wanted)  # evenly spread over the collection, whose order may mean something
        index.train(np.concatenate([np.load(shard, mmap_mode="r")[::step] for shard in shards]))
    for shard in shards:
        index.add(np.load(shard))
        progress("index", index.ntotal, count)
    with replacing(path) as part:
        faiss.write_index(index, str(part))
    return int(dim)


def _factory(kind: str, dim: int, count: int) -> Any:
    """Make an empty FAISS index for inner products; raise ValueError for neither one of KINDS nor a factory string."""
    faiss = require_faiss()
    # FAISS advises 4 to 16 times the root of the count; every list needs vectors to train on.
    lists = max(1, min(int(4 * count**0.5), count // _TRAINING_ROWS))
    text = {"flat": "Flat", "ivf": f"IVF{lists},Flat", "hnsw": "HNSW32,Flat"}.get(kind, kind)
    try:
        index = faiss.index_factory(dim, text, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError:
        raise ValueError(
            f"{kind!r} is no kind of index; choose one of {', '.join(KINDS)} or a FAISS factory string."
        ) from None
    if kind == "hnsw":
        index.hnsw.efConstruction = 80  # twice FAISS' default: recall for some time of building
    return index
