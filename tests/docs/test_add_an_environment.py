"""The environment of docs/add_an_environment.md, from a folder outside the repository."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.training.build import preflight
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.main import run
from tests.docs.pages import blocks

ROOT = Path(__file__).resolve().parents[2]
PAGE = blocks("add_an_environment.md")
# What the page's command trains, but a step of it, on a policy of one layer, with few people and questions.
MICRO = (
    "steps=1", "model.family=tests.training.micro:OneLayer", "warm_start.steps=1", "warm_start.check_every=1",
    "warm_start.batch_size=16", "algorithm.tasks_per_step=2", "algorithm.group_size=2", "rollout.slots=16",
    "rollout.limits.max_new_tokens=10", "evaluation.questions=8", "evaluation.greedy=false", "logger.names=[jsonl]",
    "logger.trajectories=2",
    "+env.options.held_out=320", "algorithm.loss.kl_coef=0", "algorithm.row_widths=[80]", "rollout.widths=[64]",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (code,) = [text for language, text in PAGE if language == "python"]
    assert len(code.splitlines()) <= 80
    (tmp_path / "my_env.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_env", raising=False)
    return tmp_path


def config(folder: Path, *overrides: str) -> RunConfig:
    """The configuration of the page's command."""
    (command,) = [text for language, text in PAGE if language == "bash"]
    said = re.findall(r"[\w.]+=\S+", command)
    return compose(*said, *overrides, f"output_dir={folder / 'run'}")


@pytest.mark.slow
def test_the_example_trains(folder: Path):
    cfg = config(folder, *MICRO)
    run(cfg)
    assert [row["step"] for row in read_metrics(folder / "run")] == [1]
    assert json.loads((folder / "run" / "summary.json").read_text())["after"]["accuracy"] >= 0
    transcript = (folder / "run" / "trajectories" / "step-000001.txt").read_text()
    assert re.search(r"question   Where does \w+ \w+ sit\?", transcript)
    assert "preference Be right." in transcript


@pytest.mark.release  # one step of it, above, is part of `make test`
def test_the_example_learns_what_it_was_not_shown(folder: Path):
    """The page's command as it stands, some 100 CPU seconds: half of the held-out questions, then nearly all."""
    (command,) = [text for language, text in PAGE if language == "bash"]
    _, *words = shlex.split(command.replace("PATH/", f"{ROOT}/").replace("\\\n", ""))
    env = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "OMP_NUM_THREADS")}
    subprocess.run([sys.executable, *words], cwd=folder, env=env | {"PYTHONPATH": str(ROOT)}, check=True)
    found = json.loads((folder / "outputs" / "rooms" / "summary.json").read_text())
    assert found["copy_accuracy"] >= 0.985
    assert 0.3 < found["before"]["accuracy"] < 0.7
    assert found["after"]["accuracy"] >= 0.9


def test_the_gate_and_the_held_out_people_are_in_no_demonstration(folder: Path):
    environment = make_environment(config(folder))
    shown = environment.demonstrations()
    people = [{task.id for task in tasks} for tasks in (shown.tasks, shown.gate, environment.held_out(99))]
    assert [len(some) for some in people] == [272, 64, 64]
    assert len(set.union(*people)) == 400


def test_the_options_are_the_environments_own(folder: Path):
    environment = make_environment(config(folder, "+env.options.held_out=6"))
    held_out = {task.id for task in environment.held_out(99)}
    assert len(held_out) == 6
    stream = environment.train_tasks(5)
    assert held_out.isdisjoint({task.id for _ in range(8) for task in next(stream)})


def test_a_file_that_is_not_there_is_one_sentence(folder: Path):
    with pytest.raises(ConfigError, match=r"env\.name=my_evn:Room: there is no module my_evn; start from the folder"):
        preflight(config(folder, "env.name=my_evn:Room"))
