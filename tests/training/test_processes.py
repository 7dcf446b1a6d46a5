"""A run in several processes: the same training as in one, however it was stopped.

Each process is a real one with virtual devices; the policy has one layer.
"""

import json
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from orchestra_jax.models import checkpoint
from orchestra_jax.models.checkpoint.safetensors import ONE_FILE
from orchestra_jax.models.decoder import init_params
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.processes import Processes
from orchestra_jax.processes.lifeline import GONE
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.training.checkpoint_names import newest_checkpoint
from orchestra_jax.training.damaged import problem
from orchestra_jax.training.loggers.jsonl import read_metrics
from tests.processes.running import free_port, lines, start, wait
from tests.training.fake_gcs import serving
from tests.training.test_trainer import (
    DRIVER,
    MICRO,
    assert_same_arrays,
    config,
    final_arrays,
    summary,
    transcripts,
    untimed,
)

STEPS = 4
SMALL = (
    "algorithm.tasks_per_step=4", "algorithm.group_size=2", "algorithm.minibatches=2", "algorithm.packing=true",
    "algorithm.row_length=192", "algorithm.micro_tokens=192", "algorithm.optimizer.name=adamw",
    "algorithm.optimizer.learning_rate=1e-3", "algorithm.optimizer.warmup_steps=0", "algorithm.response_fractions=[]",
    "rollout.slots=8", "rollout.threads=1", "rollout.widths=[64]", "rollout.limits.max_new_tokens=16",
    "evaluation.questions=0", "checkpoint.every=1", "logger.names=[jsonl]", "logger.trajectories=2", "mesh.fsdp=-1",
)  # fmt: skip

# More ways to stop: an error that ends the rollouts of the step after the named one, in the process that it names; and
# rollouts of that step that never end, in a process that is told to stop meanwhile (TOLD) or is not (HANG). ELSEWHERE
# is no way to stop: the process is on a machine of its own, which has the mounts of a file.
RAISING = """
import asyncio, os, signal, sys
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.types import ReplayMiss
from orchestra_jax.rollout.source import RolloutSource

phase, _, rest = sys.argv[1].partition(" ")
step, _, kind = rest.partition(" ")
if kind in ("BudgetExceeded", "ReplayMiss"):
    sys.argv[1] = ""

    def take(self, number, version, budget, informative, original=RolloutSource._take):
        taken = original(self, number, version, budget, informative)
        if number == int(step):
            raise BudgetExceeded("Too dear.", "run") if kind == "BudgetExceeded" else ReplayMiss("Never recorded.")
        return taken

    RolloutSource._take = take
if kind.startswith("ELSEWHERE "):
    import pathlib, socket
    from orchestra_jax.training import prerequisites
    sys.argv[1], prerequisites._MOUNTS = "", pathlib.Path(kind.removeprefix("ELSEWHERE "))
    socket.gethostname = lambda: f"node-{os.getpid()}"
if kind in ("HANG", "TOLD"):
    from orchestra_jax.rollout import collector
    sys.argv[1] = ""

    def take(self, number, version, budget, informative, original=RolloutSource._take):
        if number == int(step):
            collector.EpisodePlayer.play = lambda self, parent, on_done=None: asyncio.Event().wait()
            if kind == "TOLD":
                os.kill(os.getpid(), signal.SIGTERM)
        return original(self, number, version, budget, informative)

    RolloutSource._take = take
"""


def make_policy(folder: Path) -> Path:
    """A checkpoint of one layer with the words of the quickstart."""
    chat = make_chat(config(folder))
    model = Qwen3Config(
        vocab_size=len(chat.tokenizer), hidden_size=32, intermediate_size=48, num_layers=1, num_heads=4,
        num_kv_heads=2, head_dim=8, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    checkpoint.save(folder / "policy", model, init_params(model, jax.random.key(0)), tokenizer=chat.tokenizer)
    return folder / "policy"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"))


def begin(
    folder: Path,
    policy: Path,
    *overrides: str,
    count: int = 2,
    devices: int = 4,
    stops: dict | None = None,
    launched: bool = False,
) -> list:
    """The processes of a run on so many devices in all.

    Args:
        stops: where DRIVER stops a process, by its index.
        launched: they find each other by what Slurm's launcher tells them, not by their settings.
    """
    port = free_port()

    def told(index: int) -> tuple[list[str], dict[str, str]]:
        if count == 1:
            return [], {}
        if launched:
            return [], {
                "SLURM_STEP_NUM_TASKS": str(count), "SLURM_JOB_ID": str(port - 61440), "SLURM_PROCID": str(index),
                "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_STEP_NUM_NODES": str(count),
            }  # fmt: skip
        return [f"mesh.coordinator=127.0.0.1:{port}", f"mesh.processes={count}", f"mesh.process={index}"], {}

    def started(index: int) -> Any:
        settings, environment = told(index)
        command = [
            "-c", RAISING + DRIVER, (stops or {}).get(index, ""), "experiments/train.py", f"output_dir={folder}",
            f"model.path={policy}", f"steps={STEPS}", *SMALL, *settings, *overrides,
        ]  # fmt: skip
        return start(command, devices // count, environment)

    return [started(index) for index in range(count)]


def run(*args, **settings) -> list:
    """`begin`, to the end."""
    return wait(begin(*args, **settings))


def assert_ended(ended: list, *codes: int) -> None:
    assert [process.returncode for process in ended] == list(codes), "\n".join(process.stderr for process in ended)


def furthest(one: Path, other: Path) -> float:
    """The largest difference of two runs' newest arrays."""
    pairs = zip(final_arrays(one), final_arrays(other), strict=True)
    return max(float(np.abs(x.astype(np.float64) - y).max(initial=0.0)) for x, y in pairs)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> Path:
    """The folder of an undisturbed run in two processes, the ranks of a launcher: one run, not two in one folder."""
    folder = tmp_path_factory.mktemp("whole")
    first, second = ended = run(folder, policy, launched=True)
    assert_ended(ended, 0, 0)
    assert lines(second.stdout) == []  # the first one prints
    assert "The policy is in" in first.stdout
    assert [row["step"] for row in read_metrics(folder)] == [1, 2, 3, 4]
    assert (folder / "rollouts" / "step-000001.1.jsonl.gz").is_file()  # the second rank's share of the groups
    newest = newest_checkpoint(folder / "checkpoints")
    assert {file.name for file in (newest / "arrays").glob("checksums.*.json")} == {
        "checksums.0.json",
        "checksums.1.json",
    }
    assert problem(newest, Processes()) is None
    for index in range(2):
        file = max((newest / "arrays" / f"ocdbt.process_{index}" / "d").iterdir(), key=lambda path: path.stat().st_size)
        content = file.read_bytes()
        file.write_bytes(content[:-9] + bytes([content[-9] ^ 4]) + content[-8:])
        assert file.name in str(problem(newest, Processes()))
        file.write_bytes(content)
    return folder


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path, policy: Path, whole: Path):
    assert_ended(run(tmp_path, policy, count=1), 0)
    assert furthest(tmp_path, whole) < 1e-5
    assert transcripts(tmp_path) == transcripts(whole)
    for one, two in zip(read_metrics(tmp_path), read_metrics(whole), strict=True):
        assert one.keys() == two.keys()
        for name in ("reward/mean", "tokens/sampled", "staleness/max", "loss", "grad_norm", "entropy", "kl/ref"):
            assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name


@pytest.mark.release
def test_a_killed_process_ends_the_other_and_the_run_goes_on_bit_for_bit(tmp_path: Path, policy: Path, whole: Path):
    for lost in (0, 1):  # after the first step, and in the run that goes on after the second
        ended = run(tmp_path, policy, stops={lost: f"policy {1 + lost} SIGKILL"})
        assert_ended(ended, *(-signal.SIGKILL if index == lost else GONE for index in range(2)))
        assert f"Process {lost} of 2 is gone, so process {1 - lost} ends too" in ended[1 - lost].stderr
    assert_ended(run(tmp_path, policy), 0, 0)
    assert_same_arrays(tmp_path, whole)
    assert untimed(read_metrics(tmp_path)) == untimed(read_metrics(whole))
    assert transcripts(tmp_path) == transcripts(whole)


@pytest.mark.release  # slow tests kill two processes (above) and one that saves into a bucket (test_buckets.py)
@pytest.mark.skipif(find_spec("gcsfs") is None, reason="gcsfs is not installed")
def test_checkpoints_in_a_bucket_survive_a_kill_bit_for_bit(tmp_path: Path, policy: Path, whole: Path):
    with serving("orchestra-two") as store:
        place = "checkpoint.folder=gs://orchestra-two/run"
        assert_ended(run(tmp_path, policy, place, stops={1: "policy 2 SIGKILL"}), GONE, -signal.SIGKILL)
        first, _ = ended = run(tmp_path, policy, place)
        assert_ended(ended, 0, 0)
        assert "Continues from gs://orchestra-two/run/policy-00000" in first.stdout
        for index in range(2):  # each wrote its own shard
            assert any(
                f"policy-000004/arrays/ocdbt.process_{index}/d/" in name for name in store.objects["orchestra-two"]
            )
    assert not (tmp_path / "checkpoints").exists()
    ours, theirs = ((folder / "policy" / ONE_FILE).read_bytes() for folder in (tmp_path, whole))
    assert ours == theirs
    assert untimed(read_metrics(tmp_path)) == untimed(read_metrics(whole))


@pytest.mark.slow
def test_ctrl_c_in_one_process_stops_both_and_one_process_goes_on(tmp_path: Path, policy: Path, whole: Path):
    first, second = ended = run(tmp_path, policy, stops={1: "policy 2 SIGINT"})
    assert_ended(ended, 130, 130)
    assert lines(first.stderr) == ["Stopped after step 2 of policy; the same command continues from there."]
    assert lines(second.stderr) == []
    assert_ended(run(tmp_path, policy, count=1), 0)
    assert furthest(tmp_path, whole) < 1e-5
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3, 4]


@pytest.mark.slow
def test_what_ends_the_rollouts_of_one_process_ends_both(tmp_path: Path, policy: Path, whole: Path):
    """An error, the next one in the run that goes on, and there a signal amid a step without end."""
    told = ("checkpoint.grace_s=1", "checkpoint.every=50")
    for step, stops, settings, code, words in (
        (1, {1: "policy 1 BudgetExceeded"}, (), 3, ""),
        (2, {1: "policy 2 ReplayMiss"}, (), 3, ""),
        (3, {0: "policy 3 HANG", 1: "policy 3 TOLD"}, told, 130, ": the next one did not end within"),
    ):  # fmt: skip  # one way to stop a line
        first, second = ended = run(tmp_path, policy, *settings, stops=stops)
        assert_ended(ended, code, code)
        (sentence,) = lines(first.stderr)
        assert f"Stopped after step {step} of policy{words}" in sentence
        assert lines(second.stderr) == []
    assert_ended(run(tmp_path, policy), 0, 0)
    assert_same_arrays(tmp_path, whole)


@pytest.mark.release
def test_rollouts_run_ahead_in_both_and_another_number_of_processes_goes_on(tmp_path: Path, policy: Path):
    ahead = ("rollout.lockstep=false", "rollout.max_staleness=1", "rollout.slots=16")
    assert_ended(run(tmp_path, policy, *ahead, stops={0: "policy 2 SIGINT"}), 130, 130)
    assert_ended(run(tmp_path, policy, *ahead, count=1, stops={0: "policy 3 SIGINT"}), 130)
    assert_ended(run(tmp_path, policy, *ahead), 0, 0)
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert max(row["staleness/max"] for row in rows) <= 1
    asked = [line for text in transcripts(tmp_path).values() for line in text.splitlines() if line.startswith("task ")]
    assert len(set(asked)) == len(asked) == 4 * 2  # logger.trajectories: no task is lost or comes twice


def test_what_several_processes_cannot_do_is_said_once(tmp_path: Path, policy: Path):
    first, second = ended = run(
        tmp_path, policy, "algorithm.minibatches=4", "algorithm.reference_offload=true", "mesh.fsdp=1", "mesh.tensor=4"
    )
    assert_ended(ended, 2, 2)
    found = lines(first.stderr)
    assert len(found) == 3
    assert "keep mesh.tensor within a process" in found[0]
    assert "does not give each of 2 processes whole groups" in found[1]
    assert "algorithm.reference_offload=false" in found[2]
    assert lines(second.stderr) == []


@pytest.mark.release
def test_a_warm_start_and_its_evaluations_are_those_of_one_process(tmp_path: Path):
    found = []
    for count in (1, 2):
        folder, port = tmp_path / str(count), free_port()
        for script in ("train", "evaluate"):
            command = [f"experiments/{script}.py", f"output_dir={folder}", *MICRO, "steps=1", "mesh.fsdp=-1"]
            others = [f"mesh.coordinator=127.0.0.1:{port}", f"mesh.processes={count}"] if count > 1 else []
            started = [
                start([*command, *others, *([f"mesh.process={index}"] if others else [])], 2 // count)
                for index in range(count)
            ]
            assert_ended(wait(started), *[0] * count)
        alone = json.loads((folder / "evaluation" / "summary.json").read_text())
        found.append((summary(folder), alone["benchmarks"], alone["baselines"]))
        assert alone["benchmarks"]["held_out"] == summary(folder)["after"]
    (one, *figures), (two, *others) = found
    for name in ("copy_accuracy", "before", "after", "preference_swap", "baselines"):
        assert one[name] == two[name], name
    assert figures == others


@pytest.mark.release
def test_twenty_steps_and_ten_kills(tmp_path: Path, policy: Path):
    """The figures of the audit: 2 x 4 devices against 8, and kill -9 of either process at random moments."""
    long = ("steps=20", "evaluation.questions=4", "evaluation.swap_questions=0", "evaluation.every=10")
    assert_ended(run(tmp_path / "one", policy, *long, count=1, devices=8), 0)
    began = time.monotonic()
    assert_ended(run(tmp_path / "two", policy, *long, devices=8), 0, 0)
    seconds, difference = time.monotonic() - began, furthest(tmp_path / "one", tmp_path / "two")
    print(f"\nlargest difference after 20 steps {difference:.3g}; {seconds:.0f} s in two processes")
    order, folder, killed = np.random.default_rng(7), tmp_path / "killed", list[tuple[int, int, float]]()
    for number in range(10):
        victim, target = int(order.integers(2)), last_step(folder) + int(order.integers(1, 3))
        begun = begin(folder, policy, *long, devices=8)
        if number in (3, 7):  # while it starts
            time.sleep(order.uniform(0.15, 0.3) * seconds)
        while number not in (3, 7) and last_step(folder) < target and begun[victim].poll() is None:
            time.sleep(0.1)
        time.sleep(order.uniform(0, 1))
        begun[victim].kill()
        moment = time.monotonic()
        ended = wait(begun)
        assert ended[victim].returncode == -signal.SIGKILL
        left = ended[1 - victim]
        assert left.returncode in (GONE, 2), left.stderr  # 2: they had not met yet
        if left.returncode == GONE:
            killed.append((victim, last_step(folder), time.monotonic() - moment))
            print("killed process, last step, seconds until the other ended:", killed[-1])
            assert killed[-1][-1] < 60
    assert_ended(run(tmp_path / "killed", policy, *long, devices=8), 0, 0)
    assert len(killed) >= 8
    assert_same_arrays(tmp_path / "killed", tmp_path / "two")
    assert difference < 1e-4


def last_step(folder: Path) -> int:
    return max((row["step"] for row in read_metrics(folder)), default=0) if (folder / "metrics.jsonl").exists() else 0
