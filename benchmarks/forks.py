"""An update of trajectories whose thoughts are dropped: what forks begin with is run once, or again for each of them.

JAX_PLATFORMS=cpu taskset -c 0 python benchmarks/forks.py [--turns 12] [--tokens 1024] [--thought 24]

Prints the tokens that are run, the seconds of a step (median of the repetitions, both ways by turns), their ratio and
the largest difference of the gradients.
"""

import argparse
import time

import jax
import numpy as np
import optax
from short import parse

from orchestra_jax.models.decoder import init_params
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.rl.batching import MicroBatch, PackShapes, TokenSequence
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LossConfig
from orchestra_jax.rl.packing import pack

VOCAB = 4096


def forked(turns: int, tokens: int, thought: int, members: int) -> list[TokenSequence]:
    """Return the sequences of a group: each turn sees the calls and results before it, and none of the thoughts."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(1, VOCAB, tokens // turns - thought).tolist()
    found = []
    for number in range(members):
        context, advantage = list(prompt), float(rng.normal())
        for _ in range(turns):
            sampled = rng.integers(1, VOCAB, thought).tolist()
            mask = (False,) * len(context) + (True,) * thought
            behaviour = (*[0.0] * len(context), *[-8.3] * thought)
            ids = (*context, *sampled)
            found.append(TokenSequence(ids, mask, behaviour, len(context) - 1, advantage, number, 1 / turns))
            context += rng.integers(1, VOCAB, tokens // turns).tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=1024, help="of a trajectory's longest sequence")
    parser.add_argument("--thought", type=int, default=24, help="tokens that a turn samples")
    parser.add_argument("--rows", type=int, default=1536, help="tokens of a packed row")
    parser.add_argument("--members", type=int, default=2, help="trajectories")
    parser.add_argument("--width", type=int, default=1024, help="of the policy")
    parser.add_argument("--repeat", type=int, default=3)
    smoke = "--turns 3 --tokens 96 --thought 8 --rows 160 --repeat 1 --width 64"
    given = parse(parser, *smoke.split())
    model = Qwen3Config(
        VOCAB, given.width, 3 * given.width, 2, 8, 2, 64, tie_word_embeddings=True, scan_layers=True, remat="full"
    )
    record = optax.GradientTransformation(lambda p: p, lambda grads, state, params=None: (grads, grads))
    learner = Learner(model, LearnerConfig(LossConfig("grpo"), chunk=512), record)
    rows = forked(given.turns, given.tokens, given.thought, given.members)
    state = learner.init(init_params(model, jax.random.key(0)))
    batches = {"again": pack(rows, PackShapes(given.rows)), "once": pack(rows, PackShapes(given.rows, shared=True))}
    seconds: dict[str, list[float]] = {"again": [], "once": []}
    gradients = {}
    for repetition in range(given.repeat + 1):
        for name, these in batches.items():
            began = time.perf_counter()
            after, _ = learner.policy_step(jax.tree.map(lambda x: x.copy(), state), these)
            gradients[name] = jax.block_until_ready(after.opt_state)
            if repetition:  # the first compiles
                seconds[name].append(time.perf_counter() - began)
    for name, these in batches.items():
        print(f"{name:6} {_run(these):8,} tokens in {len(these):3} rows  {np.median(seconds[name]):7.2f} s")
    print(f"again / once: {np.median(np.array(seconds['again']) / np.array(seconds['once'])):.2f}")
    print(f"largest difference of the gradients, of the largest of its array: {_difference(*gradients.values()):.1e}")


def _run(batches: list[MicroBatch]) -> int:
    """Return the tokens that are run."""
    ids = (np.asarray(b.segment_ids > 0) & (True if b.source is None else np.asarray(b.source) >= 0) for b in batches)
    return sum(int(run.sum()) for run in ids)


def _difference(one: object, other: object) -> float:
    ratios = jax.tree.map(lambda a, b: float(abs(a - b).max() / abs(a).max()), one, other)
    return max(jax.tree.leaves(ratios))


if __name__ == "__main__":
    main()
