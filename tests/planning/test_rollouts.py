"""The roofline of the rollouts, worked by hand, and the plan in one look."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from orchestra_jax.config.algorithm import OptimizerConfig
from orchestra_jax.models.gpus import GIB, find_gpu
from orchestra_jax.models.lora import LoRA
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.models.qwen3_moe import Qwen3MoeConfig
from orchestra_jax.planning.glance import checkpoint_bytes, servers_of, show_glance
from orchestra_jax.planning.hlo import ProgramCost
from orchestra_jax.planning.layout import layout_of
from orchestra_jax.planning.plan import Job, Plan, Program
from orchestra_jax.planning.report import job_of
from orchestra_jax.planning.rollouts import Assumed, Servers, cache_bytes, estimate, mean_context
from orchestra_jax.rl.batching import BatchShape
from orchestra_jax.rl.learner import LearnerConfig
from orchestra_jax.rl.losses import LossConfig
from tests.training.test_trainer import config

HLE = ("+experiment=hle", "model.path=null", "model.random_init=true", "rollout.server.python=python")
# 4 layers of 8 heads of 8: 64 * 64 four times, 64 * 128 three times; ids and head; norms.
LAYERS = 4 * (4 * 64 * 64 + 3 * 64 * 128) + 64 + 4 * (2 * 64 + 2 * 8)
HEAD = 512 * 64
MODEL = Qwen3Config(512, 64, 128, 4, 8, 8, 8, dtype="bfloat16")
# 1 TB/s and 1 TFLOP/s.
GPU = dataclasses.replace(find_gpu("h100"), bandwidth=1e12, tflops=1.0)


def job(**changes: object) -> Job:
    """128 trajectories of 1,000 tokens, 200 of them sampled, in one sequence."""
    shape = BatchShape(1, 1000, 4, 1000, 1, 0, True, 500)
    made = Job(MODEL, LearnerConfig(LossConfig()), OptimizerConfig(1e-3), (1, 1, 1), shape, 128, 1000, 0.2)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_the_roofline_by_hand() -> None:
    weights, each = 2 * (LAYERS + 2 * HEAD), 2 * 4 * 64 * 2  # bytes; of one token: keys and values, 4 layers, bf16
    # Four turns of 250 tokens that end with 50 sampled ones: 225, 475, 725 and 975 tokens before the middle of each.
    context = (225 + 475 + 725 + 975) / 4
    assert cache_bytes(MODEL) == each
    assert mean_context([1000], 0.2, 4) == pytest.approx(context)

    found = estimate(job(), GPU, Servers(4, 1, 16, 1e9), Assumed(4, 0.5, 0.8, 3, 20.0, 5.0))

    # 32 trajectories on each server, 16 at a time: in two waves of 200 decoding steps.
    assert (found.concurrent, found.wanted, found.weights) == (16, 16, weights)
    assert found.cache == pytest.approx(16 * each * context)
    bytes_s = (weights + 16 * each * context) / (0.8 * 1e12)
    flops_s = 16 * (2 * (LAYERS + HEAD) + 4 * 4 * 64 * context) / (0.5 * 1e12)
    assert flops_s > bytes_s
    assert found.token_s == pytest.approx(flops_s)
    assert found.decode_s == pytest.approx(2 * 200 * flops_s)
    # Prefill: 800 tokens of each, with 500 before them on average; the head is for sampled tokens.
    assert found.prefill_s == pytest.approx(32 * 800 * (2 * LAYERS + 4 * 4 * 64 * 500) / 0.5e12)
    assert found.calls_s == 2 * (3 * 20.0 + 5.0)
    assert found.seconds == found.decode_s + found.prefill_s + found.calls_s

    # Real GPUs have more arithmetic for a byte: there the bytes decide. Two GPUs read half of them each.
    fast = dataclasses.replace(GPU, tflops=100.0)
    assert estimate(job(), fast, Servers(4, 1, 16, 1e9), Assumed(4, 0.5, 0.8, 0, 0.0)).token_s == pytest.approx(bytes_s)
    double = estimate(job(), fast, Servers(4, 2, 16, 1e9), Assumed(4, 0.5, 0.8, 0, 0.0))
    assert double.token_s == pytest.approx(bytes_s / 2)
    assert double.weights == weights / 2


def test_a_decoding_step_reads_the_experts_that_its_tokens_are_sent_to() -> None:
    model = Qwen3MoeConfig(512, 64, 128, 4, 8, 8, 8, expert_size=512, num_experts=8, experts_per_token=2)
    servers, assumed = Servers(4, 1, 2, 1e9), Assumed(4, 0.5, 1e-3, 0, 0.0)  # the memory is what takes time
    found = estimate(job(model=model), GPU, servers, assumed)
    experts = 2 * 4 * 8 * 3 * 64 * 512  # bytes
    assert found.concurrent == 2
    read = found.weights - experts * (6 / 8) ** 2  # each of two tokens leaves 6 of 8
    assert found.token_s == pytest.approx((read + found.cache) / 1e9)


def test_dropped_thoughts_sample_more_and_later() -> None:
    found = estimate(job(forks=4), GPU, Servers(4, 1, 32, 1e9), Assumed(4, 0.5, 0.8, 0, 0.0))
    # Sequences of 250, 500, 750 and 1,000, a fifth of each sampled at its end.
    assert found.sampled == pytest.approx(500)
    assert found.context == pytest.approx((50 * 225 + 100 * 450 + 150 * 675 + 200 * 900) / 500)
    # What was not sampled is prefilled once: the next turn's context is in the cache.
    whole = estimate(job(), GPU, Servers(4, 1, 32, 1e9), Assumed(4, 0.5, 0.8, 0, 0.0))
    assert found.prefill_s == whole.prefill_s


def test_a_cache_that_is_too_small_makes_waves() -> None:
    sequence = 600 * cache_bytes(MODEL)
    room = 2 * (LAYERS + 2 * HEAD) + 8.5 * sequence
    found = estimate(job(), GPU, Servers(4, 1, 16, room), Assumed(4, 0.5, 0.8, 3, 20.0))
    assert (found.concurrent, found.wanted) == (8, 16)
    assert found.calls_s == 4 * 3 * 20.0
    none = estimate(job(), GPU, Servers(4, 1, 16, 1000.0), Assumed(4, 0.5, 0.8, 3, 20.0))
    assert none.concurrent == 0


def planned(cfg) -> Plan:
    """A plan of what was not compiled: 6 GiB of state beside 1 of gradients, a peak of 50."""
    cost = ProgramCost(0.0, 0.0, (), ())
    program = Program(0.0, 3 * GIB, 0, 0, 37 * GIB, cost)
    state = {"parameters": 2 * GIB, "base": 0, "reference": GIB, "optimizer": 3 * GIB, "gradients": GIB}
    gpu = find_gpu("h100")
    programs = {"gradients": program, "update": program}
    return Plan(job_of(cfg), gpu, int(0.92 * gpu.memory), "cuda", (), programs, state, 0.4)


@pytest.mark.parametrize(
    ("overrides", "servers"),
    [
        (("+placement=shared_node", "mesh.fsdp=16"), (16, 1, 16, 0.5 * (84942979072 - 6 * GIB), 6 * GIB)),
        (("+placement=separate", "mesh.fsdp=8", "rollout.server.gpus=[[4,5],[6,7]]"),
         (4, 2, 64, 0.92 * 84942979072, 0)),
        (("+placement=separate", "mesh.fsdp=8", "rollout.server.flags=[--mem-fraction-static,'0.8']"),
         (8, 1, 32, 0.8 * 84942979072, 0)),
        (("+placement=nodes", "rollout.urls=[http://b:1,http://c:1]", "rollout.weight_folder=/w", "mesh.fsdp=8",
          "plan.server_gpus=4"), (2, 4, 64, int(0.92 * 84942979072), 0)),
        (("rollout=embedded", "mesh.fsdp=1"), (1, 1, 32, int(0.92 * 84942979072) - 6 * GIB, 6 * GIB)),
    ],
)  # fmt: skip
def test_the_servers_of_a_layout(tmp_path: Path, overrides, servers) -> None:
    cfg = config(tmp_path, *HLE, *overrides)
    assert dataclasses.astuple(servers_of(cfg, planned(cfg), layout_of(cfg))) == pytest.approx(servers)


def looked_at(tmp_path: Path, *overrides: str) -> str:
    cfg = config(tmp_path, *HLE, "+placement=shared_node", "mesh.fsdp=16", *overrides)
    console = Console(record=True, width=200, file=open(os.devnull, "w"))  # noqa: SIM115
    show_glance(cfg, planned(cfg), layout_of(cfg), console)
    return console.export_text()


def test_a_plan_in_one_look(tmp_path: Path) -> None:
    text = looked_at(tmp_path, "plan.mfu=0.5")
    rows = dict(line.split("│")[1:3] for line in text.splitlines() if line.startswith("│"))
    found = {name.strip(): value.strip() for name, value in rows.items()}
    assert list(found) == [
        "memory of a GPU, update", "memory of a GPU, rollouts", "seconds of the update", "seconds of the rollouts",
        "seconds of a step", "dollars of a step", "dollars of 300 steps", "a checkpoint",
    ]  # fmt: skip
    assert found["memory of a GPU, update"] == "44.4 GiB"  # 40, the optimizer's 3, the reference's 1, micro-batches' .4
    update, rollouts = int(found["seconds of the update"]), int(found["seconds of the rollouts"])
    assert int(found["seconds of a step"]) == pytest.approx(update + rollouts, abs=1)
    assert float(found["dollars of 300 steps"]) == pytest.approx(300 * float(found["dollars of a step"]), abs=2)
    assert "calls at random" in text
    assert "judge" in text
    for key in ("turns", "tokens", "response", "bandwidth", "mfu", "calls", "call_input", "call_output"):
        assert f"plan.{key}=" in text
    assert "s, the price list's mean" in text
    assert "6.0 of the trainer" in text


def test_a_few_cents_are_not_told_as_nothing(tmp_path: Path) -> None:
    small = ("algorithm.tasks_per_step=1", "algorithm.group_size=2", "steps=3", "tools.names=[python,local_search]")
    text = looked_at(tmp_path, *small, "plan.call_input=100", "plan.call_output=50", "tools.judge=match")
    found = {name.strip(): value for name, value in (line.split("│")[1:3] for line in text.splitlines() if "│" in line)}
    step, run = float(found["dollars of a step"]), float(found["dollars of 3 steps"])
    assert 0 < step < 0.01
    assert run == pytest.approx(3 * step, rel=0.1)


def test_what_a_checkpoint_holds_by_hand() -> None:
    params = LAYERS + 2 * HEAD
    few = 64  # bytes of the counts of steps
    for changes, each in (
        ({}, 4 + 8),
        ({"reference": "bfloat16"}, 4 + 8 + 2),
        ({"optimizer": OptimizerConfig(1e-3, moment_dtype="bfloat16")}, 4 + 4),
        ({"optimizer": OptimizerConfig(1e-3, moment_dtype="bfloat16"), "reference": "float32"}, 4 + 4 + 4),
    ):
        assert params * each <= checkpoint_bytes(job(**changes)) <= params * each + few
    adapters = checkpoint_bytes(job(adapters=LoRA(rank=4, alpha=8), reference="bfloat16"))
    assert adapters < params  # their base is read again


def test_the_plan_tells_whether_the_checkpoints_find_room(tmp_path: Path, monkeypatch) -> None:
    def row(*overrides: str) -> str:
        return next(
            line for line in looked_at(tmp_path, "checkpoint.keep=3", *overrides).splitlines() if "a checkp" in line
        )

    free = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free._replace(free=10**12))
    assert "3 kept and one being written are 393 GB; fits into the 1000 GB free here" in row()
    assert "a checkpoint" in row()
    assert "98 GB" in row()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free._replace(free=10**11))
    assert "does not fit into the 100 GB free here" in row()
    assert "393 GB, in gs://bucket/run" in row("checkpoint.folder=gs://bucket/run")
    assert "fit" not in row("checkpoint.folder=gs://bucket/run")


def test_a_look_at_what_is_short(tmp_path: Path) -> None:
    assert "the servers have no room for one sequence" in looked_at(
        tmp_path, "rollout.server.flags=['--mem-fraction-static=0.1']"
    )
    replayed = looked_at(tmp_path, "replay.mode=replay", "replay.path=x.db", "tools.judge=match")
    assert "no call is paid" in replayed
