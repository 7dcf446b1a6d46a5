"""Build the parts of a run from its configuration: checks first, then chat, policy, collector and evaluator."""

import sys
from pathlib import Path
from typing import Any, cast

import jax
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray
from rich.console import Console

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.checks import missing
from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import ConfigError, RandomPricesConfig, RunConfig
from orchestra_jax.envs.base import Environment
from orchestra_jax.envs.registry import environment_class
from orchestra_jax.evaluation.runner import Evaluator
from orchestra_jax.models import checkpoint
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.models.copying_heads import with_copying_heads
from orchestra_jax.models.decoder import abstract_params, init_params
from orchestra_jax.models.families import preset_config, run_settings
from orchestra_jax.money import run_budget as spending
from orchestra_jax.money.run_prices import paid_prices
from orchestra_jax.processes import Processes
from orchestra_jax.rl.losses import LOSSES, Loss
from orchestra_jax.rl.setup import device_mesh
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.rollout.source import RolloutSource
from orchestra_jax.rollout.watchdog import Watchdog, describe
from orchestra_jax.training.checkpoint_names import in_bucket


def preflight(cfg: RunConfig, processes: Processes | None = None) -> None:
    """Check that everything the run needs is there, before anything is made.

    Raises:
        ConfigError: one sentence for each thing that is missing.
    """
    found = missing(cfg)
    try:
        if not isinstance(LOSSES.get(name := cfg.algorithm.loss.loss), Loss):
            found.append(f"algorithm.loss.loss={name} is no Loss: write @Loss above the function (docs/add_a_loss.md).")
        device_mesh(cfg.mesh)
    except ValueError as error:
        found.append(str(error))
    if cfg.rollout.engine is EngineName.sglang or (processes is not None and processes.count > 1):
        from orchestra_jax.training.prerequisites import beside_problems

        found += beside_problems(cfg, processes or Processes())
    try:
        paid_prices(cfg.pricing)
        if cfg.pricing.randomise != RandomPricesConfig():
            from orchestra_jax.money.price_book import price_book

            price_book(cfg)
    except ValueError as error:
        found.append(str(error))
    try:
        if cfg.model.path is None:
            preset_config(cfg.model, vocab_size=1)
    except ValueError as error:
        found.append(str(error))
    found += environment_class(cfg).problems(cfg)
    if not found and in_bucket(cfg.checkpoint.folder):
        from orchestra_jax.training.buckets import bucket_problems

        found = bucket_problems(str(cfg.checkpoint.folder))
    if not found and names_folders(cfg):
        from orchestra_jax.training.prerequisites import hub_problems

        found = hub_problems(cfg)
    if found:
        raise ConfigError("\n".join(dict.fromkeys(found)))


def names_folders(cfg: RunConfig) -> bool:
    """Return whether the run reads a policy, a tokenizer or tasks, which the hub may have; the quickstart does not."""
    model, data = cfg.model, cfg.data
    return bool(model.path or data.training() or data.eval_path or model.tokenizer not in (None, "environment"))


def keep_compiled(cfg: RunConfig) -> None:
    """Keep every compiled program of this process for later starts. JAX_COMPILATION_CACHE_DIR wins."""
    if cfg.compilation_cache is None or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    jax.config.update("jax_compilation_cache_dir", str(Path(cfg.compilation_cache).expanduser().absolute()))
    # By default JAX keeps no program that compiles in less than a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def policy_config(cfg: RunConfig, chat: ChatFormat) -> DecoderConfig:
    """Return the policy's architecture: a checkpoint's, or a preset with a vocabulary of the tokenizer's size.

    Raises:
        ConfigError: the checkpoint's config.json cannot be read, its vocabulary is not the tokenizer's, or there is no
            such preset.
    """
    if cfg.model.path is not None:
        from orchestra_jax.training.prerequisites import checkpoint_config

        return checkpoint_config(cfg.model, chat)
    try:
        return preset_config(cfg.model, vocab_size=len(chat.tokenizer))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def make_policy(cfg: RunConfig, chat: ChatFormat, mesh: Mesh | None = None) -> tuple[DecoderConfig, Params]:
    """Return architecture and starting weights, a checkpoint's or random ones. No device of a mesh ever holds all.

    Raises:
        ConfigError: the checkpoint cannot be read.
    """
    config = policy_config(cfg, chat)
    if cfg.model.path is None:
        return config, _random_params(config, jax.random.key(cfg.seed), mesh)
    try:
        return checkpoint.load(cfg.model.path, mesh, **run_settings(cfg.model))
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error


def _random_params(config: DecoderConfig, key: PRNGKeyArray, mesh: Mesh | None) -> Params:
    def random(key: PRNGKeyArray) -> Params:
        params = init_params(config, key)
        copies = config.tie_word_embeddings  # to a head of its own an embedding is no logit
        return with_copying_heads(params, config, jax.random.fold_in(key, 1)) if copies else params

    shardings = None
    if mesh is not None:
        from orchestra_jax.models.sharding import MeshSharding

        shardings = MeshSharding(mesh).params(abstract_params(config), config.axes)
    return cast(Params, jax.jit(random, out_shardings=shardings)(key))


def make_collector(cfg: RunConfig, environment: Environment, chat: ChatFormat | None) -> Collector:
    """Return a collector of the environment's episodes under the run's limits and prices."""
    return Collector(
        environment,
        chat,
        cfg.rollout.limits,
        paid_prices(cfg.pricing),
        seconds_per_token=cfg.pricing.orchestrator_seconds_per_token,
        allowance=spending.limits(cfg.budget, "trajectory"),
        watchdog=Watchdog(lambda slow: print(describe(slow), file=sys.stderr, flush=True)),
    )


def make_evaluator(*parts: Any) -> Evaluator:
    """Return a run's evaluator from the arguments of `Evaluator`; on a terminal it shows how far it is."""
    if not Console().is_terminal:
        return Evaluator(*parts)
    from orchestra_jax.training.evaluation_progress import RunEvaluator

    return RunEvaluator(*parts)


def rollout_source(
    algorithm: AlgorithmConfig, rollout: RolloutConfig, *rest: Any, steps: int | None = None
) -> RolloutSource:
    """Return the environment's own source of trajectories, or the one that the settings ask for."""
    own = getattr(rest[1].environment, "rollout_source", RolloutSource)  # `rest` begins with seed and collector
    if own is not RolloutSource or not (rollout.max_staleness or algorithm.refill):
        return own(algorithm, rollout, *rest)
    from orchestra_jax.rollout.ahead import StreamSource

    return StreamSource(algorithm, rollout, *rest, steps=steps)
