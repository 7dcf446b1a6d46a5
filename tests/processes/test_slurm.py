"""experiments/slurm.sh under a stand-in for Slurm: the commands of three layouts, and a run in two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.loggers.rollouts import FOLDER
from tests.training.test_processes import SMALL, policy

from .running import ROOT, free_port

__all__ = ["policy"]  # a fixture
FAKE = Path(__file__).with_name("fake_slurm.py")


def script(path: Path, text: str) -> Path:
    """A program of this text."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def until(condition: str) -> str:
    """A trainer that ends when the condition holds: the script stops the servers then."""
    return f"#!/bin/sh\nfor _ in $(seq 600); do {condition} && exit 0; sleep 0.1; done\nexit 1\n"


def sbatch(tmp_path: Path, *arguments: str, hosts: str = "127.0.0.1,127.0.0.1", **variables: str):
    """What sbatch makes of the script: its job on so many hosts; and the steps that it started."""
    tools, log = tmp_path / "tools", tmp_path / "steps.jsonl"
    tools.mkdir()
    for name in ("srun", "scontrol"):
        script(tools / name, f'#!/bin/sh\nexec {sys.executable} {FAKE} {name} "$@"\n')
    job = {
        "PATH": f"{tools}:{os.environ['PATH']}", "FAKE_SLURM_LOG": str(log), "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": str(free_port() - 61440), "SLURM_JOB_NODELIST": hosts,
        "SLURM_JOB_NUM_NODES": str(len(hosts.split(","))), "JAX_PLATFORMS": "cpu",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "experiments/slurm.sh", *arguments], cwd=ROOT, env=os.environ | job | variables, text=True,
        capture_output=True, timeout=600,
    )  # fmt: skip
    steps = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return done, steps


def test_shared_and_separate_start_a_trainer_on_every_node(tmp_path: Path):
    for layout, placement, before in (
        ("shared", "shared_node", []),
        ("separate", "separate", ["env", "CUDA_VISIBLE_DEVICES=0,1,2,3"]),
    ):
        (tmp_path / layout).mkdir()
        done, (step,) = sbatch(
            tmp_path / layout, layout, "+experiment=hle", "a=b c", PYTHON="true", SGLANG_PYTHON="/sglang/python"
        )
        assert done.returncode == 0, done.stderr
        assert step["options"] == {"--kill-on-bad-exit": "1", "--label": "", "--ntasks-per-node": "1"}
        assert step["command"] == [
            *before, "true", "experiments/train.py", f"+placement={placement}",
            "rollout.server.python=/sglang/python", "+experiment=hle", "a=b c",
        ]  # fmt: skip


def test_own_nodes_start_servers_first_and_then_the_trainers(tmp_path: Path):
    hosts = "127.0.0.1,localhost,127.0.0.3"
    stub = script(tmp_path / "sglang", f'#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $@" >> {tmp_path}/served\nsleep 3\n')
    trainer = script(tmp_path / "trainer", until(f'[ "$(wc -l < {tmp_path}/served)" = 2 ]'))
    done, steps = sbatch(
        tmp_path, "nodes", "+experiment=hle", hosts=hosts, PYTHON=str(trainer), SGLANG_PYTHON=str(stub), GPUS="2",
        WEIGHTS="/shared/weights", MODEL="/shared/Qwen3-8B",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    serving, training = sorted(steps, key=lambda step: "experiments/train.py" in step["command"])
    assert (serving["options"]["--nodelist"], training["options"]["--nodelist"]) == ("127.0.0.3", "127.0.0.1,localhost")
    assert (serving["options"]["--ntasks"], training["options"]["--ntasks"]) == ("1", "2")
    assert training["command"] == [
        str(trainer), "experiments/train.py", "+placement=nodes",
        "rollout.urls=[http://127.0.0.3:30000,http://127.0.0.3:30001]", "rollout.weight_folder=/shared/weights",
        "model.path=/shared/Qwen3-8B", "+experiment=hle",
    ]  # fmt: skip
    served = sorted((tmp_path / "served").read_text().splitlines())
    assert [line.split()[0] for line in served] == ["0", "1"]
    assert all("--model-path /shared/Qwen3-8B" in line and f"--port 3000{n}" in line for n, line in enumerate(served))


def test_a_server_that_ends_is_started_again_and_one_that_cannot_start_is_not(tmp_path: Path):
    """That of GPU 0 ends once, that of GPU 1 always; the trainer ends when all of their starts were seen."""
    served = tmp_path / "served"
    first = f'[ "$CUDA_VISIBLE_DEVICES" = 0 ] && [ "$(grep -c "^0" {served})" = 2 ]'
    stub = script(
        tmp_path / "sglang",
        f'#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES" >> {served}\n{first} && exec sleep 600\nexit 7\n',
    )
    trainer = script(tmp_path / "trainer", until(f'[ "$(wc -l < {served})" -ge 5 ]'))
    done, _ = sbatch(
        tmp_path, "nodes", hosts="127.0.0.1,127.0.0.3", PYTHON=str(trainer), SGLANG_PYTHON=str(stub), GPUS="2",
        WEIGHTS="/w", MODEL="/m", RESTART_S="0.3",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(served.read_text().split()) == ["0", "0", "1", "1", "1"]
    assert done.stdout.count("The server on GPU 1 ended with code 7") >= 2  # the script may end before the third
    assert done.stdout.count("The server on GPU 0 ended with code 7") == 1


HANGS = """#!{python}
import socket, sys
with open({served!r}, "a+") as served:
    served.write("started\\n")
    served.seek(0)
    answers = 3 if len(served.readlines()) == 1 else 10**9
listener, kept = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1]))), []
while True:
    kept.append(listener.accept()[0])
    if answers:
        answers -= 1
        kept[-1].recv(1000)
        kept.pop().sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n{{}}")
"""


def test_a_server_that_hangs_is_killed_and_started_again(tmp_path: Path):
    """At first it answers, and then it takes connections and says nothing; the second one answers."""
    served = tmp_path / "served"
    stub = script(tmp_path / "sglang", HANGS.format(python=sys.executable, served=str(served)))
    trainer = script(tmp_path / "trainer", until(f'[ "$(wc -l < {served})" -ge 2 ]'))
    done, _ = sbatch(
        tmp_path, "nodes", hosts="127.0.0.1,127.0.0.3", PYTHON=str(trainer), SGLANG_PYTHON=str(stub), GPUS="1",
        WEIGHTS="/w", MODEL="/m", PORT=str(port := free_port()), RESTART_S="0.1", LOOK_S="0.3",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"The server on port {port} hangs, and is killed." in done.stdout
    assert "The server on GPU 0 ended with code 137" in done.stdout


def test_servers_that_never_answer_end_the_job_in_a_sentence(tmp_path: Path):
    done, steps = sbatch(
        tmp_path, "nodes", hosts="127.0.0.1,127.0.0.3", PYTHON="false", SGLANG_PYTHON="false", GPUS="1", WEIGHTS="/w",
        MODEL="/m", START_S="0", RESTART_S="0.1",
    )  # fmt: skip
    assert done.returncode == 1
    assert "The server at http://127.0.0.3:30000 did not answer within 0 s: see server-*.log" in done.stderr
    assert not any("experiments/train.py" in step["command"] for step in steps)


@pytest.mark.parametrize(
    ("arguments", "hosts", "sentence"),
    [
        (["nodes"], "a", "needs a node for servers: sbatch --nodes=2"),
        (["alone"], "a,b", "Unknown layout 'alone': shared, separate or nodes."),
    ],
)
def test_what_is_no_layout_is_refused(tmp_path: Path, arguments: list[str], hosts: str, sentence: str):
    done, steps = sbatch(tmp_path, *arguments, hosts=hosts, WEIGHTS="/w", MODEL="/m")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert steps == []


@pytest.mark.slow
def test_the_script_trains_in_two_processes(tmp_path: Path, policy: Path):
    done, _ = sbatch(
        tmp_path, "separate", *SMALL, f"model.path={policy}", "steps=1", f"output_dir={tmp_path}/run",
        "rollout.engine=embedded", "rollout.max_staleness=0", PYTHON=sys.executable,
        XLA_FLAGS=f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [1]
    assert len(list((tmp_path / "run" / FOLDER).glob("step-*"))) == 2  # one file of each process
