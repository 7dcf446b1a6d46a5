"""orchestra_jax's step: `micro_batches` and `Learner.policy_step`, as the trainer calls them.

Options: --share-prefix runs a prompt once for its whole group, as training does; without it every row runs its own
prompt, which is the peers' work. --vocab-block N: ids whose logits exist at once.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jaxlib
from worker import B1, B2, CLIP, LEARNING_RATE, MAX_GRAD_NORM, WEIGHT_DECAY, Batch, serve_steps

from orchestra_jax.config.algorithm import OptimizerConfig
from orchestra_jax.models import checkpoint
from orchestra_jax.rl.batching import MicroBatch, MicroShapes, TokenSequence
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LossConfig
from orchestra_jax.rl.optimizer import make_optimizer
from orchestra_jax.rl.packing import micro_batches


def _micro_batches(batch: Batch, *, share: bool) -> list[MicroBatch]:
    """The batch as one micro-batch whose widths are exact, so that nothing is padded."""
    rows, length = batch.tokens.shape
    response = length - batch.prompt
    # The last prompt token stays in the row: its hidden state predicts the first response token.
    prefix = batch.prompt - 1 if share else 0
    width = length - prefix
    sequences = [
        TokenSequence(
            tokens=tuple(batch.tokens[i].tolist()),
            sampled=(False,) * batch.prompt + (True,) * response,
            logprobs=(0.0,) * batch.prompt + tuple(batch.old_logprobs[i].tolist()),
            prefix=prefix,
            advantage=float(batch.advantages[i]),
        )
        for i in range(rows)
    ]
    shapes = MicroShapes(
        tokens=rows * width,
        widths=(width,),
        prefix_widths=(prefix,) if share else (),
        rows_per_prefix=batch.group,
        response_fractions=((response + 0.5) / width,) if rows * (response + 0.5) < rows * width else (),
    )
    return micro_batches(sequences, shapes)


def _build(folder: Path, batch: Batch) -> Callable[[], Mapping[str, float]]:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--share-prefix", action="store_true")
    parser.add_argument("--vocab-block", type=int, required=True)
    args = parser.parse_args()
    config, params = checkpoint.load(folder)
    loss = LossConfig("grpo", clip_low=CLIP, clip_high=CLIP, aggregation="token")
    optimizer = OptimizerConfig(LEARNING_RATE, b1=B1, b2=B2, weight_decay=WEIGHT_DECAY, max_grad_norm=MAX_GRAD_NORM)
    learner = Learner(config, LearnerConfig(loss, vocab_block=args.vocab_block), make_optimizer(optimizer))
    state = learner.init(params)
    batches = _micro_batches(batch, share=args.share_prefix)

    def step() -> Mapping[str, float]:
        nonlocal state
        state, metrics = learner.policy_step(state, batches)
        jax.block_until_ready(state)
        return {"loss": float(metrics["loss"]), "grad_norm": float(metrics["grad_norm"])}

    return step


if __name__ == "__main__":
    serve_steps(_build, {"jax": jax.__version__, "jaxlib": jaxlib.__version__})
