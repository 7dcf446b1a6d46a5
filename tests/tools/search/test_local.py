"""LocalIndex: ranking by hand, saving, real passages, speed."""

import json
import math
import os
import time
from pathlib import Path

import pytest

from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.search.bm25 import NO_RESULTS, LocalIndex, Passage
from orchestra_jax.tools.search.local import load_index, read_passages, save_index, search_handler

PASSAGES = [
    Passage("Oslo", "Oslo is the capital of Norway and a port."),
    Passage("Rome", "Rome is the capital of Italy."),
    Passage("Fjord", "A fjord is a long narrow inlet; Norway has many, and Norway is proud of them."),
    Passage("", "Nothing of interest."),
]


@pytest.fixture(scope="module")
def index() -> LocalIndex:
    return LocalIndex.build(PASSAGES)


def test_ranking(index: LocalIndex):
    assert [hit.passage.title for hit in index.search("capital of Italy")] == ["Rome", "Oslo"]
    assert [hit.passage.title for hit in index.search("norway")] == ["Fjord", "Oslo"]
    assert [hit.passage.title for hit in index.search("NORWAY capital", k=1)] == ["Oslo"]


def test_score_is_bm25(index: LocalIndex):
    """Lucene's BM25 with k1 = 1.5, b = 0.75, stop words left out."""
    lengths = [5, 4, 11, 2]  # of words that are not stop words
    (hit,) = index.search("italy")
    idf = math.log(1 + (4 - 1 + 0.5) / (1 + 0.5))
    average = sum(lengths) / 4
    assert hit.score == pytest.approx(idf * 1 / (1 + 1.5 * (1 - 0.75 + 0.75 * lengths[1] / average)), rel=1e-5)


def test_no_match_and_empty_queries(index: LocalIndex):
    for query in ("", "  ", "?!", "the of and", "zebra"):
        assert index.search(query) == []
        assert index.answer(query) == NO_RESULTS


def test_answer_cuts_long_passages():
    text = LocalIndex.build([Passage("T", "word " * 200)]).answer("word")
    assert text == f"T: {'word ' * 200}"[:500] + "..."
    assert LocalIndex.build([Passage("", "alone")]).answer("alone") == "alone"


def test_equal_scores_keep_their_order():
    index = LocalIndex.build([Passage(str(i), "same words") for i in range(10)])
    assert [hit.passage.title for hit in index.search("same", k=4)] == ["0", "1", "2", "3"]


def test_save_and_load(index: LocalIndex, tmp_path: Path):
    save_index(index, tmp_path / "index")
    loaded = load_index(tmp_path / "index")
    assert loaded.passages == index.passages
    for query in ("capital", "norway port", "zebra"):
        assert loaded.search(query) == index.search(query)
    with pytest.raises(FileNotFoundError, match="No local index"):
        load_index(tmp_path)


def test_saving_again_replaces_and_never_mixes(index: LocalIndex, tmp_path: Path):
    save_index(index, tmp_path / "index")
    (tmp_path / ".index.partial").mkdir()  # of a save that was killed
    (tmp_path / ".index.partial" / "junk").touch()
    save_index(LocalIndex.build(PASSAGES[:1]), tmp_path / "index")
    assert load_index(tmp_path / "index").passages == tuple(PASSAGES[:1])
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert not (tmp_path / "index" / "junk").exists()
    with pytest.raises(ValueError, match="is a folder with other files"):
        save_index(index, tmp_path)
    with pytest.raises(ValueError, match=r"params.index.json' is a file; name a folder for the local index."):
        save_index(index, tmp_path / "index" / "params.index.json")


async def test_handler(index: LocalIndex):
    result = await search_handler(index, 1)({"query": "capital of Italy"}, Budget())
    assert result.text == "Rome: Rome is the capital of Italy."
    (row,) = result.usage
    assert (row.name, row.role, row.cost_usd) == ("local_search", "tool", 0.0)
    assert row.seconds > 0


def test_errors(index: LocalIndex):
    with pytest.raises(ValueError, match="at least 1"):
        index.search("x", k=0)
    for passages in ([], [Passage("", "the")]):
        with pytest.raises(ValueError, match="at least one passage"):
            LocalIndex.build(passages)


def test_readers(tmp_path: Path):
    rows = [{"title": passage.title, "text": passage.text} for passage in PASSAGES]
    (tmp_path / "p.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "p.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    for name in ("p.json", "p.jsonl"):
        assert list(read_passages(tmp_path / name)) == PASSAGES
    (tmp_path / "bad.jsonl").write_text('{"title": "a", "text": "b"}\n{"title": "a"}\n')
    with pytest.raises(ValueError, match=r"Row 2 of 'bad.jsonl' has no 'text'"):
        list(read_passages(tmp_path / "bad.jsonl"))
    for odd in (b'{"title": "caf\xe9", "text": "b"}', b"[]", rb'{"title": "\ud83d", "text": "b"}', b"[" * 100_000):
        (tmp_path / "odd.jsonl").write_bytes(odd)
        with pytest.raises(ValueError, match=r"odd.jsonl', line 1: "):
            list(read_passages(tmp_path / "odd.jsonl"))
    for row in ('{"title": null, "text": "b"}', '{"text": "b"}', '{"id": "0", "contents": "b"}'):
        (tmp_path / "null.jsonl").write_text(row)
        assert list(read_passages(tmp_path / "null.jsonl")) == [Passage("", "b")]
    for row, key in (('{"title": 5, "text": "b"}', "title"), ("{}", "text"), ('{"contents": ["b"]}', "contents")):
        (tmp_path / "null.jsonl").write_text(row)
        with pytest.raises(ValueError, match=f"has no '{key}' that is a text"):
            list(read_passages(tmp_path / "null.jsonl"))
    (tmp_path / "worse.json").write_text("[")
    with pytest.raises(ValueError, match="not valid JSON"):
        list(read_passages(tmp_path / "worse.json"))
    with pytest.raises(FileNotFoundError, match="No passages"):
        list(read_passages(tmp_path / "none.json"))


@pytest.mark.skipif("ORCHESTRA_DATA" not in os.environ, reason="needs ORCHESTRA_DATA")
def test_wiki_corpus_finds_titles_fast():
    path = Path(os.environ["ORCHESTRA_DATA"]) / "wiki_corpus" / "2wikimultihopqa_corpus.json"
    passages = list(read_passages(path))[:1500]
    index = LocalIndex.build(passages)
    queries = [f"{passage.title} {passage.text[:60]}" for passage in passages[:200]]
    start = time.process_time()
    firsts = [index.search(query, 3)[0].passage for query in queries]
    seconds = (time.process_time() - start) / len(queries)
    assert sum(first == passage for first, passage in zip(firsts, passages, strict=False)) >= 198
    assert seconds < 1e-3
