"""Start the engine that rollout.engine names. SGLang is imported only when a run uses it."""

from pathlib import Path

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.engines.base import RunEngine
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.processes import Processes


def start_engine(
    rollout: RolloutConfig,
    model: DecoderConfig,
    params: Params,
    version: int,
    *,
    tokenizer_size: int,
    directory: Path,
    loop: LoopThread,
    processes: Processes,
) -> RunEngine:
    """Return an engine that is ready and holds `params` as weight version `version`.

    Args:
        directory: folder of the servers' first weights and logs.
        loop: event loop that the engine will work in.
        processes: each gets servers of its own: those it starts, or its share of rollout.urls.

    Raises:
        ConfigError: a server does not start, does not answer, or has another model.
    """
    with processes.together():
        if rollout.limits.max_length > model.max_position_embeddings:
            raise ConfigError(
                f"The policy was made for {model.max_position_embeddings} tokens (max_position_embeddings in its "
                f"config.json), but rollout.limits.max_length={rollout.limits.max_length}: lower that, or take another "
                "policy."
            )
        if rollout.engine is EngineName.embedded:
            from orchestra_jax.engines.embedded import EmbeddedEngine

            return RunEngine(EmbeddedEngine(model, params, rollout, version=version))
        from orchestra_jax.engines.sglang.start import start_servers, write_model

        if processes.first and processes.count > 1 and not rollout.urls:
            write_model(rollout, model, params, directory)
    with processes.together():
        return loop.run(start_servers(rollout, model, params, version, tokenizer_size, directory, processes))
