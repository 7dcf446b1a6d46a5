"""What the benchmarks share: peers in environments of their own, as processes that work when they are told to."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Large pages for big temporaries; without them XLA and PyTorch page-fault their buffers anew in every step.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"
    # Times of the short form mean nothing, and its caller may know what else compiles fast.
    + (f" --xla_backend_optimization_level=0 {os.environ.get('XLA_FLAGS', '')}" if "--smoke" in sys.argv else ""),
    "JAX_PLATFORMS": "cpu",
    "HF_HUB_OFFLINE": "1",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
OURS = sys.executable, "make install"
TORCH = (
    ".venv-torch/bin/python",
    'python3.11 -m venv .venv-torch && .venv-torch/bin/pip install torch==2.13.0 "transformers>=5.20" peft',
)
TUNIX = (
    ".venv-tunix/bin/python",
    "python3.11 -m venv .venv-tunix && .venv-tunix/bin/pip install google-tunix==0.1.7 jax==0.10.2 flax==0.12.8",
)


@dataclass(frozen=True)
class Peer:
    """A library that is measured.

    Attributes:
        name: in the table.
        python, install: its environment's Python, relative to the repository, and the commands that make it.
        script: in `_peers`.
        options: passed to the script after the folder.
    """

    name: str
    python: str
    install: str
    script: str
    options: tuple[str, ...] = ()

    def is_there(self, console: Console) -> bool:
        """Whether its environment exists; prints how to make it if not."""
        if (ROOT / self.python).exists():
            return True
        console.print(f"Without {self.name}: {self.python} is missing. Make it with", highlight=False)
        console.print(f"  {self.install}", highlight=False, soft_wrap=True, markup=False)
        return False


def save_model(folder: Path, preset: str, vocab: int) -> int:
    """Write a checkpoint with random weights that all peers read; return the number of parameters."""
    import jax

    from orchestra_jax.models.checkpoint import safetensors
    from orchestra_jax.models.decoder import init_params
    from orchestra_jax.models.qwen3 import Qwen3Config
    from orchestra_jax.models.sizes import num_params

    # Tunix's Qwen3 rotates with base 1e6 whatever its configuration says.
    config = Qwen3Config.preset(preset, vocab_size=vocab, rope_theta=1e6)
    safetensors.save(folder, config, init_params(config, jax.random.key(0)))
    return num_params(config)


class Worker:
    """The running process of a peer: one line in for each round, one line of JSON back.

    Attributes:
        ready: what it said when it was warm.
        rounds: what it said after each round.

    Raises:
        RuntimeError: the process died; the message holds the end of its log.
    """

    def __init__(self, peer: Peer, folder: Path, core: int) -> None:
        self.peer = peer
        self._log = (folder / f"{peer.name}.log").open("w+")
        command = [str(ROOT / peer.python), str(HERE / "_peers" / peer.script), str(folder), *peer.options]
        self._process = subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if not k.startswith("XLA_")} | ENVIRONMENT,
        )
        self.rounds: list[dict[str, Any]] = []
        self.ready = self._answer()

    def round(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self.rounds.append(self._answer())

    def close(self) -> None:
        self._process.communicate()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise RuntimeError(f"{self.peer.name} ended early:\n{self._log.read()[-3000:]}")
        return json.loads(line)


TRAIN = ROOT / "experiments" / "train.py"


def train_here(overrides: Sequence[str]) -> None:
    """Be experiments/train.py, in a process of its own."""
    sys.argv = [str(TRAIN), *overrides]
    runpy.run_path(str(TRAIN), run_name="__main__")


def run_logged(command: Sequence[str], log: Path, environment: Mapping[str, str], limit_s: float | None = None) -> None:
    """Run a command to its end, with its output in a log.

    Raises:
        RuntimeError: it failed; the message holds the end of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        done = subprocess.run(
            command, cwd=ROOT, env={**environment, **os.environ}, stdout=output, stderr=subprocess.STDOUT,
            timeout=limit_s,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"A run ended with status {done.returncode}; the end of {log}:\n{log.read_text()[-3000:]}")


def take_turns(
    peers: Sequence[Peer], folder: Path, rounds: int, core: int, title: str, console: Console
) -> list[Worker]:
    """Starts the peers one after the other and lets them work in turns; one that dies is reported and left out."""
    workers: list[Worker] = []
    try:
        for peer in peers:
            with console.status(f"{title}: {peer.name} compiles and warms up"):
                try:
                    workers.append(Worker(peer, folder, core))
                except RuntimeError as error:
                    console.print(f"[red]{error}[/red]", highlight=False)
        for number in range(rounds):
            with console.status(f"{title}: round {number + 1} of {rounds}"):
                for i in range(len(workers)):  # another one goes first in every round
                    workers[(i + number) % len(workers)].round()
    finally:
        for worker in workers:
            worker.close()
    return workers
