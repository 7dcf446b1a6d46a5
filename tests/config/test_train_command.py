"""The train command in a process of its own: one sentence for a mistake, sweeps, folders, and a bug's trace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.config.test_checks import CONF, OFFLINE, ROOT


def python(script: Path, *arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)


def train(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return python(ROOT / "experiments" / "train.py", *arguments, cwd=cwd)


@pytest.mark.parametrize(("name", "seen"), [("shared", "platform"), ("separate", "None")])
def test_jax_is_told_to_give_memory_back_before_it_starts(stub: Path, name: str, seen: str) -> None:
    stub.write_text(STUB.replace("import hydra", "import os, sys, hydra").replace(
        "{run.reward.outcome} {run.reward.compute}",
        "{os.environ.get('XLA_PYTHON_CLIENT_ALLOCATOR')} {'jax' in sys.modules}",
    ))  # fmt: skip
    done = python(stub, f"+placement={name}", "rollout.server.python=python", cwd=stub.parent)
    assert done.returncode == 0, done.stderr
    assert (stub.parent / "outputs" / "quickstart" / "seen").read_text() == f"{seen} False"


def test_train_prints_one_sentence_and_no_trace(tmp_path: Path) -> None:
    done = train("reward.outcom=1", cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "did you mean reward.outcome?" in done.stderr
    done = train("reward.outcome=2", cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    for mistake in ("model.path=/nowhere", "algorithm.loss.loss=none"):
        done = train(mistake, cwd=tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert not (tmp_path / "outputs").exists()
    (tmp_path / "outputs").mkdir()  # of somebody else: this start has a folder elsewhere
    assert train("model.path=/nowhere", "output_dir=elsewhere", cwd=tmp_path).returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]
    done = train("tools.mcp=['server --api-key=Canary1']", cwd=tmp_path)
    assert (done.returncode, "Canary1" in done.stdout + done.stderr) == (2, False)
    assert [file for file in tmp_path.rglob("*") if file.is_file() and b"Canary1" in file.read_bytes()] == []


@pytest.mark.parametrize(
    ("file", "text"),
    [("reward/mine.yaml", "outcom: 1"), ("experiment/mine.yaml", "# @package _global_\nreward:\n  outcom: 1")],
)
def test_an_unknown_key_in_a_file(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text(text)
    choice = f"{'+' if 'experiment' in file else ''}{path.parent.name}=mine"
    done = train("--config-dir", str(tmp_path), choice, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert f"In '{path.parent.name}/mine': Unknown key 'reward.outcom': did you mean reward.outcome?" in done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# @package _global_\nreward:\n\toutcome: 1\n",
         "In {file!r}: line 3 is no YAML: it has a tab, where YAML takes spaces only."),
        ("# @package _global_\nsteps: 3\nname: a\nsteps: 4\n",
         "In {file!r}: line 4 is no YAML: the key steps is there for the second time."),
        ("# @package _global_\nname: a: b\n",
         "In {file!r}: line 2 is no YAML: a second colon: put quotes around a text that has one."),
        ("# @package _global_\nevaluation:\n  benchmarks: [held_out\n",
         "In {file!r}: line 4 is no YAML: the file ends too early (expected ',' or ']', but got '<stream end>')."),
        ("steps: 3\n",
         "In 'experiment/mine': there are no settings experiment.*: begin the file with '# @package _global_'."),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named_with_the_line(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    file.write_text(text)
    done = train("--config-dir", str(tmp_path), "+experiment=mine", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, told.format(file=str(file)) + "\n")


def test_cfg_job_prints_the_whole_run(tmp_path: Path) -> None:
    done = train("--cfg", "job", "--resolve", *OFFLINE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "learning_rate: 1.0e-06" in done.stdout
    assert "    kl: k2\n" in done.stdout
    assert "output_dir: outputs/hle" in done.stdout
    assert list(tmp_path.iterdir()) == []


# Starts as experiments/train.py does and writes what it would have trained with.
STUB = f"""
import hydra
from orchestra_jax.config import cli

@hydra.main(version_base="1.3", config_path={str(CONF)!r}, config_name="config")
def main(config):
    run = cli.configure(config)
    with open(run.output_dir + "/seen", "w") as file:
        file.write(f"{{run.reward.outcome}} {{run.reward.compute}}")

if __name__ == "__main__":
    with cli.user_errors():
        main()
"""


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    script = tmp_path / "stub.py"
    script.write_text(STUB)
    return script


@pytest.mark.parametrize("launcher", [[], ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]])
def test_a_sweep_runs_each_job_in_its_own_folder(stub: Path, launcher: list[str]) -> None:
    sweep = ["--multirun", "reward.outcome=0.5,1", "reward.compute=0,1"]
    done = python(stub, *sweep, *launcher, cwd=stub.parent)
    assert done.returncode == 0, done.stderr
    seen = {(path.parent.name, path.read_text()) for path in stub.parent.glob("multirun/quickstart/*/seen")}
    assert seen == {
        (f"reward.compute={compute},reward.outcome={outcome}", f"{float(outcome)} {float(compute)}")
        for outcome in ("0.5", "1")
        for compute in ("0", "1")
    }


def test_a_mistake_in_a_sweep_is_one_sentence(stub: Path) -> None:
    done = python(stub, "--multirun", "reward.outcom=0.5,1", cwd=stub.parent)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "did you mean reward.outcome?" in done.stderr


def test_the_same_command_lands_in_the_same_folder(stub: Path) -> None:
    for _ in range(2):
        assert python(stub, "name=again", cwd=stub.parent).returncode == 0
    assert [path.name for path in (stub.parent / "outputs").iterdir()] == ["again"]
    assert (stub.parent / "outputs" / "again" / "seen").is_file()


def test_a_bug_keeps_its_trace(stub: Path) -> None:
    stub.write_text(STUB.replace("run.output_dir", "run.no_such_thing"))
    done = python(stub, cwd=stub.parent)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "no_such_thing" in done.stderr
