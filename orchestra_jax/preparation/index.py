"""The authors' released retrieval index: taken as it is, its lines found, its vectors and passages counted."""

import asyncio
import os
from pathlib import Path

import numpy as np

from orchestra_jax.preparation.made import Made, Wanted
from orchestra_jax.tools.search.dense import FOREIGN_MODEL, DenseIndex
from orchestra_jax.tools.search.local import pair_of

_SAMPLE = 32  # passages whose own vectors are looked for
_NEAR = 5
_UNUSED = "http://127.0.0.1:9/v1"  # of an embedder that is asked nothing


def index(source: Path, folder: Path, wanted: Wanted) -> Made:
    """Put the index and its passages into the folder, without a copy where the disk allows it, and check them.

    Raises:
        OSError, ValueError: there is no pair, several and none is named, or it cannot be used; one sentence.
    """
    named = source / f"{wanted.index}.index" if wanted.index else source
    try:
        pair = pair_of(named)
    except ValueError as error:
        raise ValueError(f"{error} Choose one with --index NAME.") from None
    if pair is None:
        raise ValueError(f"There is no FAISS file NAME.index with passages NAME.jsonl at {str(named)!r}.")
    for path in pair:
        _put(path, folder / path.name)
    return asyncio.run(_checked(folder, wanted.embedder_url))


async def _checked(folder: Path, url: str | None) -> Made:
    """Open the pair and count it; with an embedding server, look up passages by their own vectors."""
    opened = DenseIndex.load(folder, embedder_url=url or _UNUSED)
    try:
        made = Made()
        made.counts["kept"] = len(opened.passages)
        made.counts["dimensions"] = opened.dim
        numbers = np.linspace(0, len(opened.passages) - 1, min(_SAMPLE, len(opened.passages)), dtype=int)
        sample = [opened.passages[int(number)] for number in numbers]
        if url is None:
            made.said.append(
                f"Whether {FOREIGN_MODEL} gives the vectors of this index was not checked: --embedder-url does."
            )
            return made
        texts = [f"{passage.title}\n{passage.text}" if passage.title else passage.text for passage in sample]
        found = await opened.nearest(await opened.embedder.embed(texts, "passage"), _NEAR)
        hits = sum(passage in [hit.passage for hit in near] for passage, near in zip(sample, found, strict=True))
        made.said.append(f"{hits} of {len(sample)} passages are among the {_NEAR} nearest to their own vectors.")
        if 2 * hits < len(sample):
            raise ValueError(f"{made.said[-1]} So {url} serves another model than the one that built the index.")
        return made
    finally:
        await opened.close()


def _put(source: Path, target: Path) -> None:
    """Give a file a second name in the folder, or where it lies on another disk, a link."""
    source = source.resolve()
    try:
        os.link(source, target)
    except OSError:
        target.symlink_to(source)
