"""Code blocks of the pages that are no example of their own: names are defined, imports are there, they run."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from orchestra_jax.config.record import RunRecord, Start
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.evaluation.group_files import write_groups
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.io.shipped import EXPERIMENTS
from orchestra_jax.tools.experts.expert import read_experts
from tests.docs.commands import HYDRA, ROOT
from tests.docs.pages import DOCS, blocks
from tests.evaluation.results.test_pages import a_group
from tests.tools.openai_stub import StubOpenAI

PAGES = sorted(page.name for page in DOCS.glob("*.md"))
Script = Callable[..., tuple[int, str]]
# A line of an evaluation's trajectories, as far as a report reads it.
KEPT = {
    "member": 0, "policy_model": None, "family": "sum", "menu": [], "tools": [], "models": {}, "solved": True,
    "cost_usd": 0.01, "latency_s": 2.0, "status": "completed", "sequences": [],
    "weights": {"tools": {}, "outcome": 1.0, "compute": 0.0, "latency": 0.0},
}  # fmt: skip
EXPERT_FILES = {"scale.md", "tools.md", "descriptions.md"}


def python_of(page: str) -> str:
    (code,) = [text for language, text in blocks(page) if language == "python"]
    return code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's folder: two runs with rollouts, an evaluation and a summary, which nobody trained."""
    reader = tmp_path_factory.mktemp("reader")
    for name in ("outputs/quickstart", "outputs/seed1", "multirun/quickstart/seed=0"):
        run = reader / name
        kept = run / "evaluation" / "trajectories" / "policy"
        kept.mkdir(parents=True)
        cfg = RunConfig(name=run.name, output_dir=str(run))
        for kind, where in (("train", run), ("evaluate", run / "evaluation")):
            with RunRecord(where, cfg, kind, Start()) as record:
                record.begin()
        (run / "summary.json").write_text(json.dumps({"after": {"accuracy": 0.5}}))
        (kept / "held_out.t0.jsonl").write_text("".join(json.dumps({"id": f"q{n}"} | KEPT) + "\n" for n in range(4)))
        for step in (1, 2):
            write_groups(run / "rollouts" / f"step-{step:06d}.jsonl.gz", [a_group(step)])
    (reader / "multirun" / "quickstart" / "multirun.yaml").write_text("")  # as Hydra leaves it
    return reader


def test_every_name_is_defined(tmp_path: Path) -> None:
    for page in PAGES:
        for number, (language, code) in enumerate(blocks(page)):
            if language == "python":
                (tmp_path / f"{Path(page).stem}_{number}.py").write_text(code)
    (tmp_path / "mistyped.py").write_text("print(nobody_defines_this)\n")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--quiet", "--select=F821,F811,F401"]
    told = subprocess.run([*ruff, "--output-format=json", str(tmp_path)], capture_output=True, text=True, timeout=60)
    found = [(Path(each["filename"]).name, each["message"]) for each in json.loads(told.stdout)]
    assert found == [("mistyped.py", "Undefined name `nobody_defines_this`")]


def test_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    exec(python_of("money.md"), {})
    assert capsys.readouterr().out == "0.00475\n"


def test_an_expert(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").symlink_to(DOCS.parent / "conf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    stub = StubOpenAI()
    stub.reply = lambda body: "384,400 km"
    with LoopThread() as loop:
        loop.run(stub.__aenter__())
        try:
            code = python_of("experts.md")
            assert "https://api.openai.com/v1" in code
            exec(code.replace("https://api.openai.com/v1", stub.url), {})
        finally:
            loop.run(stub.__aexit__(None, None, None))
    assert (capsys.readouterr().out, len(stub.bills)) == ("384,400 km\n", 1)


def test_rollouts_and_runs_are_read(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    exec(python_of("view.md"), {})
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 6
    assert rows[0].startswith("1 t-1 completed 0.502 ")
    monkeypatch.setitem(sys.modules, "pandas", mock.Mock())  # patch.dict would forget what is imported meanwhile
    exec(code := python_of("compare.md"), found := {})
    assert 'rows[0]["after.accuracy"]' in code
    assert found["rows"][0]["after.accuracy"] == 0.5
    assert (folder / "runs.csv").exists()


@pytest.mark.parametrize("page", sorted(EXPERT_FILES))
def test_files_of_experts(page: str, tmp_path: Path) -> None:
    files = [text for language, text in blocks(page) if language == "yaml" and "experts:" in text]
    for number, text in enumerate(files):
        (tmp_path / f"{number}.yaml").write_text(text)
        assert len(read_experts(tmp_path / f"{number}.yaml")) >= 2
    assert files


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Script:
    """Runs a script as the command line does, in this process; gives its exit status and what it printed."""

    def run(name: str, *words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [str(EXPERIMENTS / f"{name}.py"), *words])
        try:
            runpy.run_path(str(EXPERIMENTS / f"{name}.py"), run_name="__main__")
            status = 0
        except SystemExit as end:
            status = end.code or 0
        told = capsys.readouterr()
        return status, told.out + told.err

    return run


@pytest.mark.parametrize("name", sorted({file.stem for file in EXPERIMENTS.glob("*.py")} - set(HYDRA)))
def test_every_script_says_what_it_does(name: str, script: Script) -> None:
    status, told = script(name, "--help")
    assert (status, f"{name}.py" in told) == (0, True)


@pytest.mark.slow
def test_scripts_that_train_say_what_they_do(folder: Path) -> None:
    quiet = {"cwd": folder, "stdout": subprocess.PIPE, "text": True, "env": os.environ | {"PYTHONPATH": str(ROOT)}}
    asked = [
        subprocess.Popen([sys.executable, str(EXPERIMENTS / f"{name}.py"), "--help-all"], **quiet)
        for name in set(HYDRA) - {"train"}  # which tests/config/test_command.py asks
    ]
    for process in asked:
        told, _ = process.communicate(timeout=240)
        assert (process.returncode, "warm_start" in told) == (0, True)


def test_what_reads_a_run_runs(folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    status, told = script("compare", "outputs/quickstart", "outputs/seed1")
    assert (status, "after.accuracy" in told) == (0, True)
    assert script("compare", "multirun/quickstart/*", "--csv", "sweep.csv") == (0, "1 runs in sweep.csv\n")
    status, told = script("report", "outputs/quickstart", "outputs/seed1", "--out", "outputs/report")
    assert status == 0, told
    assert (folder / "outputs" / "report" / "report.html").exists()
    status, told = script("view", "outputs/quickstart", "--steps", "0")
    assert (status, "index.html in a browser" in told) == (0, True)
    status, told = script("view", "outputs/nothing")
    assert (status, told.count("\n")) == (2, 1)
