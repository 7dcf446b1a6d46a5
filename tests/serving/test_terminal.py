"""The commands `ask` and `chat`: what they print where, their statuses, and Ctrl-C."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.made import ROOT, status

ORACLE = "baseline:preference_oracle"


@pytest.mark.parametrize(
    ("words", "expected", "out", "err"),
    [
        (["What is 7 * 8 + 3?", "--wish", "keep the cost low"], 0, "59\n", "1 call, "),
        (["What is 7 * 8 + 3?", "seed=1", "--max-usd", "1"], 0, "59\n", "1 call, "),
        (["What is 7 * 8 + 3?", "--max-seconds", "0"], 1, "", "There is no answer: no answer within 0 s.\n0 calls"),
        (["What is 7 * 8 + 3?", "--max-usd", "0.0001"], 3, "", "raise it.\nWithout one the policy says: unknown\n"),
        (["Who is the pope?"], 2, "", "The quickstart's world knows no such question"),
        (["What is 7 * 8 + 3?", "sed=1"], 2, "", "did you mean"),
        (["What is 7 * 8 + 3?", "Who?"], 2, "", "'Who?' is no setting: write KEY=VALUE"),
    ],
)
def test_an_answer_is_on_standard_output_and_the_rest_on_standard_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], expected: int, out: str, err: str
):
    assert status("ask", ORACLE, *words, f"output_dir={tmp_path}") == expected
    said = capfd.readouterr()
    assert said.out == out
    assert err in said.err
    assert "Traceback" not in said.err


def test_a_chat_goes_on_after_what_it_cannot_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    typed = "What is 7 * 8?\n\nWho is the pope?\n/wish cheap\n/help\n/new\nAnna is older than Boris. Who is younger?\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert status("chat", ORACLE, f"output_dir={tmp_path}") == 0
    said = capfd.readouterr()
    assert said.out.splitlines()[0] == "56"
    assert len(said.out.splitlines()) == 2
    assert "Wishes: best, cheap, fast, local" in said.err
    assert "knows no such question" in said.err
    assert said.err.count("in all") == 2


@pytest.mark.slow
def test_ctrl_c_ends_a_chat_and_closes_everything(tmp_path: Path):
    words = [sys.executable, "-m", "orchestra_jax", "chat", ORACLE, f"output_dir={tmp_path}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("What is 7 * 8?\n")
        process.stdin.flush()
        assert process.stdout.readline() == "56\n"
        process.send_signal(signal.SIGINT)  # while it waits for the next line
        assert process.wait(120) == 130
        assert process.stderr.read().endswith("Stopped; everything is closed.\n")
    assert (tmp_path / "serving" / "run.lock").read_text() == ""
