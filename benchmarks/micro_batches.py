"""CPU-seconds of a supervised step of `+experiment=recorded`'s policy by the size of its micro-batches, in turns.

GLIBC_TUNABLES=glibc.malloc.hugetlb=1 JAX_PLATFORMS=cpu taskset -c 0 python benchmarks/micro_batches.py

Without the first setting, which `make` gives every run, large temporaries cost page faults, and sizes differ less.
A step has 76 prompts of 57 to 184 random tokens, with two rows each, as the warm start of that experiment has; all
sizes take the same steps, and the first of each, which compile, do not count.
"""

import argparse
import time

import jax
import numpy as np
import optax
from short import parse

from orchestra_jax.models.decoder import init_params
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.rl.batching import MicroShapes, TokenSequence
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LossConfig
from orchestra_jax.rl.packing import micro_batches

VOCAB = 1484
ROWS, PREFIXES = (16, 48), (112, 192)


def prompts(count: int, rng: np.random.Generator) -> list[TokenSequence]:
    """Return two rows for each of so many prompts: a call with what follows, and another call."""
    rows = []
    for length in rng.triangular(57, 114, 184, count).astype(int).tolist():
        prompt = rng.integers(1, VOCAB, length).tolist()
        for more in (int(rng.choice([10, 11, 13, 30], p=[0.5, 0.2, 0.2, 0.1])), 5):
            ids = (*prompt, *rng.integers(1, VOCAB, more).tolist())
            mask = (False,) * (length + 1) + (True,) * 4 + (False,) * (more - 5)
            rows.append(TokenSequence(ids, mask, (0.0,) * len(ids), length, 1.0))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1216, 608, 304, 152], help="algorithm.micro_tokens")
    parser.add_argument("--prompts", type=int, default=76)
    parser.add_argument("--layers", type=int, default=3, help="of the policy (default 3)")
    parser.add_argument("--rounds", type=int, default=30, help="steps of each size")
    given = parse(parser, "--tokens", "96", "48", "--prompts", "4", "--rounds", "3", "--layers", "1")
    if min(*given.tokens, given.prompts, given.rounds - 2) < 1:
        parser.error("--tokens and --prompts are at least 1, and --rounds at least 3.")
    model = Qwen3Config(VOCAB, 96, 256, given.layers, 4, 2, 24, tie_word_embeddings=False)
    learner = Learner(model, LearnerConfig(LossConfig("sequence"), chunk=512), optax.sgd(1e-3))
    state, rng = learner.init(init_params(model, jax.random.key(0))), np.random.default_rng(0)
    seconds: dict[int, list[float]] = {tokens: [] for tokens in given.tokens}
    for _ in range(given.rounds):
        rows = prompts(given.prompts, rng)
        for tokens in given.tokens:
            batches = micro_batches(rows, MicroShapes(tokens, ROWS, PREFIXES, 2, (0.4,)))
            began = time.process_time()
            state, _ = learner.supervised_step(state, batches)
            seconds[tokens].append(time.process_time() - began)
    warm = given.rounds // 3
    largest = np.array(seconds[given.tokens[0]][warm:])
    for tokens, each in seconds.items():
        print(f"{tokens:6,} tokens  {np.median(each[warm:]):.3f} s  {np.median(each[warm:] / largest):.2f}")


if __name__ == "__main__":
    main()
