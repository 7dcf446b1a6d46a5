"""Tunix's GRPO step as Tunix has it: its Qwen3, its registered "grpo" loss, its RL trainer's jitted train step.

The loss and the model input are set on the trainer as GRPOLearner does; the loop around the step (data, logging,
checkpoints) is left out, in Tunix's favour. beta = 0 switches the KL off. Old log-probs are given, as to the others.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx  # Tunix's models are nnx modules; this file runs in its environment, never in ours
from tunix.rl import function_registry, trainer
from tunix.rl.grpo.grpo_learner import GRPOConfig, TrainExample
from tunix.sft.peft_trainer import TrainingConfig
from tunix_model import load
from worker import B1, B2, CLIP, EOS_ID, LEARNING_RATE, MAX_GRAD_NORM, PAD_ID, WEIGHT_DECAY, Batch, serve_steps


def _build(folder: Path, batch: Batch) -> Callable[[], Mapping[str, float]]:
    model, _ = load(folder)
    optimizer = optax.chain(
        optax.clip_by_global_norm(MAX_GRAD_NORM),
        optax.adamw(LEARNING_RATE, b1=B1, b2=B2, weight_decay=WEIGHT_DECAY),
    )
    algorithm = GRPOConfig(beta=0.0, epsilon=CLIP, loss_agg_mode="token-mean", num_generations=batch.group)
    algorithm.temperature = 1.0  # GRPOLearner takes it from the rollout's configuration
    grpo = function_registry.get_policy_loss_fn(algorithm.policy_loss_fn)
    tunix = trainer.Trainer(model, optimizer, TrainingConfig(eval_every_n_steps=1), dict)
    tunix.with_loss_fn(
        lambda model, train_example, algo_config: grpo(
            model, train_example, algo_config=algo_config, pad_id=PAD_ID, eos_id=EOS_ID
        ),
        has_aux=True,
    )
    tunix.with_gen_model_input_fn(lambda x: {"train_example": x, "algo_config": algorithm})
    train_step, _ = tunix.jit_train_and_eval_step(cache_nnx_graph=True)
    prompt, completion = batch.tokens[:, : batch.prompt], batch.tokens[:, batch.prompt :]
    example = TrainExample(
        prompt_ids=jnp.asarray(prompt),
        prompt_mask=jnp.asarray(prompt != PAD_ID),
        completion_ids=jnp.asarray(completion),
        completion_mask=jnp.asarray(completion != PAD_ID),
        advantages=jnp.asarray(batch.advantages),
        ref_per_token_logps=None,
        old_per_token_logps=jnp.asarray(batch.old_logprobs),
    )

    def step() -> Mapping[str, float]:
        loss, aux, norm = train_step(example)
        jax.block_until_ready((loss, aux, norm, nnx.state(tunix.model), nnx.state(tunix.optimizer)))
        return {"loss": float(np.asarray(loss)), "grad_norm": float(np.asarray(norm))}

    return step


if __name__ == "__main__":
    serve_steps(_build, {"google-tunix": version("google-tunix"), "flax": version("flax"), "jax": jax.__version__})
