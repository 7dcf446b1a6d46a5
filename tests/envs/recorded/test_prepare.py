"""The public results in small: condensed to what the reader reads, whole or not at all; a failure is one sentence."""

import gzip
import json
import sys
import tarfile
from pathlib import Path
from urllib.error import URLError

import pytest

from benchmarks.data import zeroeval
from benchmarks.data.zeroeval import COMMIT, is_right, prepare
from orchestra_jax.envs.recorded.readers import read_recording
from tests.envs.recorded.test_table import same

# By set: the field of the question, its id, the reference, and what every model says.
MADE = {
    "crux": [("question", "crux-test-#0", "[(4, 1)]", "[(4, 1)]"), ("question", "crux-test-#7", "[]", "[]")],
    "gsm": [("question", "gsm8k-main-test-#0", "# 18", "18 eggs"), ("question", "gsm8k-main-test-#2", "# 7", "7")],
    "math-l5": [("problem", "0", "-15", "15"), ("problem", "1", "3", "3.0")],
}
RIGHT = {
    "crux/crux-test-#0": True, "crux/crux-test-#7": True, "gsm/gsm8k-main-test-#0": True,
    "gsm/gsm8k-main-test-#2": True, "math-l5/0": False, "math-l5/1": True,
}  # fmt: skip


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two questions a set. A model beside the priced ones is there too."""
    monkeypatch.setattr(zeroeval, "QUESTIONS", dict.fromkeys(MADE, 2))
    for name, questions in MADE.items():
        folder = tmp_path / "clone" / "result_dirs" / name
        folder.mkdir(parents=True)
        for model in (*zeroeval.models(), "o1-mini-2024-09-12"):
            rows = [
                {
                    "id": number, field: f"Asked: {number} ½?", "answer": answer, "chat_history": ["ten chars."],
                    "output": [f'{{"reasoning": "½", "answer": "{said}"}}'],
                }
                for field, number, answer, said in questions
            ]  # fmt: skip
            (folder / f"{model}.json").write_text(json.dumps(rows))
    return tmp_path / "clone"


def packed(clone: Path) -> Path:
    """The archive that GitHub makes of a commit."""
    file = clone.with_name("made.tar.gz")
    with tarfile.open(file, "w:gz", compresslevel=1) as out:
        out.add(clone, f"ZeroEval-{COMMIT}")
    return file


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_reader_reads_what_was_condensed(clone: Path, tmp_path: Path):
    said: list[str] = []
    prepare(tmp_path / "deep" / "made", clone=clone, say=said.append)
    found = read_recording(tmp_path / "deep" / "made")
    assert set(found.models) == set(zeroeval.models())
    assert len(found.models) == 24
    row = {name: found.answer("gpt-4o-2024-08-06", name) for name in found.questions}
    assert {name: record.correct for name, record in row.items()} == RIGHT
    asked = found.questions["gsm/gsm8k-main-test-#0"]
    assert (asked.question, asked.answer, asked.family) == ("Asked: gsm8k-main-test-#0 ½?", ("18",), "gsm")
    assert asked.prompt_tokens == 3  # ten characters
    assert row["math-l5/1"].output == '{"reasoning": "½", "answer": "3.0"}'
    assert said[-1] == "condensed reka-core-20240501 (24 of 24)"
    assert left(tmp_path / "deep") == ["made"]


def test_the_archive_is_downloaded_and_gives_the_same(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prepare(tmp_path / "one", clone=clone)
    archive = packed(clone)
    monkeypatch.setattr(zeroeval, "URL", archive.as_uri())
    prepare(tmp_path / "two")
    assert same(read_recording(tmp_path / "one"), read_recording(tmp_path / "two"))
    assert left(tmp_path) == ["clone", "made.tar.gz", "one", "two"]


@pytest.mark.parametrize(
    ("said", "answer", "kind", "right"),
    [
        ("8.50", "8.5", "crux", False), ("'ab'", "'ab'", "crux", True), ("True", "True", "crux", True),
        ("$1,600 in all", "1,600", "gsm", True), ("9/2", "9", "math-l5", False), ("102/17", "6", "math-l5", True),
        ("-221", "-221_3", "math-l5", True), ("1/0", "0", "math-l5", False),
    ],
)  # fmt: skip
def test_strings_are_compared_for_crux_and_numbers_elsewhere(said: str, answer: str, kind: str, right: bool):
    assert is_right(json.dumps({"answer": said}), answer, kind) is right
    assert not is_right(f"It is \\boxed{{{said}}}.", answer, kind)  # not the JSON that was asked for


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path, *words: object) -> str:
    """What the command says when it gives up."""
    before = left(folder.parent)
    monkeypatch.setattr(sys, "argv", ["zeroeval.py", str(folder), *map(str, words)])
    with pytest.raises(SystemExit, match=r"^2$"):
        zeroeval.main()
    assert left(folder.parent) == before
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert len(sentence) < 500
    return sentence


def test_without_a_network_the_sentence_says_what_to_do(monkeypatch, capsys, tmp_path):
    def offline(*_: object, **__: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(zeroeval, "urlopen", offline)
    said = refused(monkeypatch, capsys, tmp_path / "made")
    assert said == (
        f"{zeroeval.URL} cannot be downloaded (Name or service not known): fetch it on a machine with a network and "
        "name the file with --archive, or a clone of that commit with --folder."
    )


def test_what_is_no_archive_of_that_commit_is_refused(monkeypatch, capsys, tmp_path, clone):
    made, broken = tmp_path / "made", tmp_path / "broken.tar.gz"
    assert "There is no archive" in refused(monkeypatch, capsys, made, "--archive", tmp_path / "none.tar.gz")
    whole = packed(clone).read_bytes()
    for content in (b"<html>", whole[: len(whole) // 2], gzip.compress(b"no tar")):
        broken.write_bytes(content)
        said = refused(monkeypatch, capsys, made, "--archive", broken)
        assert said == f"{str(broken)!r} is no whole .tar.gz archive: fetch {zeroeval.URL} again."
    said = refused(monkeypatch, capsys, made, "--archive", broken, "--folder", clone)
    assert said.endswith("give --archive or --folder, not both")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "it has no result_dirs/gsm/Qwen2-7B-Instruct.json"),
        ("[]", "result_dirs/gsm/Qwen2-7B-Instruct.json has 0 answers, not 2"),
        ("[", "result_dirs/gsm/Qwen2-7B-Instruct.json is no list of answers"),
        ('[{"id": "gsm8k-main-test-#0", "output": null}]', "result_dirs/gsm/Qwen2-7B-Instruct.json is no list"),
        (
            '[{"id": "a-#0", "output": ["x"]}, {"id": "a-#3", "output": ["x"]}]',
            "Qwen2-7B-Instruct has not answered the same questions as Llama-3.1-405B-Inst@sambanova (gsm/a-#0)",
        ),
    ],
)
def test_another_commit_is_refused(monkeypatch, capsys, tmp_path, clone, content, why):
    file = clone / "result_dirs" / "gsm" / "Qwen2-7B-Instruct.json"
    file.unlink() if content is None else file.write_text(content)
    said = refused(monkeypatch, capsys, tmp_path / "made", "--folder", clone)
    assert said.startswith(f"This is not WildEval/ZeroEval at commit 8c1485e, for {why}")
    assert said.endswith("with --archive, or a clone with `git checkout 8c1485e` with --folder.")


def test_a_folder_that_is_there_is_not_touched(monkeypatch, capsys, tmp_path, clone):
    (tmp_path / "made").mkdir()
    said = refused(monkeypatch, capsys, tmp_path / "made", "--folder", clone)
    assert said == f"{str(tmp_path / 'made')!r} is there already: remove it, or name another folder."
    assert not left(tmp_path / "made")
