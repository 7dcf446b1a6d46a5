"""A mesh of several devices without a placement gets one, unless the command says where servers are."""

import subprocess
import sys
from pathlib import Path

import pytest

from orchestra_jax.config.checks import load
from orchestra_jax.config.placing import placed
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.planning.layout import layout_of
from tests.composed import composed

ROOT = Path(__file__).parents[2]
HLE = ("+experiment=hle", "model.path=/weights")


def chosen(*words: str) -> tuple[RunConfig, str]:
    found, told = placed(composed(*HLE, *words), [*HLE, *words])
    return load(found), told


@pytest.mark.parametrize("mesh", ["mesh.fsdp=16", "mesh=fsdp16"])
def test_a_bare_mesh_is_placed_as_the_placement_of_that_name_does(mesh: str):
    config, told = chosen(mesh)
    named = load(
        composed(*HLE, "+placement=shared_node", "mesh.fsdp=16", "rollout.server.python=.venv-sglang/bin/python")
    )
    assert config == named
    assert told.startswith("Placement: a server on each of the 8 GPUs of a node, in turns with the trainer")
    assert layout_of(config).problems == ()
    assert layout_of(config).nodes == 2


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (("mesh.fsdp=2",), [[0], [1]]),
        (("mesh.fsdp=4", "mesh.tensor=2"), [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (("mesh.fsdp=8", "plan.gpus_per_node=4"), [[0], [1], [2], [3]]),
    ],
)
def test_there_is_a_server_on_all_gpus_of_a_node(words: tuple[str, ...], gpus: list[list[int]]):
    config, _ = chosen(*words)
    assert config.rollout.server.gpus == gpus
    assert layout_of(config).problems == ()


def test_what_the_command_says_of_servers_wins():
    words = ("mesh.fsdp=8", "rollout.server.python=python", "rollout.server.flags=[--mem-fraction-static,'0.4']")
    config, _ = chosen(*words, "rollout.max_staleness=1", "rollout.oversample=4")
    assert (config.rollout.server.python, config.rollout.max_staleness) == ("python", 1)
    assert config.rollout.server.flags == ["--mem-fraction-static", "0.4"]
    assert config.rollout.server.share_gpus


@pytest.mark.parametrize(
    "words",
    [
        (),  # all devices that there are, however many
        ("mesh.fsdp=1",),
        ("mesh.fsdp=-1",),
        ("mesh.fsdp=16", "rollout=embedded"),
        ("mesh.fsdp=16", "+placement=separate", "rollout.server.python=python"),
        ("mesh.fsdp=16", "rollout.urls=[http://127.0.0.1:30000]"),
        ("mesh.fsdp=16", "rollout.weight_folder=/shared"),
        ("mesh.fsdp=16", "rollout.urls=[]", "rollout.server.python=python", "rollout.server.gpus=[[0]]"),
    ],
)
def test_who_says_where_servers_are_or_has_none_is_left_alone(words: tuple[str, ...]):
    config, told = chosen(*words)
    assert (config, told) == (load(composed(*HLE, *words)), "")


def test_a_run_that_cannot_start_its_servers_says_so(tmp_path: Path):
    command = [sys.executable, str(ROOT / "experiments" / "train.py"), "+experiment=hle", "env=qa", "mesh.fsdp=2"]
    command += ["model.path=/weights", "tools=offline", "data=jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "rollout.server.python=.venv-sglang/bin/python is not there: set rollout.server.python." in done.stderr
