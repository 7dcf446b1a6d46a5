"""Dense indices with real FAISS: against brute force, across kill -9, on disk, and every kind of mismatch."""

import asyncio
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("faiss")

from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.search import dense_build
from orchestra_jax.tools.search.bm25 import NO_RESULTS, Passage
from orchestra_jax.tools.search.dense import MANIFEST, DenseIndex, PassageFile, tune
from orchestra_jax.tools.search.embeddings import EndpointEmbedder
from orchestra_jax.tools.search.local import search_handler
from orchestra_jax.types import InfrastructureError
from tests.tools.http_stub import EmbeddingStub, WordEmbedder, serving

TOPICS = "river mountain opera engine violin harvest comet glacier senate bakery".split()
RNG = np.random.default_rng(0)
PAIRS = [(TOPICS[i % 10], TOPICS[int(other)]) for i, other in enumerate(RNG.integers(0, 10, 2000))]
PASSAGES = [Passage(f"Place {i}", f"{one} {two} town{i} é, {i % 7} miles") for i, (one, two) in enumerate(PAIRS)]
WAIT_S = 300.0
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "passages.jsonl"
    path.write_text("".join(json.dumps({"title": p.title, "text": p.text}) + "\n" for p in PASSAGES))
    return path


def texts_of(passages) -> list[str]:
    return [f"{p.title}\n{p.text}" if p.title else p.text for p in passages]


@pytest.mark.parametrize(("kind", "recall"), [("flat", 1.0), ("ivf", 0.99), ("hnsw", 0.95), ("IVF16,SQ8", 0.8)])
async def test_recall_against_brute_force(source: Path, tmp_path: Path, kind: str, recall: float):
    embedder = WordEmbedder(48)  # vectors as near to each other as those of a language model
    index = await dense_build.build(source, tmp_path / "index", embedder, kind=kind, shard=300)
    assert sorted(os.listdir(tmp_path)) == ["index"]
    assert sorted(os.listdir(tmp_path / "index")) == [
        "index.faiss", MANIFEST, "offsets.npy", "passages.jsonl"
    ]  # fmt: skip
    queries = [f"{TOPICS[i % 10]} town{i * 7}" for i in range(100)]
    exact = embedder.embed_now(queries) @ embedder.embed_now(texts_of(PASSAGES)).T
    found = await index.search_batch(queries, 10)
    share = []
    for scores, hits in zip(exact, found, strict=True):
        numbers = [int(hit.passage.title.removeprefix("Place ")) for hit in hits]
        assert [PASSAGES[number] for number in numbers] == [hit.passage for hit in hits]
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        tolerance = 0.05 if "SQ8" in kind else 1e-5
        np.testing.assert_allclose([hit.score for hit in hits], scores[numbers], atol=tolerance)
        threshold = np.sort(scores)[-10] - 1e-5  # equal scores may come in either order
        share.append(np.mean([scores[number] >= threshold for number in numbers]))
    assert np.mean(share) >= recall
    assert (await index.search(queries[3], 1))[0].passage == PASSAGES[21]


async def test_searches_and_answers(source: Path, tmp_path: Path):
    index = await dense_build.build(source, tmp_path / "index", WordEmbedder())
    assert await index.search("  ") == []
    assert await index.answer("") == NO_RESULTS
    assert len(await index.search("river", 5000)) == 2000
    (first, _) = (await index.answer("town77 violin", 2)).splitlines()
    assert first.startswith("Place 77: gl")
    result = await search_handler(index, 1)({"query": "town5"}, Budget())
    assert result.text.startswith("Place 5:")
    assert result.usage[0].seconds > 0
    with pytest.raises(ValueError, match="at least 1"):
        await index.search("x", 0)
    one_by_one = [await index.search(f"town{i}", 3) for i in range(20)]
    assert await asyncio.gather(*(index.search(f"town{i}", 3) for i in range(20))) == one_by_one
    for together, alone in zip(await index.search_batch([f"town{i}" for i in range(20)], 3), one_by_one, strict=True):
        assert together[0].passage == alone[0].passage
        # Sums of a batch are added in another order.
        assert [hit.score for hit in together] == pytest.approx([hit.score for hit in alone], abs=1e-5)
    await index.close()


async def test_an_index_is_opened_from_disk(source: Path, tmp_path: Path):
    for kind in dense_build.KINDS:
        built = await dense_build.build(source, tmp_path / kind, WordEmbedder(), kind=kind)
        expected = await built.search_batch(["opera town12", "comet"], 5)
        loaded = DenseIndex.load(tmp_path / kind, WordEmbedder())
        assert await loaded.search_batch(["opera town12", "comet"], 5) == expected
        assert loaded.kind == kind
        assert list(loaded.passages) == PASSAGES
        assert [loaded.passages[i] for i in (1998, 1999)] == PASSAGES[-2:]


def test_vectors_are_not_in_memory(tmp_path: Path):
    """A process of its own, since memory that others freed hides what is taken."""
    script = """
import sys, faiss, numpy as np
from orchestra_jax.tools.search.dense import read_index
def private():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon"))
before = private()
index = read_index(sys.argv[1])
index.search(np.ones((1, 256), np.float32), 3)
print((private() - before) // 1024)
"""
    import faiss

    index = faiss.IndexFlatIP(256)
    index.add(np.ones((100_000, 256), np.float32))  # 98 MiB
    faiss.write_index(index, str(tmp_path / "index"))
    command = [sys.executable, "-c", script, str(tmp_path / "index")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S)
    assert int(done.stdout) < 20


BUILD = """
import asyncio, os, sys
from orchestra_jax.tools.search import dense_build
from tests.tools.http_stub import WordEmbedder
source, target, kind, shards, go = sys.argv[1:]
calls = 0
class Held(WordEmbedder):
    async def embed(self, texts, kind="passage"):
        global calls
        calls += 1
        while calls > int(shards) and not os.path.exists(go):
            await asyncio.sleep(0.02)
        return await super().embed(texts, kind)
asyncio.run(dense_build.build(source, target, Held(), kind=kind, shard=100))
"""


def begin(source: Path, target: Path, kind: str, shards: int, go: Path) -> "subprocess.Popen[bytes]":
    """A build in another process that waits after so many shards until the file `go` is there."""
    process = subprocess.Popen([sys.executable, "-c", BUILD, str(source), str(target), kind, str(shards), str(go)])
    end = time.monotonic() + WAIT_S
    folder = target.with_name(f"{target.name}.partial") / "vectors"
    before = len(list(folder.glob("*.npy")))
    while not folder.is_dir() or len(list(folder.glob("*.npy"))) < before + shards:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("kind", dense_build.KINDS)
def test_a_killed_build_goes_on_and_gives_the_same_index(source: Path, tmp_path: Path, kind: str):
    asyncio.run(dense_build.build(source, tmp_path / "whole", WordEmbedder(), kind=kind, shard=100))
    target, partial = tmp_path / "killed", tmp_path / "killed.partial"

    def shards() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in (partial / "vectors").glob("*.npy")}

    for count in (1, 7):
        process = begin(source, target, kind, count - len(shards()), tmp_path / "never")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(shards()) == count
        assert not target.exists()
        with pytest.raises(FileNotFoundError, match="its build was not finished: run that again"):
            DenseIndex.load(target)
    (partial / "vectors" / ".000019.npy.part").write_bytes(b"half a file")
    kept, seen = shards(), []
    again = dense_build.build(
        source, target, WordEmbedder(), kind=kind, shard=100,
        progress=lambda stage, done, total: seen.append((stage, done, total, shards())),
    )  # fmt: skip
    asyncio.run(again)
    stage, done, total, final = seen[-1]
    assert (stage, done, total, len(final)) == ("index", 2000, 2000, 20)
    assert kept.items() <= final.items()  # nothing was embedded twice
    for name in ("index.faiss", "passages.jsonl", MANIFEST):
        assert (target / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert sorted(os.listdir(tmp_path)) == ["killed", "whole"]


async def test_a_failed_embedding_server_leaves_nothing_half_and_can_go_on(source: Path, tmp_path: Path):
    stub = EmbeddingStub()

    async def dies(request):
        from aiohttp import web

        return await stub(request) if len(stub.bodies) < 7 else web.Response(status=400)

    async with serving(dies) as url:
        embedder = EndpointEmbedder(url, "m", batch=100)
        with pytest.raises(InfrastructureError, match="status 400"):
            await dense_build.build(source, tmp_path / "index", embedder, shard=300)
        await embedder.close()
    assert os.listdir(tmp_path) == ["index.partial"]
    assert sorted(os.listdir(tmp_path / "index.partial" / "vectors")) == ["000000.npy", "000001.npy"]
    async with serving(stub) as url:  # another address: the same embedder
        asked = len(stub.bodies)
        index = await dense_build.build(source, tmp_path / "index", EndpointEmbedder(url, "m", batch=100), shard=300)
        assert len(stub.bodies) - asked == 14  # of 20 requests, 6 were kept
        (hit,) = await index.search("Place 7", 1)
        assert hit.score > 0
        await index.close()
    async with serving(stub) as url:
        index = DenseIndex.load(tmp_path / "index", embedder_url=url)
        assert len(await index.search("Place 7", 2)) == 2
        await index.close()


async def test_a_finished_index_is_opened_as_it_is(source: Path, tmp_path: Path):
    await dense_build.build(source, tmp_path / "index", WordEmbedder())
    before = (tmp_path / "index" / "index.faiss").stat().st_mtime_ns
    (tmp_path / "index" / "vectors").mkdir()  # killed before the last clean-up
    index = await dense_build.build(source, tmp_path / "index", WordEmbedder())
    assert (await index.search("town5", 1))[0].passage == PASSAGES[5]
    assert (tmp_path / "index" / "index.faiss").stat().st_mtime_ns == before
    assert not (tmp_path / "index" / "vectors").exists()


async def test_mismatches_are_one_sentence(source: Path, tmp_path: Path):
    await dense_build.build(source, tmp_path / "index", WordEmbedder())
    other = tmp_path / "other.jsonl"
    other.write_text('{"title": "a", "text": "something else"}\n')
    for path, embedder, kind, problem in [
        (other, WordEmbedder(), "flat", "another passages"),
        (source, WordEmbedder(seed=1), "flat", "another embedder"),
        (source, WordEmbedder(), "hnsw", r"another kind of index \(flat, not hnsw\)"),
    ]:
        with pytest.raises(ValueError, match=problem):
            await dense_build.build(path, tmp_path / "index", embedder, kind=kind)
    with pytest.raises(ValueError, match="use the same embedder, or build it again"):
        DenseIndex.load(tmp_path / "index", WordEmbedder(seed=1))
    with pytest.raises(ValueError, match="embedded by 'words'; pass that embedder"):
        DenseIndex.load(tmp_path / "index")
    index = DenseIndex.load(tmp_path / "index", WordEmbedder())
    index.embedder = WordEmbedder(8)
    with pytest.raises(ValueError, match="vectors of 8 numbers and the index holds 128"):
        await index.search("words")
    with pytest.raises(ValueError, match="'flta' is no kind of index; choose one of flat, ivf, hnsw"):
        await dense_build.build(source, tmp_path / "new", WordEmbedder(), kind="flta")
    with pytest.raises(FileNotFoundError, match=r"No dense index in .*; build one with experiments/index.py"):
        DenseIndex.load(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="No passages at"):
        await dense_build.build(tmp_path / "none.jsonl", tmp_path / "new", WordEmbedder())
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="holds no passages"):
        await dense_build.build(tmp_path / "empty.jsonl", tmp_path / "new", WordEmbedder())
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match="holds no dense index; choose another folder"):
        await dense_build.build(source, tmp_path / "mine", WordEmbedder())


async def test_damage_is_seen(source: Path, tmp_path: Path):
    await dense_build.build(source, tmp_path / "index", WordEmbedder())
    with (tmp_path / "index" / "passages.jsonl").open("a") as file:
        file.write('{"title": "", "text": ""}\n')
    with pytest.raises(ValueError, match="was changed after the build"):
        DenseIndex.load(tmp_path / "index", WordEmbedder())
    await dense_build.build(source, tmp_path / "short", WordEmbedder())
    offsets = np.load(tmp_path / "short" / "offsets.npy")
    np.save(tmp_path / "short" / "offsets.npy", np.delete(offsets, 5))
    with pytest.raises(ValueError, match="2000 vectors for 1999 passages"):
        DenseIndex.load(tmp_path / "short", WordEmbedder())
    assert len(PassageFile(tmp_path / "short" / "passages.jsonl", tmp_path / "short" / "offsets.npy")) == 1999


def test_two_builds_of_one_folder_at_once(source: Path, tmp_path: Path):
    process = begin(source, tmp_path / "index", "flat", 0, tmp_path / "go")
    with pytest.raises(ValueError, match="Another process is building"):
        asyncio.run(dense_build.build(source, tmp_path / "index", WordEmbedder(), shard=100))
    (tmp_path / "go").touch()
    assert process.wait(WAIT_S) == 0
    assert len(DenseIndex.load(tmp_path / "index", WordEmbedder()).passages) == 2000


async def test_the_command_builds_and_says_what_is_wrong(source: Path, tmp_path: Path, monkeypatch, capsys):
    main = runpy.run_path(str(ROOT / "experiments" / "index.py"))["main"]

    async def run(*arguments: str) -> tuple[int, str]:
        """(exit status, what was printed) in this process: each new one imports for seconds."""
        monkeypatch.setattr(sys, "argv", ["index.py", str(source), *arguments])
        try:
            await asyncio.to_thread(main)
        except SystemExit as end:
            return int(end.code or 0), capsys.readouterr().err
        return 0, capsys.readouterr().out

    async with serving(EmbeddingStub()) as url:
        for folder, options in (("flat", ["--url", url]), ("bm25", ["--kind", "bm25"])):
            status, said = await run(str(tmp_path / folder), *options)
            assert status == 0
            assert f"2000 passages in {tmp_path / folder}" in said.replace("\n", " ")
        status, said = await run(str(tmp_path / "flat"), "--kind", "hnsw", "--url", url)
        assert status == 2
        assert "another kind of index" in said
    status, said = await run(str(tmp_path / "ivf"), "--kind", "ivf")
    assert status == 2
    assert "--kind ivf needs --url, an embedding server's base" in said


def test_the_command_as_a_program_ends_with_one_sentence(tmp_path: Path):
    command = [sys.executable, "experiments/index.py", str(tmp_path / "none.jsonl"), str(tmp_path), "--kind", "bm25"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, env=environment)
    assert done.returncode == 2
    assert "No passages at" in done.stderr
    assert "Traceback" not in done.stderr


def test_approximate_search_is_tuned_and_can_be():
    import faiss

    vectors = RNG.standard_normal((5000, 16), dtype=np.float32)
    for kind, name, default in (
        ("IVF100,Flat", "nprobe", 64),
        ("IVF20,Flat", "nprobe", 20),
        ("HNSW8", "efSearch", 128),
    ):
        index = faiss.index_factory(16, kind, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        tuned = getattr(index, "hnsw", index)
        tune(index)
        assert getattr(tuned, name) == default
        tune(index, probes=3, ef_search=3)
        assert getattr(tuned, name) == 3
    tune(faiss.IndexFlatIP(16))
