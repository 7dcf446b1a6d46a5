"""Check a composed config and make it a `RunConfig`; every problem is one sentence with the fix."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin

from omegaconf import DictConfig, OmegaConf

from orchestra_jax.config.choices import EngineName, QuestionFormat, ReplayMode
from orchestra_jax.config.ranges import NOUNS, range_problem, shown
from orchestra_jax.config.rollout import ServerOptions
from orchestra_jax.config.schema import ConfigError, LoraConfig, RunConfig, WorldConfig
from orchestra_jax.config.tools import ExpertServer


def load(config: DictConfig, output_dir: str | None = None) -> RunConfig:
    """Return what Hydra composed as a checked `RunConfig`; `output_dir` may be replaced, as by a sweep's folder.

    Raises:
        ConfigError: one sentence per problem.
        omegaconf.errors.OmegaConfBaseException: an interpolation that leads nowhere.
    """
    if output_dir is not None:
        config = OmegaConf.merge(config, {"output_dir": output_dir})  # type: ignore[assignment]
    try:
        found = list(wrong_values("", OmegaConf.to_container(config, resolve=True), RunConfig, {}))
    except RecursionError:
        raise ConfigError("A setting has too many brackets within brackets to be read.") from None
    if found:
        raise ConfigError("\n".join(found))
    run = OmegaConf.to_object(config)
    if not isinstance(run, RunConfig):
        raise ConfigError("This is no run's config: its defaults list must begin with `run_config`.")
    if found := problems(run):
        raise ConfigError("\n".join(found))
    return run


def problems(config: RunConfig) -> list[str]:
    """Return one sentence, with the fix, for all settings that do not fit each other; read no file."""
    found = list(_core_problems(config))
    tools, rollout = config.tools, config.rollout
    # The rules of a plug-in are loaded only by a run that sets something of it.
    if config.model.lora != LoraConfig():
        from orchestra_jax.config.plugin_checks import lora_problems

        found += lora_problems(config.model, config.algorithm, config.warm_start)
    if rollout.engine is EngineName.sglang or rollout.server != ServerOptions():
        from orchestra_jax.config.plugin_checks import server_problems

        found += server_problems(rollout, config.algorithm.loss.importance)
    if rollout.oversample:
        from orchestra_jax.config.plugin_checks import oversample_problems

        found += oversample_problems(rollout, config.algorithm.tasks_per_step)
    if config.checkpoint.folder:
        from orchestra_jax.config.plugin_checks import checkpoint_problems

        found += checkpoint_problems(config.checkpoint.folder)
    for key, offer in (("tools", tools), ("tools.evaluation", tools.evaluation)):
        if offer.mcp or offer.experts:
            from orchestra_jax.config.plugin_checks import offer_problems

            found += offer_problems(key, offer)
    if tools.server != ExpertServer():
        from orchestra_jax.config.plugin_checks import expert_server_problems

        found += expert_server_problems(tools.server)
    return found


def _core_problems(config: RunConfig) -> Iterator[str]:
    """Yield what does not fit among the settings that every run has."""
    algorithm, rollout, factors = config.algorithm, config.rollout, config.pricing.randomise
    limits, longest = rollout.limits, rollout.limits.max_length
    sizes = (config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    samples, shared = algorithm.tasks_per_step * algorithm.group_size, config.data.preferences_per_question
    menus = {"tools.menu": config.tools.menu, "tools.evaluation.menu": config.tools.evaluation.menu}
    if config.name.startswith("/") or ".." in config.name.split("/"):
        yield f"name={shown(config.name)} leaves outputs/: set output_dir=FOLDER instead."
    if sizes.count(-1) > 1 or 0 in sizes:
        yield f"mesh {sizes} must have sizes >= 1 and at most one -1 (all devices left): change mesh.*."
    if samples % algorithm.minibatches:
        yield (
            f"algorithm.minibatches={algorithm.minibatches} must divide the {samples} samples of a step "
            "(tasks_per_step * group_size): change one of them."
        )
    if algorithm.tasks_per_step % shared:
        yield (
            f"data.preferences_per_question={shared} must divide algorithm.tasks_per_step={algorithm.tasks_per_step}: "
            "change one of them."
        )
    if algorithm.packing and (algorithm.row_length or longest) < longest:
        yield (
            f"algorithm.row_length={algorithm.row_length} does not hold a trajectory of rollout.limits.max_length="
            f"{longest}: make it at least as long, or null."
        )
    if limits.max_new_tokens >= longest:
        yield (
            f"rollout.limits.max_new_tokens={limits.max_new_tokens} leaves no room for a prompt: "
            f"make it smaller than rollout.limits.max_length={longest}."
        )
    if rollout.engine is EngineName.embedded and rollout.lockstep and rollout.max_staleness:
        yield (
            "rollout.lockstep makes the engine wait for all trajectories, so none can run ahead: set "
            "rollout.lockstep=false, or rollout.max_staleness=0."
        )
    for key, menu in menus.items():
        if menu.most is not None and menu.most < menu.fewest:
            yield f"{key}.most={menu.most} must be at least {key}.fewest={menu.fewest}."
    if factors.low > factors.high:
        yield f"pricing.randomise.low={factors.low} must be at most pricing.randomise.high={factors.high}."
    if config.replay.mode is not ReplayMode.off and not config.replay.path:
        yield f"replay.mode={config.replay.mode} needs a file: set replay.path=FILE.db."


def missing(config: WorldConfig) -> list[str]:
    """Return the sentences of `config.missing`, which the quickstart, without files and servers, does not load."""
    model, data, tools = config.model, config.data, config.tools
    files = [model.path, data.eval_path, data.preferences_file, tools.experts_file, tools.descriptions]
    files += [tools.search.corpus, tools.search.index, config.replay.path]
    own = model.random_init and model.tokenizer in (None, "environment") and data.eval_source is QuestionFormat.auto
    asks = config.rollout.engine is not EngineName.embedded or tools.opened.experts
    if own and not (any(files) or asks or data.training()):
        return []
    from orchestra_jax.config.missing import missing_inputs

    return missing_inputs(config)


def wrong_values(key: str, value: Any, kind: Any, rule: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each composed value, here or below, that is out of range or not of its field's type.

    OmegaConf converts what the command line sets, but lets groups into lists and interpolations lead anywhere.
    """
    if value is None and (kind is Any or type(None) in get_args(kind)):
        return
    if isinstance(kind, UnionType):
        kind = next((part for part in get_args(kind) if part is not type(None)), Any)
    base, inner = get_origin(kind) or kind, get_args(kind)
    if is_dataclass(base) and isinstance(value, Mapping):
        known, start = {entry.name: entry for entry in fields(base)}, f"{key}." if key else ""
        for name, item in value.items():
            if name in known:
                yield from wrong_values(f"{start}{name}", item, known[name].type, known[name].metadata)
            else:  # Hydra lets `+key=value` in
                from orchestra_jax.config.messages import unknown_key

                yield unknown_key(f"{start}{name}")
    elif base is list and isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from wrong_values(f"{key}[{index}]", item, inner[0], rule)
    elif base is dict and isinstance(value, Mapping):
        for name, item in value.items():
            yield from wrong_values(f"{key}.{shown(name)}", item, inner[1], {"free": True})
        if problem := range_problem(key, list(value), {}):
            yield problem
    elif base is Any or (not is_dataclass(base) and isinstance(value, (base, int) if base is float else base)):
        if problem := range_problem(key, value, rule):
            yield problem
    elif is_dataclass(base):
        yield f"{key}={shown(value)} stands where a group of settings is: write {key}.NAME=VALUE."
    else:
        yield f"{key}={shown(value)} must be {NOUNS.get(base, 'one of its choices')}: change it."


def flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of a tree of mappings; lists are values."""
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
