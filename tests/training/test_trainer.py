"""The run as a user sees it: what it leaves, that it resumes bit for bit however it was stopped, and what it refuses.

Real processes at tiny sizes. A policy of a few warm-start steps solves nothing, so its rewards and updates would be 0
and any two runs alike: `DRIVER` scores group members by their index instead.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment
from orchestra_jax.evaluation.decoding import read_groups
from orchestra_jax.money.reservations import acquire
from orchestra_jax.money.run_budget import RunBudget
from orchestra_jax.processes.lock import alone_in
from orchestra_jax.rl import groups
from orchestra_jax.training import evaluate as evaluating
from orchestra_jax.training import main
from orchestra_jax.training.checkpoint_names import newest_checkpoint
from orchestra_jax.training.evaluate import evaluate
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.loggers.pages import pages_of
from orchestra_jax.training.main import run
from orchestra_jax.training.trainer import Trainer
from orchestra_jax.types import Usage
from tests.models.trees import assert_same
from tests.training.micro import score_by_index, stopped_at

ROOT = Path(__file__).resolve().parents[2]
STEPS = 5
MICRO = (
    f"steps={STEPS}", "model.family=tests.training.micro:OneLayer",
    "warm_start.steps=4", "warm_start.check_every=2", "warm_start.demonstrations=64",
    "warm_start.batch_size=16", "algorithm.tasks_per_step=2", "algorithm.group_size=4",
    "algorithm.optimizer.warmup_steps=0",
    "algorithm.row_widths=[192]", "algorithm.micro_tokens=768",  # two micro-batches of one shape: one program
    "rollout.slots=8", "rollout.widths=[64]", "evaluation.questions=8", "evaluation.swap_questions=4",
    "evaluation.every=2", "checkpoint.every=2", "logger.names=[jsonl]", "logger.trajectories=2",
)  # fmt: skip

# argv: where to stop ("warm_start 3 SIGKILL", or nothing), then the script and its overrides.
DRIVER = """
import gc, os, runpy, signal, sys
gc.set_threshold(20_000, 20, 20)  # as a command does before it imports
from orchestra_jax.rl import groups
from orchestra_jax.training.trainer import Trainer
from tests.training.micro import score_by_index, stopped_at

stop, groups.reward_groups = sys.argv[1], score_by_index
Trainer.stop_if_asked = stopped_at(stop, lambda name: os.killpg(0, signal.Signals[name]), Trainer.stop_if_asked)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def train(directory: Path, *overrides: str, stop: str = "") -> subprocess.CompletedProcess[str]:
    """`experiments/train.py` in a process group of its own, stopped by a signal to the group as Ctrl-C would be."""
    command = [sys.executable, "-c", DRIVER, stop, "experiments/train.py", f"output_dir={directory}", *overrides]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, capture_output=True,
        start_new_session=True, timeout=1800,
    )  # fmt: skip


def config(directory: Path, *overrides: str) -> RunConfig:
    return compose(*overrides, f"output_dir={directory}")


def train_here(directory: Path, *overrides: str, stop: str = "") -> None:
    """As `train`, in this process: half the CPU time, where a process of its own is not what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "reward_groups", score_by_index)
        stopping = stopped_at(stop, lambda name: signal.raise_signal(signal.Signals[name]), Trainer.stop_if_asked)
        patch.setattr(Trainer, "stop_if_asked", stopping)
        run(config(directory, *overrides))


def complaints(text: str) -> list[str]:
    """Lines of stderr without the one that transformers writes where torch is missing."""
    return [line for line in text.splitlines() if not line.startswith("[transformers]")]


def shared(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder that all pytest-xdist workers share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was not disturbed."""
    folder = shared(tmp_path_factory, "reference-run")
    with (folder.parent / "reference.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "summary.json").exists():
            done = train(folder, *MICRO)
            assert done.returncode == 0, done.stderr
    return folder


def final_arrays(folder: Path) -> list[np.ndarray]:
    """Every array of the newest checkpoint: parameters, optimizer, step, reference; whatever devices saved it."""
    newest = newest_checkpoint(folder / "checkpoints") / "arrays"
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with ocp.StandardCheckpointer() as checkpointer:
        saved = checkpointer.metadata(newest).item_metadata.tree
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), saved)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(checkpointer.restore(newest, like))]


def assert_same_arrays(one: Path, other: Path) -> None:
    arrays = final_arrays(one)
    assert len(arrays) > 0
    assert_same(arrays, final_arrays(other))


def untimed(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k != "seconds" and not k.startswith("time/")} for row in rows]


TIMELESS = {"seconds": 0, "parts": {}}  # in place of what the clock says


def summary(directory: Path) -> dict:
    return json.loads((directory / "summary.json").read_text())


def transcripts(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((directory / "trajectories").iterdir())}


# --- what a run leaves -----------------------------------------------------------------------------------------------


def test_summary_has_every_figure_of_the_report(reference: Path):
    found = summary(reference)
    assert {"name", "seed", "steps", "seconds", "before", "after", "baselines", "preference_swap"} <= found.keys()
    assert (found["seed"], found["steps"]) == (0, STEPS)
    assert found["seconds"] > 0
    named = {"warm start", "evaluation before", "rollouts", "updates", "other", "evaluation after"}
    assert found["parts"].keys() == named
    assert min(found["parts"].values()) >= 0
    assert sum(found["parts"].values()) == pytest.approx(found["seconds"])
    figures = {"accuracy", "valid_rate", "cost", "cost_per_correct", "latency", "calls", "utility"}
    for phase in ("before", "after"):
        assert figures <= found[phase].keys()
        assert figures <= found[phase]["greedy"].keys()
        assert found["preference_swap"][phase].keys() == {"accuracy", "cost", "fast", "local"}
        assert all("local_share" in kind for kind in found["preference_swap"][phase].values())
    assert found["baselines"].keys() == {
        "random_tool", "strongest_expert", "cheapest_sufficient", "preference_oracle", "do_nothing"
    }  # fmt: skip
    for name, baseline in found["baselines"].items():
        assert figures <= baseline.keys() | {"utility"}
        assert baseline["valid_rate"] == float("do_nothing" not in name)


def test_pictures_and_hydra_record_are_there(reference: Path):
    pictures = list(reference.glob("*.png"))
    assert {picture.stem for picture in pictures} >= {"accuracy_cost", "learning_curves"}
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert (reference / ".hydra" / "config.yaml").is_file()
    assert "- seed" not in (overrides := (reference / ".hydra" / "overrides.yaml").read_text())
    assert f"- output_dir={reference}" in overrides
    assert not (reference / "tensorboard").exists()


def test_the_record_of_a_run_and_files_that_others_may_read(reference: Path):
    record = json.loads((reference / "run.json").read_text())
    first = record["starts"][0]
    assert (record["config"]["steps"], record["parents"], first["from"]) == (STEPS, [], None)
    assert (first["outcome"], first["overrides"][1:]) == ("done", list(MICRO))
    assert first["machine"]["devices"]
    policy = [path for path in (reference / "policy").rglob("*") if path.is_file()]
    assert {"model.safetensors", "tokenizer.json", "config.json"} <= {path.name for path in policy}
    readable = (reference / "summary.json").stat().st_mode
    assert {path.stat().st_mode for path in policy} == {readable}


def test_metrics_have_each_step_once(reference: Path):
    rows = read_metrics(reference)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all({"reward/mean", "accuracy", "valid_rate", "cost_usd", "seconds"} <= row.keys() for row in rows)
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)


def test_the_rollouts_of_every_step_are_kept_and_shown(reference: Path, tmp_path: Path):
    rows, groups = read_metrics(reference), list(read_groups(reference / "rollouts"))
    assert [(group.step, group.group) for group in groups] == [(n, g) for n in range(1, STEPS + 1) for g in range(2)]
    assert all(group.members[0].turns[0].logprobs for group in groups)
    for row in rows:
        members = [member for group in groups if group.step == row["step"] for member in group.members]
        assert np.mean([member.cost_usd for member in members]) == pytest.approx(row["cost_usd"])
    index = pages_of(reference, tmp_path, steps=2)
    assert sorted({page.name[:6] for page in (tmp_path / "groups").iterdir()}) == ["000001", f"{STEPS:06d}"]
    assert f"{2 * 2 * 4} trajectories" in index.read_text()
    with pytest.raises(ConfigError, match=r"is no run: a run's folder has run\.json"):
        pages_of(tmp_path)


def test_evaluations_on_the_way_are_in_the_metrics(reference: Path):
    rows = {row["step"]: row for row in read_metrics(reference)}
    evaluated = [step for step, row in rows.items() if "eval/accuracy" in row]
    assert evaluated == [2, 4]
    assert {"eval/cost", "eval/latency", "eval/valid_rate", "eval/utility"} <= rows[2].keys()


def test_transcripts_are_readable(reference: Path):
    found = transcripts(reference)
    assert list(found) == [f"step-{step:06d}.txt" for step in range(1, STEPS + 1)]
    for text in found.values():
        for word in ("question", "preference", "menu", "reference", "[turn 1]", "answer", "$"):
            assert word in text


def test_the_updates_are_real(reference: Path):
    """Else the comparisons below would compare nothing."""
    newest = newest_checkpoint(reference / "checkpoints")
    with ocp.StandardCheckpointer() as checkpointer:
        arrays = checkpointer.restore(newest / "arrays")
    before, after = jax.tree.leaves(arrays["reference"]), jax.tree.leaves(arrays["state"]["params"])
    assert len(before) == len(after)
    assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))


# --- stopping and going on -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory, reference: Path) -> dict:
    """The same run, stopped four times: the processes, the steps they made, and those in metrics.jsonl after each."""
    folder = shared(tmp_path_factory, "disturbed-run")
    record = folder.parent / "disturbed.json"
    with (folder.parent / "disturbed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not record.exists():
            found = {}
            for stop in ("warm_start 3 SIGKILL", "warm_start 3 SIGINT", "policy 3 SIGKILL", "policy 4 SIGINT", ""):
                done = train(folder, *MICRO, stop=stop)
                steps = [row["step"] for row in read_metrics(folder)]
                made = [line[2:] for line in done.stdout.splitlines() if line.startswith("@ ")]
                said = [line for line in done.stdout.splitlines() if line.startswith("Continues from")]
                found[stop] = {"code": done.returncode, "stderr": done.stderr, "steps": steps, "made": made}
                found[stop]["said"] = said
            record.write_text(json.dumps(found))
    return {"folder": folder, "runs": json.loads(record.read_text())}


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["warm_start 3 SIGKILL", "policy 3 SIGKILL"])
def test_the_kill_came_in_the_middle(disturbed: dict, stop: str):
    assert disturbed["runs"][stop]["code"] == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "step"), [("warm_start", 3), ("policy", 4)])
def test_ctrl_c_ends_cleanly_with_one_sentence(disturbed: dict, phase: str, step: int):
    stopped = disturbed["runs"][f"{phase} {step} SIGINT"]
    assert stopped["code"] == 130
    assert complaints(stopped["stderr"]) == [
        f"Stopped after step {step} of {phase}; the same command continues from there."
    ]


@pytest.mark.slow
def test_runs_go_on_instead_of_starting_over(disturbed: dict):
    made = {stop: run["made"] for stop, run in disturbed["runs"].items()}
    # A checkpoint is written in the background: after a kill either of the last two may be the newest complete one.
    assert made["warm_start 3 SIGINT"] in (["warm_start 3"], [f"warm_start {n}" for n in (1, 2, 3)])
    assert made["policy 3 SIGKILL"] == ["warm_start 4", "policy 1", "policy 2", "policy 3"]
    assert made["policy 4 SIGINT"] in (["policy 3", "policy 4"], [f"policy {n}" for n in (1, 2, 3, 4)])
    assert made[""] == ["policy 5"]


@pytest.mark.slow
def test_each_start_says_from_where_it_goes_on(disturbed: dict):
    record = json.loads((disturbed["folder"] / "run.json").read_text())
    starts = record["starts"]
    assert [start["outcome"] for start in starts] == [None, "stopped", None, "stopped", "done"]
    assert starts[0]["from"] is None
    assert starts[2]["from"] == "warm_start-000003"
    assert starts[4]["from"] == "policy-000004"
    folder = disturbed["folder"] / "checkpoints"
    said = {stop: run["said"] for stop, run in disturbed["runs"].items()}
    assert said["warm_start 3 SIGKILL"] == []
    assert said[""] == [f"Continues from {folder / 'policy-000004'} (step 4 of policy)."]
    assert sorted(path.name for path in folder.iterdir())[-1] == "policy-000005"


@pytest.mark.slow
def test_the_disturbed_run_ends_bit_for_bit_like_the_other(disturbed: dict, reference: Path):
    last = disturbed["runs"][""]
    assert last["code"] == 0, last["stderr"]
    assert_same_arrays(reference, disturbed["folder"])


@pytest.mark.slow
def test_the_disturbed_run_reports_the_same(disturbed: dict, reference: Path):
    folder = disturbed["folder"]
    assert summary(folder) | TIMELESS == summary(reference) | TIMELESS
    assert transcripts(folder) == transcripts(reference)
    assert untimed(read_metrics(folder)) == untimed(read_metrics(reference))
    assert list(read_groups(folder / "rollouts")) == list(read_groups(reference / "rollouts"))


@pytest.mark.slow
def test_metrics_have_each_step_once_after_resuming(disturbed: dict):
    steps = {stop: run["steps"] for stop, run in disturbed["runs"].items()}
    assert steps == {
        "warm_start 3 SIGKILL": [],
        "warm_start 3 SIGINT": [],
        "policy 3 SIGKILL": [1, 2, 3],
        "policy 4 SIGINT": [1, 2, 3, 4],
        "": [1, 2, 3, 4, 5],
    }


def test_running_a_finished_run_again_trains_nothing(reference: Path, tmp_path: Path):
    folder = Path(shutil.copytree(reference, tmp_path / "run"))  # other processes evaluate what is in `reference`

    def state() -> tuple:
        saved = [(p.name, p.stat().st_mtime_ns) for p in sorted((folder / "checkpoints").iterdir())]
        return saved, (folder / "metrics.jsonl").read_text(), transcripts(folder)

    before, figures = state(), summary(folder)
    run(config(folder, *MICRO))
    assert state() == before
    assert summary(folder) | TIMELESS == figures | TIMELESS


@pytest.mark.slow
def test_a_run_without_evaluation_ends_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(config(tmp_path, *MICRO, "steps=1", "warm_start.steps=1", "evaluation.questions=0"))
    assert (tmp_path / "summary.json").is_file()
    assert "evaluation.questions=0" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("command", [main, evaluating])
def test_what_is_paid_while_a_run_closes_is_in_its_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command):
    """A request whose caller has left goes on, and the environment's end waits for it."""
    budgets = list[RunBudget]()

    def kept(*given) -> RunBudget:
        budgets.append(RunBudget(*given))
        return budgets[-1]

    async def close(environment: QuickstartEnvironment) -> None:
        late = await acquire(budgets[0].run, Usage("gpt-5", cost_usd=1.0))
        late.settle(Usage("gpt-5", cost_usd=0.25))

    monkeypatch.setattr(command, "RunBudget", kept)
    monkeypatch.setattr(QuickstartEnvironment, "close", close)
    if command is main:
        run(config(tmp_path, *MICRO, "steps=0", "warm_start.steps=0", "evaluation.questions=0"))
    else:
        evaluate(
            config(tmp_path, "policy=baseline:do_nothing", "evaluation.questions=1", "evaluation.swap_questions=0")
        )
    folder = tmp_path if command is main else tmp_path / "evaluation"
    assert summary(folder)["spent"]["by_name"]["gpt-5"]["usd"] == 0.25


def test_another_config_in_the_same_folder_is_refused(reference: Path, capsys: pytest.CaptureFixture[str]):
    content = (reference / "summary.json").read_bytes()
    with pytest.raises(SystemExit, match=r"^2$"):
        run(config(reference, *MICRO, "algorithm.optimizer.learning_rate=0.5"))
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{reference} holds another run (algorithm.optimizer.learning_rate: " in line
    assert "-> 0.5)" in line
    assert "name=" in line
    assert (reference / "summary.json").read_bytes() == content


def test_a_folder_in_which_another_run_is_at_work_is_refused_before_anything_is_read(tmp_path: Path, capsys):
    (tmp_path / "spent.jsonl").write_text("of the other run")
    for work, folder in ((run, tmp_path), (evaluate, tmp_path / "evaluation")):
        folder.mkdir(exist_ok=True)
        with alone_in(folder), pytest.raises(SystemExit, match=r"^2$"):
            work(config(tmp_path, *MICRO))
        (line,) = complaints(capsys.readouterr().err)
        assert line.startswith(f"Another run is at work in '{folder}' (host ")
        assert f"process {os.getpid()}" in line


def test_a_folder_of_checkpoints_elsewhere_belongs_to_one_run(tmp_path: Path, capsys):
    """Another run would remove its unfinished saves, and go on from its steps."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with alone_in(elsewhere), pytest.raises(SystemExit, match=r"^2$"):
        run(config(tmp_path / "run", *MICRO, f"checkpoint.folder={elsewhere}"))
    (line,) = complaints(capsys.readouterr().err)
    assert line.startswith(f"Another run is at work in '{elsewhere}' (host ")
    assert line.endswith("or choose another checkpoint.folder=...")


@pytest.mark.slow
def test_no_step_is_one_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(config(tmp_path, *MICRO, "steps=0", "evaluation.questions=2", "evaluation.swap_questions=0"))
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Evaluating")]
    assert told == ["Evaluating on held_out (before) ..."]
    found = summary(tmp_path)
    assert found["before"] == found["after"]
    kept = tmp_path / "evaluation" / "trajectories"
    assert sorted(path.name for path in kept.iterdir()) == ["before", "do_nothing"]  # and nothing "after"
