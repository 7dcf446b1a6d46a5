"""Check a composed config and make it a `RunConfig`; every problem is one sentence with the fix."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf

from orchestra_jax.config.choices import EngineName, QuestionFormat, ReplayMode, Role
from orchestra_jax.config.ranges import range_problem, shown
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import ConfigError, RunConfig, WorldConfig
from orchestra_jax.config.tools import ToolsConfig
from orchestra_jax.io import hub


def load(config: DictConfig, output_dir: str | None = None) -> RunConfig:
    """Return the composed config as a checked `RunConfig`.

    Args:
        config: what Hydra composed on the schema `RunConfig`.
        output_dir: replaces `output_dir`, e.g. by a sweep's folder of this job.

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
    return [*_update_problems(config), *_rollout_problems(config.rollout), *_tool_problems(config)]


def _told(*rules: tuple[bool, str]) -> list[str]:
    """Return the sentences of the rules that are broken."""
    return [sentence for broken, sentence in rules if broken]


def _update_problems(config: RunConfig) -> list[str]:
    """Return what does not fit among the mesh, the policy and its update."""
    algorithm, lora, longest = config.algorithm, config.model.lora, config.rollout.limits.max_length
    sizes = (config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    samples, shared = algorithm.tasks_per_step * algorithm.group_size, config.data.preferences_per_question
    return _told(
        (
            sizes.count(-1) > 1 or 0 in sizes,
            f"mesh {sizes} must have sizes >= 1 and at most one -1 (all devices left): change mesh.*.",
        ),
        (
            samples % algorithm.minibatches > 0,
            f"algorithm.minibatches={algorithm.minibatches} must divide the {samples} samples of a step "
            "(tasks_per_step * group_size): change one of them.",
        ),
        (
            algorithm.tasks_per_step % shared > 0,
            f"data.preferences_per_question={shared} must divide algorithm.tasks_per_step={algorithm.tasks_per_step}: "
            "change one of them.",
        ),
        (
            algorithm.packing and (algorithm.row_length or longest) < longest,
            f"algorithm.row_length={algorithm.row_length} does not hold a trajectory of rollout.limits.max_length="
            f"{longest}: make it at least as long, or null.",
        ),
        (
            lora.rank > 0 and config.model.path is None,
            "model.lora.rank needs a base to freeze: set model.path=FOLDER, or model.lora.rank=0.",
        ),
        (
            lora.rank > 0 and lora.layers > 0 and config.model.scan_layers,
            "model.lora.layers needs layers of their own: set model.scan_layers=false, or model.lora.layers=0.",
        ),
        (
            lora.rank == 0 and lora.path is not None,
            "model.lora.path starts from adapters: set model.lora.rank to theirs, or model.lora.path=null.",
        ),
        (
            lora.rank > 0 and config.warm_start.pretrained and algorithm.loss.kl_coef > 0,
            "Under adapters the KL's reference is their base, which has had no warm start: set "
            "algorithm.loss.kl_coef=0, or warm_start.pretrained=false.",
        ),
    )


def _rollout_problems(rollout: RolloutConfig) -> list[str]:
    """Return what does not fit among the engine, its servers and the limits."""
    limits, server = rollout.limits, rollout.server
    sglang, ahead = rollout.engine is EngineName.sglang, bool(rollout.max_staleness or rollout.spare_groups)
    far = next((url for url in rollout.urls if sglang and not on_this_host(url)), None)
    return _told(
        (
            limits.max_new_tokens >= limits.max_length,
            f"rollout.limits.max_new_tokens={limits.max_new_tokens} leaves no room for a prompt: "
            f"make it smaller than rollout.limits.max_length={limits.max_length}.",
        ),
        (
            rollout.engine is EngineName.embedded and rollout.lockstep and ahead,
            "rollout.lockstep makes the engine wait for all trajectories, so none can run ahead: set "
            "rollout.lockstep=false, or rollout.max_staleness=0 and rollout.spare_groups=0.",
        ),
        (
            sglang and not rollout.urls and not server.python,
            "rollout.engine=sglang needs a server: set rollout.urls=[http://HOST:PORT], or rollout.server.python=PATH "
            "of an interpreter that has SGLang (requirements/README.md).",
        ),
        (
            bool(server.gpus) and len(server.gpus) != server.count,
            f"rollout.server.gpus names the GPUs of {len(server.gpus)} server(s), but rollout.server.count="
            f"{server.count}: make them agree.",
        ),
        (
            far is not None and rollout.weight_folder is None,
            f"The server {far} cannot read this host's shared memory, where new weights lie: set "
            "rollout.weight_folder=FOLDER to a folder that the trainer and all servers see.",
        ),
        (
            server.share_gpus and not sglang,
            f"rollout.server.share_gpus is for servers, but rollout.engine={rollout.engine}: set "
            "rollout.engine=sglang, or rollout.server.share_gpus=false.",
        ),
        (
            server.share_gpus and sglang and bool(rollout.urls),
            "rollout.server.share_gpus needs servers that the run starts itself: set rollout.urls=[] and "
            "rollout.server.python=PATH.",
        ),
        (
            server.share_gpus and ahead,
            "rollout.server.share_gpus stops the servers during an update, so no rollouts can run ahead: set "
            "rollout.max_staleness=0 and rollout.spare_groups=0, or give the servers GPUs of their own "
            "(+placement=separate).",
        ),
    )


def on_this_host(url: str) -> bool:
    """Return whether a server's URL has this host's own address."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def _tool_problems(config: RunConfig) -> list[str]:
    """Return what does not fit among tools, prices and the record of calls."""
    found, tools, factors = [], config.tools, config.pricing.randomise
    for key, offer in (("tools", tools), ("tools.evaluation", tools.evaluation)):
        for index, entry in enumerate(offer.mcp):
            from orchestra_jax.config.mcp import mcp_server  # only now: most runs have no server

            try:
                mcp_server(entry, f"{key}.mcp[{index}]")
            except ConfigError as error:
                found.append(str(error))
        unknown, menu = sorted(set(offer.experts) - set(Role)), offer.menu
        found += _told(
            (bool(unknown), f"{key}.experts has the role {(unknown or [''])[0]}: the roles are {', '.join(Role)}."),
            (
                menu.most is not None and menu.most < menu.fewest,
                f"{key}.menu.most={menu.most} must be at least {key}.menu.fewest={menu.fewest}.",
            ),
        )
    reply, context = tools.server.max_tokens, tools.server.context_tokens or 32768
    return found + _told(
        (
            (reply or 1) >= context,
            f"tools.server.max_tokens={reply} leaves no room for a question: make it smaller than "
            f"tools.server.context_tokens={context}.",
        ),
        (
            factors.low > factors.high,
            f"pricing.randomise.low={factors.low} must be at most pricing.randomise.high={factors.high}.",
        ),
        (
            config.replay.mode is not ReplayMode.off and not config.replay.path,
            f"replay.mode={config.replay.mode} needs a file: set replay.path=FILE.db.",
        ),
    )


def missing_inputs(config: WorldConfig) -> list[str]:
    """Return one sentence, with the fix, for everything that the run needs and that is not named, or not there."""
    model, data, tools = config.model, config.data, config.tools
    live = config.replay.mode is not ReplayMode.replay
    size = model.preset.removeprefix("qwen3-")
    released = f"Qwen/Qwen3-{shown(size.upper())}" if size != model.preset else "Qwen/Qwen3-0.6B"
    trained = {source.source for source in data.training()}
    found = _told(
        (
            model.path is None and not model.random_init,
            f"The policy {shown(model.preset)} has no weights: set model.path={released} (or another id on the Hugging "
            "Face hub), model.path=FOLDER (config.json and *.safetensors), or model.random_init=true.",
        ),
        (
            config.evaluation.questions > 0
            and data.eval_path is None
            and data.eval_source not in (QuestionFormat.auto, *trained),
            f"The questions of data.eval_source={data.eval_source} are not named: set data.eval_path=FILE, or "
            "data.eval_source=auto to evaluate on data.eval_questions of the training questions, which are held out.",
        ),
        (
            bool(tools.opened.experts) and not tools.server.url and not tools.experts_file and live,
            "tools.experts need a server: set tools.server.url=http://HOST:PORT/v1 or tools.experts_file=FILE, or "
            "tools=offline.",
        ),
    )
    made = {"model.path": ", or make it with `make smollm2`"} if model.preset == "smollm2-135m" else {}
    return found + [
        f"{key}={shown(path)} is not there: set {key}{made.get(key, '')}."
        for key, path in _paths(config, tools, live)
        if path and not _there(key, path)
    ]


def missing_files(config: RunConfig, command: str) -> list[str]:
    """Return one sentence for each file that a command needs and that is not there; it needs no JAX.

    Args:
        config: the composed config.
        command: train, evaluate, judge or synthesize.
    """
    if command == "train":
        return missing_inputs(config)
    if command == "evaluate":
        if problem := missing_policy(config):
            return [problem]
        # The policy is there, and brings its tokenizer; a model behind an address has no engine of ours.
        words = "environment" if config.policy else config.model.tokenizer
        ours = config.policy is None or not config.policy.startswith(_NOT_OURS)
        engine = config.rollout.engine if ours else EngineName.embedded
        path = config.model.path if config.policy is None else None
        model = replace(config.model, path=path, tokenizer=words, random_init=True)
        return missing_inputs(replace(config, model=model, rollout=replace(config.rollout, engine=engine)))
    tools = config.tools
    asked = [("tools.experts_file", tools.experts_file), ("tools.descriptions", tools.descriptions)]
    if command == "judge":
        asked.append(("evaluation.judge_sample", config.evaluation.judge_sample))
    return [f"{key}={shown(path)} is not there: set {key}." for key, path in asked if path and not _there(key, path)]


def missing_policy(config: RunConfig) -> str | None:
    """Return the sentence for a policy to evaluate that is not there, or None if it is."""
    if config.policy is None:
        exported = Path(config.output_dir) / POLICY_FOLDER
        if config.model.path is not None or exported.exists():
            return None
        return (
            "There is no policy to evaluate: set policy=FOLDER or policy=http://HOST:PORT/v1, or train first "
            f"({exported} is not there)."
        )
    if config.policy.startswith(_NOT_OURS) or _there("model.", config.policy):
        return None
    return no_policy(config.policy)


def no_policy(named: str) -> str:
    """Return the sentence for a `policy` that names none."""
    return (
        f"policy={shown(named)} is neither a checkpoint (config.json, *.safetensors), a run's folder, an id on "
        "the hub nor an address: set policy=FOLDER, policy=http://HOST:PORT/v1 or policy=baseline:NAME."
    )


POLICY_FOLDER = "policy"  # of a run: the trained policy, as transformers and SGLang load it
_NOT_OURS = ("http://", "https://", "baseline:")  # a policy that begins so is sampled by no engine of ours


def _paths(config: WorldConfig, tools: ToolsConfig, live: bool) -> Iterator[tuple[str, str | None]]:
    """Yield (key, path) of everything that the run reads."""
    model, data, search = config.model, config.data, tools.search
    searches = live and "local_search" in tools.opened.names
    if config.rollout.engine is EngineName.sglang and not config.rollout.urls:
        yield "rollout.server.python", config.rollout.server.python
    yield "model.path", model.path
    if searches and search.index is None:
        yield "tools.search.corpus", search.corpus
    elif searches and search.index is not None and not search.index.startswith("http"):
        yield "tools.search.index", search.index
    yield "tools.experts_file", tools.experts_file
    yield "tools.descriptions", tools.descriptions
    yield "replay.path", None if live else config.replay.path
    yield "data.eval_path", data.eval_path
    yield "data.preferences_file", data.preferences_file if data.preferences else None
    if model.tokenizer != "environment":
        yield "model.tokenizer", model.tokenizer
    for source in data.training():
        yield "data.path" if data.path is not None else "data.mixture", source.path


def _there(key: str, path: str) -> bool:
    """Return whether a file or folder is there, or may be had from the hub, which nothing here asks."""
    # Unlike Path.exists, this also answers for a name that no file can have.
    return os.path.exists(path) or (key.startswith(_HUB) and hub.is_id(path))


# What may be named by its id on the Hugging Face hub.
_HUB = ("model.", "data.", "tools.search.index")
# What may differ between a run and its continuation: how far, where and how much is written.
_FREE_ON_RESUME = (
    *("steps", "output_dir", "compilation_cache", "mesh", "evaluation", "checkpoint", "logger", "plan", "synthesis"),
    *("rollout.urls", "rollout.slots", "rollout.threads", "rollout.server", "budget", "replay"),
    *("tools.server.url", "tools.server.api_key_env", "tools.server.timeout_s", "tools.server.retries"),
    *("tools.server.concurrency", "tools.server.requests_per_minute", "tools.web.url", "tools.web.timeout_s"),
    *("tools.search.embedder_url", "tools.sandbox.url", "tools.sandbox.workers"),
)
# The same of an MCP server with a name: wherever it is, it is the same server.
_FREE_OF_MCP = ("server", "env", "headers", "timeout_s", "retries", "concurrency")


def resume_conflicts(saved: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Return the keys whose change would make `config` another run than the saved one.

    Args:
        saved: the earlier run's config as plain containers (`dataclasses.asdict`, through JSON or not).
        config: the run that wants to go on.

    Returns: `key: old -> new` for each, where keys of a changed schema count too.
    """
    old, new = (dict(flat(each)) for each in (saved, asdict(config)))
    for settings in (old, new):
        for key in ("tools.mcp", "tools.evaluation.mcp"):
            settings[key] = [
                {name: value for name, value in entry.items() if name not in _FREE_OF_MCP}
                if isinstance(entry, Mapping) and entry.get("name")
                else entry
                for entry in settings.get(key, ())
            ]
    return [
        f"{key}: {old.get(key)} -> {new.get(key)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not any(f"{key}.".startswith(f"{free}.") for free in _FREE_ON_RESUME)
    ]


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
        yield f"{key}={shown(value)} must be {_NOUNS.get(base, 'one of its choices')}: change it."


_NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", list: "a list", dict: "a map"}


def flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of a tree of mappings; lists are values."""
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
