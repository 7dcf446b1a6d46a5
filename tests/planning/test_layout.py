"""The layout that the planner prints, and what it refuses."""

from pathlib import Path

import pytest

from orchestra_jax.planning.layout import layout_of
from orchestra_jax.rollout.sharing import process_problems
from tests.training.test_trainer import config

HLE = ("+experiment=hle", "model.path=/weights", "rollout.server.python=python")


def planned(tmp_path: Path, *overrides: str):
    return layout_of(config(tmp_path, *HLE, *overrides))


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ("+placement=separate", "mesh.fsdp=8"),
            "2 processes, one on each node, with 4 GPUs for the trainer; 4 servers beside it (GPUs 4, 5, 6, 7). A "
            "process collects at most 8 groups",
        ),
        (
            ("+placement=shared_node", "mesh.fsdp=16"),
            "2 processes, one on each node, with 8 GPUs for the trainer; 8 servers on the same GPUs in turns",
        ),
        (
            ("+placement=nodes", "rollout.urls=[http://b:1]", "rollout.weight_folder=/w", "mesh.fsdp=8"),
            "one process with 8 GPUs for the trainer; 1 servers on other nodes",
        ),
        (("rollout=embedded", "mesh.fsdp=1"), "one process with 1 GPU for the trainer, whose first one also samples"),
    ],
)
def test_the_layout_is_told(tmp_path: Path, overrides, text: str):
    layout = planned(tmp_path, *overrides)
    assert layout.problems == ()
    assert text in layout.text()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("+placement=separate", "mesh.fsdp=6"), "6 trainer GPUs do not fill nodes that have 4 for it"),
        (("+placement=separate", "mesh.fsdp=8", "plan.gpus_per_node=4"), "does not name distinct GPUs of a node of 4"),
        (("+placement=shared", "mesh.fsdp=16"), "Each process has 8 GPU(s) and 1 of them have servers in turns"),
        (("+placement=shared_node", "mesh.fsdp=2", "mesh.tensor=16"), "mesh.tensor=16 does not divide the 8 device(s)"),
        (
            ("+placement=nodes", "rollout.urls=[http://b:1]", "rollout.weight_folder=/w", "mesh.fsdp=16"),
            "rollout.urls names 1 server(s) for 2 processes",
        ),
        (
            ("+placement=shared_node", "mesh.fsdp=16", "algorithm.minibatches=16"),
            "algorithm.tasks_per_step=16 in 16 minibatches does not give each of 2 processes whole groups",
        ),
    ],
)
def test_what_cannot_run_is_refused(tmp_path: Path, overrides, sentence: str):
    assert any(sentence in problem for problem in planned(tmp_path, *overrides).problems)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("+placement=separate",), "2 processes of one machine would start their servers on the same GPUs"),
        (("+placement=shared_node",), "2 processes of one machine would start their servers on the same GPUs"),
        (("+placement=separate", "rollout.server.device=cpu"), None),
        (("+placement=separate", "rollout.urls=[http://127.0.0.1:1,http://127.0.0.1:2]"), None),
        (("rollout=embedded",), None),
    ],
)
def test_processes_of_one_machine_do_not_start_servers_on_the_same_gpus(tmp_path: Path, overrides, sentence):
    cfg = config(tmp_path, *HLE, *overrides)
    assert process_problems(cfg.algorithm, cfg.rollout, 2, 4, 1, beside=1) == []
    found = process_problems(cfg.algorithm, cfg.rollout, 2, 4, 1, beside=2)
    assert found == [] if sentence is None else sentence in found[0]
    assert len(found) <= 1
