"""The paper's data from small copies with the real columns: kept, set aside and told; kills; and the run after."""

import datetime
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestra_jax.config.experiment import unprepared
from orchestra_jax.data.sources import load_tasks
from orchestra_jax.envs.toolscale import domains, tasks
from orchestra_jax.preparation import paper
from orchestra_jax.preparation.made import Wanted
from orchestra_jax.processes.lock import alone_in
from tests.composed import composed
from tests.envs.toolscale import library
from tests.tools.http_stub import EmbeddingStub, serving, word_vector

faiss = pytest.importorskip("faiss")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 120.0
DIM = 16


def thought(number: int, reference: Any, score: float | None, question: str = "") -> dict[str, Any]:
    """Return a row of GeneralThought-430K, with all of its columns."""
    return {
        "question_id": number, "question_url": "https://gr.inc/x", "question": question or f"How many is {number}?",
        "prev_messages": None, "reference_answer": reference, "model_name": "DeepSeek/DeepSeek-R1", "model_answer": "6",
        "model_reasoning": "long " * 2000, "task": "Arithmetic", "question_license": "MIT", "question_source": "made",
        "community_question_score": 0, "community_answer_score": 0, "verifier_score": score,
    }  # fmt: skip


THOUGHTS = [
    thought(1, "6", 0.0), thought(1, "6", 1.0), thought(2, "", 1.0), thought(3, "  \n", 1.0), thought(4, None, 0.0),
    thought(5, "7", 1.0), thought(5, "7", 1.0), thought(6, "8", 0.0), thought(7, None, 1.0), thought(7, "9", 0.0),
    thought(8, "1", None), thought(9, "2", 0.5, " "),
]  # fmt: skip
HLE = [
    {
        "id": f"h{number}", "question": "q", "image": "data:image/png;base64,AAAA" * (number == 2),
        "image_preview": None, "answer": "a", "answer_type": "exactMatch",
        "author_name": "x", "rationale": "r", "rationale_image": None,
        "raw_subject": "Logic", "category": "Math", "canary": "c",
    }
    for number in range(1, 4)
]  # fmt: skip
TEXTS = [f"Passage of town{number} and {word}" for number, word in enumerate("river opera comet senate".split() * 10)]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def unit(texts: list[str]) -> np.ndarray:
    vectors = np.asarray([word_vector(text, DIM) for text in texts], np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_index(folder: Path, name: str = "eval") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    index = faiss.IndexFlatIP(DIM)
    index.add(unit(TEXTS))
    faiss.write_index(index, str(folder / f"{name}.index"))
    lines = [json.dumps({"id": str(number), "contents": text}) for number, text in enumerate(TEXTS)]
    (folder / f"{name}.jsonl").write_text("\n".join(lines))  # the last line has no end


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small copies of all sources under the names that downloads have."""
    folder = tmp_path_factory.mktemp("copies")
    write_parquet(folder / "GeneralThought-430K/data.parquet", THOUGHTS)
    write_parquet(folder / "hle/test.parquet", HLE)
    (folder / "frames-benchmark").mkdir()
    (folder / "frames-benchmark/test.tsv").write_text(
        "\tPrompt\tAnswer\twikipedia_link_1\treasoning_types\twiki_links\n0\tWho?\tJane\thttps://x\tTabular\t['x']\n"
    )
    rows = [library.row(number, [("get_member", {"member_id": "M1"})], ["Ada"]) for number in range(3)]
    rows[0]["evaluation_criteria"]["actions"][0]["arguments"]["since"] = datetime.datetime(2024, 5, 1)
    rows[2]["user_scenario"]["instructions"]["domain"] = ""
    write_parquet(folder / "ToolScale/data.parquet", rows)
    library.write(folder / "ToolOrchestra")
    (folder / "ToolOrchestra/LICENSE").write_text("Apache")
    write_index(folder / "index")
    return folder


def prepared(folder: Path, given: Path, *only: str, **wanted: Any) -> tuple[list[str], list[str]]:
    """Return the problems and all that was said."""
    said = list[str]()
    parts = [part for part in paper.PARTS if not only or part.name in only]
    return paper.prepare(parts, folder, given, Wanted(**wanted), said.append), said


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("run.lock", paper.ACCOUNT))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_every_part_is_made_counted_and_not_made_twice(copies: Path, tmp_path: Path) -> None:
    (copies / "index/eval.index").chmod(0o440)
    problems, said = prepared(tmp_path, copies)
    assert problems == []
    account = json.loads((tmp_path / paper.ACCOUNT).read_text())
    assert account["general_thought"]["counts"] == {
        "rows": 12, "further answers to a question": 2, "kept": 5, "set aside: blank reference answer": 3,
        "set aside: unusable row": 1,
    }  # fmt: skip
    found = load_tasks(tmp_path / "general_thought", "general_thought")
    assert [(each.id, each.answer) for each in found] == [
        ("1", ("6",)), ("5", ("7",)), ("6", ("8",)), ("7", ("9",)), ("8", ("1",)),
    ]  # fmt: skip
    assert sorted((tmp_path / "general_thought/set_aside.txt").read_text().splitlines())[:2] == [
        "2\tblank reference answer", "3\tblank reference answer"
    ]  # fmt: skip
    assert b"model_reasoning" not in contents(tmp_path)["general_thought/questions.jsonl"]
    assert [each.id for each in load_tasks(tmp_path / "hle", "hle")] == ["h1", "h3"]
    assert account["hle"]["counts"]["with a picture"] == 1
    assert load_tasks(tmp_path / "frames/frames.jsonl", "frames")[0].answer == ("Jane",)
    plain, broken = tasks.read_all(tmp_path / "toolscale")
    assert broken == []
    assert plain == tasks.read_all(copies / "ToolScale")[0]
    assert account["toolscale"]["counts"]["set aside"] == 1
    assert "cannot be read" in account["toolscale"]["said"][0]
    code = domains.code_folder(tmp_path / "toolscale_tools")
    data = domains.data_folders(None, tmp_path / "toolscale_tools")
    assert domains.data_of("library", data) is not None
    assert (code / "other/utils.py").is_file()
    assert account["retrieval_index"]["counts"] == {"kept": 40, "dimensions": DIM}
    assert os.path.samefile(tmp_path / "retrieval_index/eval.index", copies / "index/eval.index")
    assert (copies / "index/eval.index").stat().st_mode & 0o777 == 0o440  # whoever owns the copy
    assert all(len(file["sha256"]) == 64 for part in account.values() for file in part["files"].values())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")}
    assert prepared(tmp_path, copies)[0] == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")} == before
    assert any(sentence.startswith("hle is there: ") for sentence in prepared(tmp_path, copies)[1])
    assert said[0].startswith("general_thought made: 12 rows, ")


def test_questions_are_sifted_by_their_pass_rate(copies: Path, tmp_path: Path) -> None:
    prepared(tmp_path / "own", copies, "general_thought", pass_rate=(0.2, 0.9))
    rows = [json.loads(line) for line in (tmp_path / "own/general_thought/questions.jsonl").read_text().splitlines()]
    assert [(row["question_id"], row["pass_rate"]) for row in rows] == [(1, 0.5), (7, 0.5)]
    counts = json.loads((tmp_path / "own" / paper.ACCOUNT).read_text())["general_thought"]["counts"]
    assert counts["set aside: pass rate out of bounds"] == 2
    assert counts["set aside: no pass rate"] == 1
    tried = [("5", True, "completed"), ("5", False, "no_answer"), ("1", False, "failed"), ("6", False, "completed")]
    lines = [json.dumps({"id": name, "solved": solved, "status": status}) for name, solved, status in tried]
    (tmp_path / "run.jsonl").write_text("\n".join(lines))
    run = tmp_path / "run.jsonl"
    prepared(tmp_path / "run", copies, "general_thought", pass_rate=(0.2, 0.9), passed=run)
    assert [each.id for each in load_tasks(tmp_path / "run/general_thought")] == ["5"]
    run.write_text('{"question": "no trajectory"}')
    problems, _ = prepared(tmp_path / "run", copies, "general_thought", pass_rate=(0.2, 0.9), passed=run)
    assert "no trajectory of an evaluation, which has 'id' and 'solved'" in problems[0]
    assert [each.id for each in load_tasks(tmp_path / "run/general_thought")] == ["5"]  # what was there stays


def test_a_row_that_tells_no_rate_takes_none_from_others(tmp_path: Path) -> None:
    rows = [thought(1, "6", 0.0), thought(1, "6", 1.0), {"verifier_score": 1.0}]
    (tmp_path / "general_thought").mkdir()
    lines = [*map(json.dumps, rows), '{"question_id": 1, "verifier_score": "high"}', '{"question_id']
    (tmp_path / "general_thought/rows.jsonl").write_text("\n".join(lines))
    assert prepared(tmp_path / "text", tmp_path, "general_thought", pass_rate=(0.2, 0.9))[0] == []
    write_parquet(tmp_path / "copy/general_thought/rows.parquet", [*rows[:2], thought(1, "6", float("nan"))])
    assert prepared(tmp_path / "table", tmp_path / "copy", "general_thought", pass_rate=(0.2, 0.9))[0] == []
    for folder in ("text", "table"):
        (line,) = (tmp_path / folder / "general_thought/questions.jsonl").read_text().splitlines()
        assert json.loads(line)["pass_rate"] == 0.5


def test_other_choices_or_another_source_make_a_part_anew(copies: Path, tmp_path: Path) -> None:
    prepared(tmp_path / "data", copies, "hle", limit=1)
    assert len(load_tasks(tmp_path / "data/hle", "hle")) == 1
    prepared(tmp_path / "data", copies, "hle")
    assert len(load_tasks(tmp_path / "data/hle", "hle")) == 2
    shutil.copytree(copies / "hle", tmp_path / "more/hle")
    write_parquet(tmp_path / "more/hle/test.parquet", HLE[:1])
    prepared(tmp_path / "data", tmp_path / "more", "hle")
    assert len(load_tasks(tmp_path / "data/hle", "hle")) == 1


def test_what_is_missing_or_not_ours_is_one_sentence_and_the_rest_is_made(
    copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    few = tmp_path / "few"
    shutil.copytree(copies / "hle", few / "hle")
    (tmp_path / "data/frames").mkdir(parents=True)
    shutil.copytree(copies / "frames-benchmark", few / "frames")
    write_index(few / "index", "eval")
    write_index(few / "index", "train")
    problems, _ = prepared(tmp_path / "data", few)
    by_part = dict(problem.split(": ", 1) for problem in problems)
    assert set(by_part) == {"general_thought", "toolscale", "toolscale_tools", "frames", "retrieval_index"}
    assert "A folder that holds general_thought/ or GeneralThought-430K/: --from." in by_part["general_thought"]
    assert "git clone https://github.com/NVlabs/ToolOrchestra" in by_part["toolscale_tools"]
    assert "was not made by this command" in by_part["frames"]
    assert "Choose one with --index NAME" in by_part["retrieval_index"]
    assert len(load_tasks(tmp_path / "data/hle", "hle")) == 2
    assert prepared(tmp_path / "data", few, "retrieval_index", index="train")[0] == []
    assert sorted(path.name for path in (tmp_path / "data/retrieval_index").iterdir()) == [
        "train.index", "train.jsonl", "train.offsets.npy"
    ]  # fmt: skip


async def test_the_index_is_checked_with_its_own_passages(copies: Path, tmp_path: Path) -> None:
    import asyncio

    async with serving(EmbeddingStub(DIM)) as url:
        problems, said = await asyncio.to_thread(
            prepared, tmp_path / "good", copies, "retrieval_index", embedder_url=url
        )
    assert problems == []
    assert "  32 of 32 passages are among the 5 nearest to their own vectors." in said

    class Other(EmbeddingStub):
        async def __call__(self, request):
            from aiohttp import web

            count = len((await request.json())["input"])
            rows = [{"index": i, "embedding": [1.0] + [0.0] * (DIM - 1)} for i in range(count)]
            return web.json_response({"data": rows})

    async with serving(Other(DIM)) as url:
        problems, _ = await asyncio.to_thread(prepared, tmp_path / "bad", copies, "retrieval_index", embedder_url=url)
    assert "serves another model than the one that built the index" in problems[0]
    assert not (tmp_path / "bad/retrieval_index").exists()


HELD = """
import sys, time
from pathlib import Path
from orchestra_jax.preparation import paper, questions
from orchestra_jax.preparation.made import Wanted
folder, given, name, rows = sys.argv[1:]
plain, count = questions._write, 0
def write(out, row):
    global count
    plain(out, row)
    count += 1
    if name in out.name and count >= int(rows):
        out.flush()
        Path(folder, "held").touch()
        time.sleep(600)
questions._write = write
paper.prepare(paper.PARTS, Path(folder), Path(given), Wanted())
"""


@pytest.mark.parametrize(("part", "rows"), [("general_thought", 3), ("hle", 6)])
def test_a_killed_preparation_goes_on_and_gives_the_same_files(
    copies: Path, tmp_path: Path, part: str, rows: int
) -> None:
    prepared(tmp_path / "whole", copies)
    killed = tmp_path / "killed"
    killed.mkdir()
    command = [sys.executable, "-c", HELD, str(killed), str(copies), part, str(rows)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    end = time.monotonic() + WAIT_S
    while not (killed / "held").is_file():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (killed / "held").unlink()
    assert (killed / f".{part}.partial").is_dir()
    assert not (killed / part).exists()
    assert prepared(killed, copies)[0] == []
    assert contents(killed) == contents(tmp_path / "whole")
    accounts = [json.loads((folder / paper.ACCOUNT).read_text()) for folder in (killed, tmp_path / "whole")]
    assert accounts[0] == accounts[1]


def test_a_folder_that_cannot_be_prepared_in_is_one_sentence(copies: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert paper.prepare(paper.PARTS, tmp_path / "file", copies, Wanted()) == [
        f"the folder '{tmp_path / 'file'}' cannot be written (File exists): name another."
    ]
    (tmp_path / paper.ACCOUNT).write_text("[1")
    (said,) = paper.prepare(paper.PARTS, tmp_path, copies, Wanted())
    assert said.endswith(", the account of what was made, cannot be read: name another folder.")
    (tmp_path / paper.ACCOUNT).unlink()
    with alone_in(tmp_path):
        (said,) = paper.prepare(paper.PARTS, tmp_path, copies, Wanted())
    assert said.startswith("Another run is at work")


def test_the_command_tells_sizes_and_licences_first(copies: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    main = runpy.run_path(str(ROOT / "experiments/prepare.py"))["main"]

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["prepare.py", "paper", str(tmp_path / "data"), *arguments])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    status, out, _ = run("--from", str(copies), "--dry-run")
    assert status == 0
    assert not (tmp_path / "data").exists()
    lines = out.splitlines()
    size = (copies / "hle/test.parquet").stat().st_size / 1e6
    assert any(line.split() == ["hle", f"{size:.1f}", "MB", "MIT;", "gated", str(copies / "hle")] for line in lines)
    assert lines[-1].startswith(f"Free at {tmp_path / 'data'}: ")
    assert run("--from", str(copies), "--only", "hle")[1].endswith(f"export ORCHESTRA_DATA={tmp_path / 'data'}\n")
    status, _, error = run("--only", "humanity")
    assert (status, "There is no part 'humanity'; known are general_thought, " in error) == (2, True)
    assert "say with --pass-rate LOW HIGH" in run("--passed", "x.jsonl")[2]
    assert "is no folder" in run("--from", str(tmp_path / "none"))[2]
    assert "--limit 0 must be at least 1" in run("--from", str(copies), "--dry-run", "--limit", "0")[2]


def test_the_run_takes_what_is_prepared_and_says_what_is_not(
    copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GENERAL_THOUGHT_PATH", "HLE_PATH", "TOOLSCALE_PATH", "TOOLSCALE_REPO"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ORCHESTRA_DATA", str(tmp_path))
    bare = composed("+experiment=hle")
    assert bare.tools.search.index is None
    assert bare.data.mixture[0].path == "GeneralReasoning/GeneralThought-430K"
    assert (bare.data.eval_path, bare.env.options.toolscale.rows) == ("cais/hle", "nvidia/ToolScale")
    (sentence,) = [each for each in unprepared(bare) if "retrieval_index" in each]
    assert sentence.startswith("Not prepared: local search goes by words (BM25), without the paper's dense index (")
    prepared(tmp_path, copies)
    full = composed("+experiment=hle")
    assert full.tools.search.index == str(tmp_path / "retrieval_index")
    assert full.data.mixture[0].path == str(tmp_path / "general_thought")
    assert full.data.eval_path == str(tmp_path / "hle")
    assert full.env.options.toolscale.rows == str(tmp_path / "toolscale")
    assert full.env.options.toolscale.repo == str(tmp_path / "toolscale_tools")
    assert not [each for each in unprepared(full) if "retrieval_index" in each]
