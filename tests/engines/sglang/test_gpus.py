"""Trainer and servers on their own GPUs, on their own nodes, and on the same GPUs in turns."""

import asyncio
import re
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from orchestra_jax.config.rollout import RolloutConfig, ServerOptions
from orchestra_jax.engines.base import RunEngine
from orchestra_jax.engines.embedded import EmbeddedEngine
from orchestra_jax.engines.sglang import gpus as placement
from orchestra_jax.engines.sglang.start import SGLangRunEngine, own_servers
from orchestra_jax.processes import Processes
from orchestra_jax.rl.learner import Learner
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.training.build import preflight
from orchestra_jax.training.main import run
from tests.training.test_trainer import MICRO, config

OWN = ("rollout.server.python=/bin/sh",)
SHORT = (
    *MICRO, "steps=2", "evaluation.every=0", "evaluation.questions=2", "evaluation.swap_questions=0",
    "checkpoint.export=false",
)  # fmt: skip


def rollout(gpus: list[list[int]], **server) -> RolloutConfig:
    options = ServerOptions(python="python", gpus=gpus, **server)
    return RolloutConfig(engine="sglang", server=options)


# --- what a run with shared GPUs does in which order ---


@pytest.mark.slow
def test_a_run_releases_before_every_update_and_resumes_before_it_rolls_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    order = []

    def note(owner: type, name: str, word: str) -> None:
        original = getattr(owner, name)

        def noted(*args, **kwargs):
            order.append(word)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    note(RunEngine, "free_gpus", "release")
    note(EmbeddedEngine, "update_weights", "resume")
    note(Learner, "supervised_step", "learn")
    note(Learner, "policy_step", "learn")
    note(Collector, "collect", "roll out")
    # Without it nothing would be learned from: a policy of four steps solves nothing.
    every = ("algorithm.advantage.min_std=0", "algorithm.loss.kl_coef=0.01")
    run(config(tmp_path / "run", *SHORT, *every))
    steps = [word for word, _ in groupby(order)]
    seen = " ".join(steps)
    # Two warm-start steps before either measurement, then an evaluation, and two steps of the policy.
    assert seen.startswith("release learn release learn resume roll out release learn release learn resume roll out")
    for before, word in pairwise(steps):
        assert word != "learn" or before in ("release", "learn"), seen
        assert word != "roll out" or before == "resume", seen
    assert seen.count("roll out release learn resume") >= 2
    assert steps[-1] == "roll out"


def test_only_servers_that_share_are_asked_for_their_memory():
    class Server:
        released = 0

        async def release_memory(self):
            self.released += 1

    engine = Server()
    for shares, times in ((False, 0), (True, 1)):
        asyncio.run(SGLangRunEngine(engine, shares_gpus=shares).free_gpus())  # type: ignore[arg-type]
        assert engine.released == times


# --- the three groups ---


def test_separate_gpus(tmp_path: Path):
    cfg = config(tmp_path, "+experiment=hle", "+placement=separate", *OWN)
    servers = own_servers(cfg.rollout, 3, tmp_path, Processes())
    assert [server.config.gpus for server in servers] == [(4,), (5,), (6,), (7,)]
    assert len({server.url for server in servers}) == 4
    assert {server.config.environment()["CUDA_VISIBLE_DEVICES"] for server in servers} == {"4", "5", "6", "7"}
    assert not any("--enable-memory-saver" in server.config.command(1) for server in servers)
    assert (cfg.mesh.data, cfg.mesh.fsdp, cfg.mesh.tensor) == (1, -1, 1)
    assert not cfg.rollout.server.share_gpus


def test_separate_nodes(tmp_path: Path):
    cfg = config(
        tmp_path,
        "+experiment=hle",
        "+placement=nodes",
        "rollout.urls=[http://b:30000,http://c:30000]",
        "rollout.weight_folder=/w",
    )
    assert cfg.rollout.urls == ["http://b:30000", "http://c:30000"]
    assert (cfg.rollout.weight_folder, cfg.mesh.fsdp) == ("/w", -1)


def test_shared_gpus(tmp_path: Path):
    cfg = config(tmp_path, "+experiment=hle", "+placement=shared", *OWN)
    (server,) = own_servers(cfg.rollout, 3, tmp_path, Processes())
    command = server.config.command(1)
    assert "--enable-memory-saver" in command
    assert command[-1] == "--mem-fraction-static=0.5"
    assert server.config.environment()["CUDA_VISIBLE_DEVICES"] == "0"
    assert cfg.rollout.server.share_gpus
    two = config(tmp_path, "+experiment=hle", "+placement=shared", *OWN, "rollout.server.gpus=[[0,1],[2,3]]")
    commands = [server.config.command(1) for server in own_servers(two.rollout, 3, tmp_path, Processes())]
    assert ["--tp-size=2" in command for command in commands] == [True, True]


def test_a_cpu_server_has_no_memory_to_save(tmp_path: Path):
    cfg = config(tmp_path, "+placement=shared", *OWN, "rollout.server.device=cpu")
    (server,) = own_servers(cfg.rollout, 0, tmp_path, Processes())
    assert "--enable-memory-saver" not in server.config.command(1)


# --- which GPUs are whose ---


@pytest.mark.parametrize(
    ("gpus", "visible", "local", "sentence"),
    [
        ([[4], [5]], "0,1,2,3", [0, 1, 2, 3], None),
        ([[0]], "7,6", [0, 1], None),
        ([[0]], "GPU-aa,GPU-bb", [0, 1], None),  # names cannot be compared
        ([[0]], None, [], None),  # JAX has no GPU
        ([[6], [7]], None, list(range(8)), "GPU 6 is the trainer's and .*CUDA_VISIBLE_DEVICES=0,1,2,3,4,5, or share"),
        ([[6, 7]], "5,6,7", [0, 1, 2], "GPU 6 is the trainer's and .*: start the trainer with .*DEVICES=5, or"),
        ([[0]], "0", [0], "CUDA_VISIBLE_DEVICES=the numbers of other GPUs"),
        ([[4], [4]], "0", [0], r"rollout.server.gpus=\[\[4\], \[4\]\] does not name distinct GPUs\."),
        ([], None, [0], r"The servers would start on the trainer's GPUs: name theirs in rollout\.server\.gpus"),
    ],
)
def test_a_gpu_that_is_both_trainers_and_servers_is_named(gpus, visible, local, sentence):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = placement._conflicts(rollout(gpus), local, environment)
    if sentence is None:
        assert found == []
    else:
        (text,) = found
        assert re.search(sentence, text), text
        assert text.endswith(".")


@pytest.mark.parametrize(("allocator", "count"), [(None, 1), ("default", 1), ("BFC", 1), ("platform", 0)])
def test_shared_gpus_need_an_allocator_that_gives_memory_back(allocator, count):
    environment = {} if allocator is None else {"XLA_PYTHON_CLIENT_ALLOCATOR": allocator}
    found = placement._conflicts(rollout([[0]], share_gpus=True), [0], environment)
    assert len(found) == count
    assert all("XLA_PYTHON_CLIENT_ALLOCATOR=platform" in text and text.endswith(".") for text in found)


def test_preflight_asks_for_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Gpu:
        platform, local_hardware_id = "gpu", 0

    cfg = config(tmp_path, "+placement=shared", *OWN)
    preflight(cfg)
    monkeypatch.setattr(placement.jax, "local_devices", lambda: [Gpu()])
    monkeypatch.delenv("XLA_PYTHON_CLIENT_ALLOCATOR", raising=False)
    with pytest.raises(ValueError, match=r"XLA_PYTHON_CLIENT_ALLOCATOR=platform before it starts\.$"):
        preflight(cfg)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")
    preflight(cfg)
    # Servers elsewhere, or none on GPUs, disturb nothing.
    assert placement.gpu_conflicts(replace(cfg.rollout, urls=["http://b:1"])) == []
    assert placement.gpu_conflicts(rollout([], device="cpu")) == []
    assert placement.gpu_conflicts(rollout([])) != []
