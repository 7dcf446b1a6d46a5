"""Local search: recall@10 against exact search and queries/s, and how often a question's passage is found.

    ORCHESTRA_DATA=... .venv/bin/python benchmarks/_tools/search.py
    ORCHESTRA_DATA=... .venv/bin/python benchmarks/_tools/search.py --url http://127.0.0.1:30000/v1
    .venv/bin/python benchmarks/_tools/search.py --vectors 20000 --rounds 1    # a smoke run

Vectors: with --url, the 6,119 passages of ORCHESTRA_DATA, embedded by that server, with 500 of their own sentences as
queries; and a million synthetic ones of 128 numbers (512 MB): wide Gaussians around 1,000 centres, queries from the
same. They are indexed and tuned as `dense_build` and `DenseIndex` do, and memory-mapped. Queries come 100 at a time, as
they do from a retrieval server under load, and one by one; FAISS may use all cores.

Finding: a question's gold passage is among the first 1, 3 or 10. The corpus has no questions of its own, so there are
two stand-ins. "named": questions of HotpotQA that name a title of the corpus of at least two words; gold is that
passage. "cloze": a sentence that was taken out of a passage, without the words of its title; gold is the passage.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np

from orchestra_jax.tools.search import dense as dense_search
from orchestra_jax.tools.search import dense_build
from orchestra_jax.tools.search.bm25 import LocalIndex, Passage
from orchestra_jax.tools.search.embeddings import EndpointEmbedder
from orchestra_jax.tools.search.local import read_passages

K = 10
BATCH = 100
Row = dict[str, Any]
Cases = list[tuple[str, set[int]]]


def measure(rounds: int, vectors: int = 1_000_000, url: str = "", model: str = "Qwen/Qwen3-Embedding-8B") -> list[Row]:
    """One row per thing measured: {what, median, best, unit, note}.

    Args:
        rounds: times that the queries are searched; the median counts.
        vectors: synthetic ones.
        url, model: an embedding server for the passages; without one they are searched by words alone.
    """
    rows: list[Row] = []
    data = os.environ.get("ORCHESTRA_DATA")
    if data:
        passages = list(read_passages(Path(data) / "wiki_corpus" / "2wikimultihopqa_corpus.json"))
        if url:
            embedded = embed(url, model, texts_of(passages), "passage")
            queries = embed(url, model, [query for query, _ in cloze(passages, 500)[1]], "query")
            rows += indices(f"{len(passages):,} passages", embedded, queries, rounds)
    rows += indices(f"{vectors:,} synthetic", *synthetic(vectors, 128), rounds)
    if data:
        questions = json.loads((Path(data) / "qa_sets" / "hotpot_dev_v1_simplified.json").read_text())
        rows += finding("named", passages, named(passages, [row["question"] for row in questions]), url, model)
        rows += finding("cloze", *cloze(passages, 1000), url, model)
    return rows


def texts_of(passages: Sequence[Passage]) -> list[str]:
    """What is embedded of each passage."""
    return [f"{passage.title}\n{passage.text}" for passage in passages]


def embed(url: str, model: str, texts: Sequence[str], kind: Literal["passage", "query"]) -> np.ndarray:
    """The vectors of texts, [N, D], from a server."""

    async def run() -> np.ndarray:
        embedder = EndpointEmbedder(url, model)
        try:
            return await embedder.embed(texts, kind)
        finally:
            await embedder.close()

    return asyncio.run(run())


def synthetic(count: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """(vectors, 1,000 queries), float32 rows of length 1."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((max(1, count // 1000), dim), dtype=np.float32)

    def around(number: int) -> np.ndarray:
        rows = centres[rng.integers(0, len(centres), number)]
        rows += 2 * rng.standard_normal((number, dim), dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    return around(count), around(1000)


def indices(corpus: str, vectors: np.ndarray, queries: np.ndarray, rounds: int) -> list[Row]:
    """Recall@10 and speed of every kind on the same vectors."""
    rows, exact = [], np.zeros(0)
    with tempfile.TemporaryDirectory() as folder:
        for kind in dense_build.KINDS:
            path = Path(folder)
            start = time.perf_counter()
            np.save(path / "shard.npy", vectors)
            dense_build.write_faiss(path / "index.faiss", [path / "shard.npy"], len(vectors), kind)
            built = time.perf_counter() - start
            index = dense_search.read_index(path / "index.faiss")
            dense_search.tune(index)
            found = index.search(queries, K)[1]
            exact = found if kind == "flat" else exact
            recall = statistics.mean(len(set(ours) & set(best)) / K for ours, best in zip(found, exact, strict=True))
            size = (path / "index.faiss").stat().st_size / 2**20
            what = f"{corpus}, {kind}"
            measured = [
                row(f"{what}: recall@10", [recall], "", f"built in {built:.1f} s, {size:,.0f} MB"),
                row(f"{what}: in batches", rates(index, queries, BATCH, rounds), "queries/s", f"{BATCH} at a time"),
                row(f"{what}: one by one", rates(index, queries[:200], 1, rounds), "queries/s"),
            ]
            for line in measured:  # a million vectors take their time: HNSW many minutes
                print(
                    f"{line['what']} {line['median']:,.3f} {line['unit'] or line['note']}", file=sys.stderr, flush=True
                )
            rows += measured
    return rows


def row(what: str, values: Sequence[float], unit: str = "", note: str = "") -> Row:
    return {"what": what, "median": statistics.median(values), "best": max(values), "unit": unit, "note": note}


def rates(index: Any, queries: np.ndarray, batch: int, rounds: int) -> list[float]:
    """Queries per second of each round."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for first in range(0, len(queries), batch):
            index.search(queries[first : first + batch], K)
        found.append(len(queries) / (time.perf_counter() - start))
    return found


def named(passages: Sequence[Passage], questions: Sequence[str]) -> Cases:
    """Questions that name a title of at least two words, brackets aside; gold are the passages of that title."""
    titles: dict[str, set[int]] = {}
    for number, passage in enumerate(passages):
        title = re.sub(r"\s*\(.*\)", "", passage.title).strip()
        if len(title.split()) > 1:
            titles.setdefault(title, set()).add(number)
    cases = ((question, [gold for title, gold in titles.items() if title in question]) for question in questions)
    return [(question, set().union(*gold)) for question, gold in cases if gold]


def cloze(passages: Sequence[Passage], count: int) -> tuple[list[Passage], Cases]:
    """(the passages, each of the chosen ones without one sentence; those sentences without the titles' words)."""
    rng = random.Random(0)
    chosen = []
    for number, passage in enumerate(passages):
        sentences = [part for part in re.split(r"(?<=[.!?])\s+", passage.text) if len(part.split()) > 7]
        if len(sentences) > 2:
            chosen.append((number, rng.choice(sentences[1:])))
    left, cases = list(passages), []
    for number, sentence in rng.sample(chosen, min(count, len(chosen))):
        passage = passages[number]
        title = set(re.findall(r"\w+", passage.title.lower()))
        query = " ".join(word for word in re.findall(r"\w+", sentence) if word.lower() not in title)
        left[number] = Passage(passage.title, passage.text.replace(sentence, " "))
        cases.append((query, {number}))
    return left, cases


def finding(questions: str, passages: Sequence[Passage], cases: Cases, url: str, model: str) -> list[Row]:
    """How often a gold passage is among the first 1, 3 and 10: BM25, and exact search of a server's vectors."""
    keyword, numbers = LocalIndex.build(passages), {id(passage): n for n, passage in enumerate(passages)}
    queries = [query for query, _ in cases]
    tops = {"bm25": [[numbers[id(hit.passage)] for hit in keyword.search(query, K)] for query in queries]}
    if url:
        scores = embed(url, model, queries, "query") @ embed(url, model, texts_of(passages), "passage").T
        tops[model] = np.argsort(-scores, axis=1, kind="stable")[:, :K].tolist()
    return [
        row(
            f"{method}, {len(cases)} {questions} questions: hit@{k}",
            [statistics.mean(bool(gold & set(top[:k])) for (_, gold), top in zip(cases, found, strict=True))],
        )
        for method, found in tops.items()
        for k in (1, 3, 10)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--url", default="", help="base of an embedding server for the passages")
    parser.add_argument("--model", default="Qwen/Qwen3-Embedding-8B", help="name at the embedding server")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = measure(options.rounds, options.vectors, options.url, options.model)
    print(f"FAISS {faiss.__version__}, {faiss.omp_get_max_threads()} threads")
    for each in rows:
        value = f"{each['median']:,.0f}" if each["unit"] else f"{each['median']:.3f}"
        print(f"{each['what']:55} {value:>9} {each['unit']:10} {each['note']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
