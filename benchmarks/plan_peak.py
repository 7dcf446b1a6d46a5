"""The planner's predicted peak of memory beside a measured one, on one CPU device.

    python benchmarks/plan_peak.py [--tokens 512] [--layers 6]

A child process takes one training step of an fp32 model, twice. Before the second it holds the compiled programs and no
array; its resident size then is the base line, and what the high-water mark of the second step (VmHWM, reset through
/proc/self/clear_refs) adds to that is the measured peak. A fixed MALLOC_MMAP_THRESHOLD_ makes glibc give every freed
array back at once, so that the mark follows what is alive. Linux only.
"""

import argparse
import ctypes
import gc
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from short import parse

CASES = {
    "scan, full remat": {"scan_layers": True, "remat": "full"},
    "unrolled, full remat": {"scan_layers": False, "remat": "full"},
    "unrolled, no remat": {"scan_layers": False, "remat": "none"},
}
GIB = 2**30


def status(key: str) -> int:
    """A size of /proc/self/status in bytes."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def measure(case: str, tokens: int, layers: int, micro_batches: int) -> dict[str, float]:
    """Predicted and measured peak of one case, in bytes; to be called in a process of its own."""
    import jax

    from orchestra_jax.config.algorithm import OptimizerConfig
    from orchestra_jax.config.schema import PlanConfig
    from orchestra_jax.models.decoder import init_params
    from orchestra_jax.models.gpus import find_gpu
    from orchestra_jax.models.qwen3 import Qwen3Config
    from orchestra_jax.models.sharding import make_mesh
    from orchestra_jax.models.sizes import num_params
    from orchestra_jax.planning.plan import Job, make_plan
    from orchestra_jax.rl.batching import PackShapes
    from orchestra_jax.rl.learner import LearnerConfig
    from orchestra_jax.rl.losses import LossConfig
    from orchestra_jax.rl.mesh_learner import MeshLearner
    from orchestra_jax.rl.optimizer import make_optimizer

    config = Qwen3Config(32768, 1024, 3072, layers, 16, 8, 64, tie_word_embeddings=True, **CASES[case])
    cfg, optimizer = LearnerConfig(LossConfig("sequence"), chunk=256), OptimizerConfig(1e-6)
    shape = PackShapes(tokens, sequences=4).batch_shape()
    job = Job(config, cfg, optimizer, (1, 1, 1), shape, sequences=micro_batches, tokens=tokens)
    plan = make_plan(job, find_gpu("h100"), PlanConfig(compiler="cpu"))

    learner = MeshLearner(config, cfg, make_optimizer(optimizer), mesh=make_mesh(devices=jax.devices()[:1]))

    def step() -> None:
        state = learner.init(init_params(config, jax.random.key(0)), donate=True)
        state, _ = learner.policy_step(state, [shape.empty() for _ in range(micro_batches)])
        jax.block_until_ready(state)

    step()
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    time.sleep(1)  # XLA's threads give the last buffers back up to .15 s later: seen in two of six runs
    base = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    step()
    return {
        "parameters": num_params(config),
        "predicted": plan.peak,
        "measured": status("VmHWM") - base,
        "seconds": sum(program.seconds for program in plan.programs.values()),
    }


def main() -> None:
    """Runs every case in a process of its own and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--case", choices=list(CASES), help="this case alone, in this process, as JSON")
    args = parse(parser, "--tokens", "64", "--layers", "1", "--micro-batches", "1", "--case", "unrolled, no remat")
    if args.case:
        print(json.dumps(measure(args.case, args.tokens, args.layers, args.micro_batches)))
        return
    sizes = [f"--{key.replace('_', '-')}={getattr(args, key)}" for key in ("tokens", "layers", "micro_batches")]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "MALLOC_MMAP_THRESHOLD_": "65536"}
    print(f"{'case':24}{'parameters':>12}{'predicted':>12}{'measured':>12}{'ratio':>8}{'compiled in':>13}")
    for case in CASES:
        command = [sys.executable, __file__, *sizes, "--case", case]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        predicted, measured = found["predicted"] / GIB, found["measured"] / GIB
        print(
            f"{case:24}{found['parameters'] / 1e6:10.0f} M{predicted:8.2f} GiB{measured:8.2f} GiB"
            f"{predicted / measured:8.3f}{found['seconds']:11.0f} s"
        )


if __name__ == "__main__":
    main()
