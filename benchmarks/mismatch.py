"""What an engine's rounding does to a loss over whole trajectories: who still has a gradient, and of what size.

    .venv/bin/python benchmarks/mismatch.py
    .venv/bin/python benchmarks/mismatch.py --tokens 8000 --sd .01 .05 --json out.json

On the first update of a batch the policy is the one that sampled it: every trajectory's gradient should be its
advantage times that of its log-probability, its weight 1. Two kinds of engine differ from the learner: one by noise of
a given standard deviation a token (bf16 kernels: .01 to .05 is published), one samples with the weights of a small
policy rounded to bf16, or those of its matrices to fp8 (random weights, or --policy). The latter is what a server with
`--quantization fp8` makes of bf16 weights: e4m3 with one scale for each output channel; its rounding of activations is
not in it. The table shows for Eq. 4's ratio (loss `sequence`), clipped as in conf/algorithm/paper.yaml:

- engine's old: `old` is what the engine said, as a run of `algorithm=paper` did until issue 13
- learner's old: `old` is the learner's own
- and corrected: token TIS in token form and the mask of the geometric mean, as in conf/algorithm/paper.yaml
- sequence TIS: the product of the ratios as the weight, truncated at 2, for comparison

"silent" is the share of trajectories without any gradient; min to max are the weights of the others; "masked" is the
share that a mask took out. "product" and "geometric" are the 1st and 99th percentile of a trajectory's product and
geometric mean of learner / engine. Half of the advantages are 1, half are -1.
"""

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from peer import ROOT
from short import keep, parse, table, wide_console

from orchestra_jax.config.algorithm import OptimizerConfig
from orchestra_jax.config.rollout import RolloutConfig, RolloutLimits
from orchestra_jax.engines.base import SamplingParams
from orchestra_jax.engines.embedded import EmbeddedEngine
from orchestra_jax.models import checkpoint
from orchestra_jax.models.decoder import init_params
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.rl.batching import MicroShapes, TokenSequence
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LossConfig, policy_loss
from orchestra_jax.rl.optimizer import make_optimizer
from orchestra_jax.rl.packing import micro_batches

SMALL = Qwen3Config(
    vocab_size=512, hidden_size=64, intermediate_size=128, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=32,
    tie_word_embeddings=True, initializer_range=0.2,
)  # fmt: skip
PAPER = LossConfig(**yaml.safe_load((ROOT / "conf/algorithm/paper.yaml").read_text())["loss"] | {"kl_coef": 0.0})
PLAIN = LossConfig("sequence", clip_low=PAPER.clip_low, clip_high=PAPER.clip_high, dual_clip=PAPER.dual_clip)
WAYS: Mapping[str, tuple[str, LossConfig]] = {
    "engine's old": ("engine", PLAIN),
    "learner's old": ("learner", PLAIN),
    "and corrected": ("learner", PAPER),
    "sequence TIS": ("learner", dataclasses.replace(PLAIN, importance="tis", importance_level="sequence")),
}


def _noise(tokens: int, sequences: int, sd: float) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs of an engine, and of a learner that differs from it by independent noise."""
    rng = np.random.default_rng(0)
    engine = -rng.exponential(1.0, (sequences, tokens)).astype(np.float32)
    return engine, engine + np.float32(sd) * rng.standard_normal(engine.shape, np.float32)


def _bf16(path: Any, leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.bfloat16).astype(jnp.float32)


def _e4m3(path: Any, leaf: jax.Array) -> jax.Array:
    """Matrices of layers, [in, out], in e4m3 with a scale for each output channel; the others in bf16."""
    kept = _bf16(path, leaf)
    if path[-1].key != "kernel":
        return kept
    scale = jnp.abs(kept).max(axis=-2, keepdims=True) / float(jnp.finfo(jnp.float8_e4m3fn).max)
    return (kept / scale).astype(jnp.float8_e4m3fn).astype(jnp.float32) * scale


ROUNDINGS = {"bf16 weights": _bf16, "fp8 weights": _e4m3}


def _rounded(tokens: int, sequences: int, policy: Path | None, rounding: Any) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs of what the policy with rounded weights sampled: its own, and those of the unrounded policy."""
    config, params = (SMALL, init_params(SMALL, jax.random.key(0))) if policy is None else checkpoint.load(policy)
    served = jax.tree_util.tree_map_with_path(rounding, params)
    limits = RolloutLimits(max_length=tokens + 1)
    settings = RolloutConfig(slots=sequences, limits=limits, lockstep=False)
    engine = EmbeddedEngine(config, served, settings)

    async def sample() -> list[Any]:
        wanted = [
            engine.generate([1 + i % 16], SamplingParams(max_new_tokens=tokens, seed=i)) for i in range(sequences)
        ]
        found = await asyncio.gather(*wanted)
        await engine.close()
        return found

    found = [(1 + i % 16, made) for i, made in enumerate(asyncio.run(sample())) if len(made.token_ids) == tokens]
    rows = [
        TokenSequence((first, *made.token_ids), (False, *[True] * tokens), (0.0, *made.logprobs), 0, 1.0)
        for first, made in found
    ]
    learner = Learner(config, LearnerConfig(LossConfig(), vocab_block=512), make_optimizer(OptimizerConfig()))
    shapes = MicroShapes(tokens + 1, (tokens + 1,), (), response_fractions=())
    scored = [learner.with_old_logprobs(params, batch) for batch in micro_batches(rows, shapes)]
    both = [np.concatenate([np.asarray(values) for values in of]) for of in zip(*(
        (batch.rollout_logprobs, batch.old_logprobs) for batch in scored), strict=True)]  # fmt: skip
    return both[0][:, 1:], both[1][:, 1:]


def _measure(engine: np.ndarray, learner: np.ndarray, old: str, cfg: LossConfig) -> dict[str, float]:
    """Share of silent trajectories and the others' weights on the first update."""
    count = len(engine)
    advantages = jnp.asarray(np.where(np.arange(count) % 2, 1.0, -1.0))

    def loss(
        new: jax.Array, before: jax.Array, engine: jax.Array, mask: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        return policy_loss(new, before, advantages, mask, cfg, rollout_logprobs=engine)

    before, mask = engine if old == "engine" else learner, np.ones(engine.shape, bool)
    (_, metrics), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(learner, before, engine, mask)
    weights = np.abs(np.asarray(gradient, np.float64)).mean(axis=1) * count
    left = weights[weights > 0]
    return {
        "silent": float((weights == 0).mean()),
        **{f"p{p}": float(np.percentile(left, p)) if len(left) else 0.0 for p in (0, 1, 50, 99, 100)},
        "masked": float(metrics["sequence_masked"]),
    }


def _engines(args: argparse.Namespace) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    found = {f"noise of sd {sd:g}": _noise(args.tokens, args.sequences, sd) for sd in args.sd}
    if args.sampled:
        found |= {name: _rounded(args.tokens, args.sampled, args.policy, made) for name, made in ROUNDINGS.items()}
    return found


def _row(results: Mapping[str, float]) -> Sequence[str]:
    return [f"{results['silent']:.1%}", *(f"{results[f'p{p}']:.3f}" for p in (0, 1, 50, 99, 100)),
            f"{results['masked']:.1%}"]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4000, help="sampled tokens of a trajectory (default 4000)")
    parser.add_argument("--sequences", type=int, default=512, help="trajectories with noise (default 512)")
    parser.add_argument("--sd", type=float, nargs="+", default=[0.02], help="of the noise, nats a token (default .02)")
    parser.add_argument("--sampled", type=int, default=32, help="trajectories sampled with rounded weights; 0: none")
    parser.add_argument("--policy", type=Path, help="folder of a policy to round (default: random weights)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured here")
    args = parse(parser, "--tokens", "64", "--sequences", "16", "--sampled", "4")
    console = wide_console()
    record: dict[str, Any] = {}
    for name, (engine, learner) in _engines(args).items():
        gap = learner - engine
        product, mean = gap.sum(axis=1), gap.mean(axis=1)
        ends = [np.exp(np.percentile(values, (1, 99))) for values in (product, mean)]
        title = (
            f"{name}: {len(engine)} trajectories of {args.tokens} tokens, |gap| {np.abs(gap).mean():.4f} (sd "
            f"{gap.std():.4f}) a token, product {ends[0][0]:.3g} to {ends[0][1]:.3g}, geometric {ends[1][0]:.4f} to "
            f"{ends[1][1]:.4f}"
        )
        made = table(title, [], ["", "silent", "min", "p1", "p50", "p99", "max", "masked"])
        record[name] = {way: _measure(engine, learner, *settings) for way, settings in WAYS.items()}
        for way, results in record[name].items():
            made.add_row(way, *_row(results))
        console.print(made)
    keep(args.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
