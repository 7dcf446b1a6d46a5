"""One process of the two-process test: trains on its own half of the sequences; process 0 writes the gradients.

PYTHONPATH=<root> python sharded_worker.py PROCESS PORT FOLDER: FOLDER/alone.npz, then FOLDER/sharing.npz.
"""

import sys
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

PROCESSES = 2


def main(process: int, port: str, folder: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", PROCESSES, process)
    from orchestra_jax.models.sharding import make_mesh
    from orchestra_jax.rl.batching import PackShapes
    from orchestra_jax.rl.packing import policy_batches
    from tests.rl import test_sharded_step as shared

    learner = shared.make_learner(make_mesh(data=2, fsdp=2))
    assert learner.shards == 2
    for layout, sequences, shapes in (
        ("alone", shared.SEQUENCES, PackShapes(26, 1, 4, response_fractions=(0.25, 0.5))),
        ("sharing", shared.FORKED, PackShapes(64, 1, 16, response_fractions=(0.25, 0.5), shared=True)),
    ):
        # Process 0 has most sequences: the other one fills up with empty micro-batches, of another response share.
        first = len(sequences) * 2 // 3
        batches = policy_batches(sequences[:first] if process == 0 else sequences[first:], shapes, learner.shards)
        if layout == "sharing":
            found = sum(int(jax.device_get(batch.repeated.sum())) for batch in learner.place(batches))
            assert found > 100  # of both processes, and the same number in each
        state, metrics = shared.two_steps(learner, batches)
        gathered = multihost_utils.process_allgather(jax.tree.leaves((state.opt_state[0], state.params)), tiled=True)
        if process == 0:
            np.savez(Path(folder, f"{layout}.npz"), *gathered, counts=len(batches), **metrics)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
