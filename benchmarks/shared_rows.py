"""CPU-seconds of a policy update where rollouts of the same tokens share a row, and where each has its own, in turns.

GLIBC_TUNABLES=glibc.malloc.hugetlb=1 JAX_PLATFORMS=cpu taskset -c 0 python benchmarks/shared_rows.py

The settings are the quickstart's, the tokens random: 32 groups of eight rollouts, as long as there (half of one call,
half of two or three). Its groups have six different rollouts at first, three or four from step 20 on. With rows of
their own the micro-batches are those that it had before. The first updates of each form, which compile, do not count.
"""

import argparse
import time
from dataclasses import replace

import jax
import numpy as np
from short import parse

import orchestra_jax as oj
from orchestra_jax.models.decoder import init_params
from orchestra_jax.models.families import preset_config
from orchestra_jax.rl.batching import TokenSequence
from orchestra_jax.rl.packing import policy_batches, policy_shapes
from orchestra_jax.rl.setup import policy_learner

VOCAB = 576
FORMS = {"shared": {}, "own": {"sequences_per_row": 1, "micro_tokens": 1800}}


def rollouts(groups: int, size: int, different: int, rng: np.random.Generator) -> list[TokenSequence]:
    """Return the rows of groups with so many different rollouts; the others repeat the last of these."""
    rows = []
    for group in range(groups):
        prompt = rng.integers(1, VOCAB, int(rng.integers(36, 58))).tolist()
        most = (24, 41) if group % 2 else (64, 105)
        for member in range(size):
            if member < different:
                length = int(rng.integers(*most))
                ids = (*prompt, *rng.integers(1, VOCAB, length).tolist())
                sampled = (False,) * len(prompt) + tuple(k % 28 < 16 for k in range(length))
            logprobs = tuple(-1.0 if own else 0.0 for own in sampled)
            rows.append(TokenSequence(ids, sampled, logprobs, len(prompt) - 1, float(rng.normal()), len(rows)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--different", type=int, nargs="+", default=[8, 6, 4, 3, 2], help="rollouts of a group")
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--layers", type=int, default=3, help="of the policy (default 3)")
    parser.add_argument("--rounds", type=int, default=9, help="updates of each form")
    given = parse(parser, "--different", "3", "--groups", "4", "--rounds", "3", "--layers", "1")
    cfg = oj.compose()
    size = cfg.algorithm.group_size
    if not 1 <= min(given.different) <= max(given.different) <= size or min(given.groups, given.rounds - 2) < 1:
        parser.error(f"--different is 1 to {size}, --groups at least 1, and --rounds at least 3.")
    model = preset_config(cfg.model, vocab_size=VOCAB).replace(num_layers=given.layers)
    learner = policy_learner(cfg.algorithm, cfg.rollout, cfg.steps, model)
    state, reference = learner.init(init_params(model, jax.random.key(0))), init_params(model, jax.random.key(1))
    shapes = {
        name: policy_shapes(replace(cfg.algorithm, **words), cfg.model, cfg.rollout.limits.max_length)
        for name, words in FORMS.items()
    }
    rng = np.random.default_rng(0)
    print("different of 8   own row   shared   shared / own, median (lowest to highest)")
    for different in given.different:
        seconds: dict[str, list[float]] = {name: [] for name in FORMS}
        for _ in range(given.rounds):
            rows = rollouts(given.groups, size, different, rng)
            for name in FORMS:
                began = time.process_time()
                batches = [learner.with_ref_logprobs(reference, b) for b in policy_batches(rows, shapes[name])]
                state, _ = learner.policy_step(state, batches)
                seconds[name].append(time.process_time() - began)
        own, shared = (np.array(seconds[name][2:]) for name in ("own", "shared"))
        ratios = shared / own
        print(
            f"{different:14}   {np.median(own):7.3f}   {np.median(shared):6.3f}   {np.median(ratios):.2f} "
            f"({ratios.min():.2f} to {ratios.max():.2f})"
        )


if __name__ == "__main__":
    main()
