"""orchestra_jax's step on one device: `pack` and `Learner.policy_step`, layers scanned, full rematerialisation."""

from collections.abc import Callable, Mapping

import jax
from gpu_worker import Job, run
from worker import B1, B2, CLIP, LEARNING_RATE, MAX_GRAD_NORM, WEIGHT_DECAY

from orchestra_jax.config.algorithm import OptimizerConfig
from orchestra_jax.models.decoder import init_params
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.rl.batching import TokenSequence
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LossConfig
from orchestra_jax.rl.optimizer import make_optimizer
from orchestra_jax.rl.packing import PackShapes, pack


def _build(job: Job) -> tuple[Callable[[], float], Callable[[], float | None], Mapping[str, str]]:
    config = Qwen3Config.from_hf(
        dict(job.config),
        dtype="bfloat16",
        param_dtype=job.master,
        scan_layers=True,
        remat="full",
        attention=job.attention,
    )
    tokens, advantages, old = job.batch()
    prompt = job.length - job.response
    sequences = [
        TokenSequence(
            tokens=tuple(tokens[i].tolist()),
            sampled=(False,) * prompt + (True,) * job.response,
            logprobs=(0.0,) * prompt + tuple(old[i].tolist()),
            prefix=0,
            advantage=float(advantages[i]),
        )
        for i in range(job.sequences)
    ]
    share = (job.sequences * job.response + 0.5) / job.row_tokens
    batches = pack(sequences, PackShapes(job.row_tokens, 1, job.sequences, (share,)))
    optimizer = OptimizerConfig(
        LEARNING_RATE,
        b1=B1,
        b2=B2,
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=MAX_GRAD_NORM,
        moment_dtype="bfloat16",
    )
    loss = LossConfig("grpo", clip_low=CLIP, clip_high=CLIP, aggregation="token")
    learner = Learner(config, LearnerConfig(loss, chunk=job.chunk), make_optimizer(optimizer))
    state = learner.init(init_params(config, jax.random.key(0)), donate=True)

    def step() -> float:
        nonlocal state
        state, metrics = learner.policy_step(state, batches)
        jax.block_until_ready(state)
        return float(metrics["loss"])

    def peak() -> float | None:
        statistics = jax.devices()[0].memory_stats()
        return None if statistics is None else float(statistics["peak_bytes_in_use"])

    return step, peak, {"jax": jax.__version__, "attention": job.attention, "device": jax.devices()[0].device_kind}


if __name__ == "__main__":
    run(_build)
