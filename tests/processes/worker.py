"""One process of the tests of this folder.

PYTHONPATH=<root> python worker.py MODES PROCESS COUNT PORT

MODES: names of functions below, with commas between them.
"""

import asyncio
import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from orchestra_jax.config.schema import MeshConfig
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
        modes = (agree, weights, vanish, first_vanishes, first_vanishes_unseen, fail)
        for name in names:
            {function.__name__: function for function in modes}[name](found)
