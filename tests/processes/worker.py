"""One process of the tests of this folder.

PYTHONPATH=<root> python worker.py MODES PROCESS COUNT PORT

MODES: names of functions below, with commas between them.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from orchestra_jax.config.schema import MeshConfig
from orchestra_jax.models import checkpoint
from orchestra_jax.models.checkpoint import safetensors
from orchestra_jax.models.decoder import init_params
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.models.sharding import make_mesh
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.processes import Processes, joined
from orchestra_jax.processes.several import on_host, processes_of_run
from orchestra_jax.training.policy_weights import fingerprint


def agree(processes: Processes) -> None:
    """Gathers values of several sizes, deals out and merges work, and raises in one process."""
    p = processes.index
    known = processes_of_run()
    assert (known.index, known.count) == (p, processes.count)
    assert processes.beside == processes.count  # all of them are on this machine
    assert processes.gather({"p": p, "text": "x" * 5000 * p}) == [
        {"p": n, "text": "x" * 5000 * n} for n in range(processes.count)
    ]
    items = list(range(7))

    async def tenfold() -> list[int]:
        return [10 * item for item in processes.mine(items)]

    assert asyncio.run(processes.merged(tenfold())) == [10 * item for item in items]
    try:
        with processes.together():
            if p == 1:
                raise BudgetExceeded("too dear", "step")
    except BudgetExceeded as error:
        print(f"raised {error} {error.scope} {processes.agreed}", file=sys.stderr)
    with processes.together():
        pass


def weights(processes: Processes) -> None:
    """Parameters on the mesh of all devices, whole in each process's memory: stacked and not, cast and not."""
    sharding = NamedSharding(make_mesh(fsdp=-1), PartitionSpec(None, "fsdp"))
    stacked, flat = np.arange(3 * 8 * 2, dtype=np.float32).reshape(3, 8, 2) / 7, np.ones((2, 8), np.float32)
    placed = jax.tree.map(
        lambda leaf: jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index]),
        {"layers": stacked, "embed": flat},
    )
    assert not placed["layers"].is_fully_addressable
    assert processes.gather(fingerprint(placed)) == [fingerprint({"layers": stacked, "embed": flat})] * processes.count
    for dtype in (None, "bfloat16"):
        found = on_host(placed, dtype)
        for name, wanted in (("layers", stacked), ("embed", flat)):
            assert isinstance(found[name], np.ndarray)
            np.testing.assert_array_equal(found[name], wanted.astype(jnp.dtype(dtype or "float32")))
        turned = on_host(placed, dtype, lambda path: True)
        for name in found:
            np.testing.assert_array_equal(turned[name], found[name])
            assert turned[name].swapaxes(-1, -2).flags.c_contiguous


def export(processes: Processes) -> None:
    """Each process writes its files of a checkpoint; what one cannot write is told by all and leaves the old folder."""
    shared, written = Path(os.environ["SHARED"]), list[str]()
    model = Qwen3Config(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=8,
    )  # fmt: skip
    mesh, whole = make_mesh(fsdp=-1), init_params(model, jax.random.key(0))

    def place(leaf: jax.Array) -> jax.Array:
        sharding = NamedSharding(mesh, PartitionSpec(*[None] * (leaf.ndim - 1), "fsdp"))
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: np.asarray(leaf)[index])

    params, original = jax.tree.map(place, whole), safetensors._write_file

    def write(path: Path, found: Any) -> None:
        if failing == processes.index:
            raise OSError(28, "no room", path.name)
        written.append(path.name)
        original(path, found)

    safetensors._write_file, failing = write, None
    checkpoint.save(shared / "all", model, params, max_shard_bytes=4000)
    names = processes.gather(written.copy())
    files = sorted(file.name for file in (shared / "all").glob("*.safetensors"))
    assert sorted(name for some in names for name in some) == files
    assert min(map(len, names)) >= len(files) // processes.count > 1
    found = checkpoint.load(shared / "all")[1]
    jax.tree.map(np.testing.assert_array_equal, found, whole)
    # Only the first process sees this folder.
    own = shared / ("first" if processes.first else "nowhere")
    checkpoint.save(own, model, params, max_shard_bytes=4000)
    assert [sorted(some) for some in processes.gather(written[len(names[processes.index]) :])] == [files, []]
    for number in range(processes.count):
        failing = number
        try:
            checkpoint.save(shared / "all", model, params, max_shard_bytes=4000, overwrite=True)
        except OSError as error:
            print(f"raised {error}", file=sys.stderr)
        processes.gather(0)
        assert sorted(file.name for file in (shared / "all").glob("*.safetensors")) == files
        assert not (shared / ".all.partial").exists()
        processes.gather(0)  # the next save makes that folder again


def vanish(processes: Processes) -> None:
    """The last process is killed while the others wait for it in a collective."""
    if processes.index == processes.count - 1:
        time.sleep(1)
        print(f"killed at {time.time()}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    processes.gather(0)


def first_vanishes(processes: Processes) -> None:
    """The first process is killed while the others work alone."""
    if processes.first:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def first_vanishes_unseen(processes: Processes) -> None:
    """The same, and JAX's runtime sees it before the lifeline does."""
    assert processes.lifeline is not None
    tell = processes.lifeline._end

    def tell_later(sentence: str) -> None:
        time.sleep(1)
        tell(sentence)

    processes.lifeline._end = tell_later
    processes.gather(0)
    first_vanishes(processes)


def fail(processes: Processes) -> None:
    """A bug in one process, outside of what is agreed on."""
    if processes.index == 1:
        raise ZeroDivisionError("a bug")
    processes.gather(0)


if __name__ == "__main__":
    names, process, count, port = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    with joined(MeshConfig(coordinator=f"127.0.0.1:{port}", processes=count, process=process)) as found:
        print(f"process {found.index} of {found.count}", flush=True)
        modes = (agree, weights, export, vanish, first_vanishes, first_vanishes_unseen, fail)
        for name in names:
            {function.__name__: function for function in modes}[name](found)
