"""From Hydra's composed config to a checked `RunConfig`, and the sentences for everything that is wrong with one."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from difflib import get_close_matches
from types import UnionType
from typing import Any, get_args, get_origin
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf

from orchestra_jax.config.choices import EngineName, QuestionFormat, ReplayMode, Role
from orchestra_jax.config.ranges import range_problem, shown
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.config.schema import ConfigError, RunConfig, WorldConfig
from orchestra_jax.config.tools import MCP_MAY_MOVE, mcp_server
from orchestra_jax.io import hub

# Settings of earlier versions that lie in a group of their own now, under the same name.
_GROUPED = {
    "algorithm.loss": (
        "aggregation", "clip_high", "clip_low", "dual_clip", "importance", "importance_cap", "kl", "kl_coef", "loss",
    ),
    "algorithm.advantage": ("invalid", "min_std", "normalize_std"),
    "algorithm.optimizer": (
        "learning_rate", "max_grad_norm", "moment_dtype", "schedule", "warmup_steps", "weight_decay",
    ),
    "rollout.limits": (
        "deadline_s", "max_length", "max_new_tokens", "max_turns", "retries", "tool_deadline_s", "turn_deadline_s",
    ),
    "tools.menu": ("aliases", "form", "subset"),
    "tools.search": ("corpus", "embedder_url", "index", "top_k"),
    "warm_start.optimizer": ("learning_rate",),
}  # fmt: skip
# Keys of earlier versions, and where their values go now.
RENAMED = {
    **{f"{group.partition('.')[0]}.{name}": f"{group}.{name}" for group, names in _GROUPED.items() for name in names},
    **{f"tools.sandbox_{name}": f"tools.sandbox.{name}" for name in ("isolation", "timeout_s", "url", "workers")},
    **{f"tools.web_{name}": f"tools.web.{name}" for name in ("timeout_s", "url")},
    **{
        f"tools.experts_{name}": f"tools.server.{name}"
        for name in ("concurrency", "max_tokens", "requests_per_minute", "retries", "timeout_s", "url")
    },
    "algorithm.advantage_clip": "algorithm.advantage.clip",
    "algorithm.adam_b1": "algorithm.optimizer.b1",
    "algorithm.adam_b2": "algorithm.optimizer.b2",
    "algorithm.optimizer": "algorithm.optimizer.name",
    "data.wishes": "data.preferences_per_question",
    "env.max_calls": "rollout.limits.max_calls",
    "logger.tensorboard": "logger.names",
    "rollout.weight_update": "rollout.weight_folder",
    "warm_start.optimizer": "warm_start.optimizer.name",
    "tools.experts_context": "tools.server.context_tokens",
    "tools.experts_key_env": "tools.server.api_key_env",
    "tools.subset_max": "tools.menu.most",
    "tools.subset_min": "tools.menu.fewest",
    "tools.web": "tools.web.provider",
}


def load(config: DictConfig, output_dir: str | None = None) -> RunConfig:
    """The composed config as a validated `RunConfig`.

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
    """One sentence, with the fix, for all settings that do not fit each other; reads no file."""
    found = []
    sizes = (config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    if sizes.count(-1) > 1 or 0 in sizes:
        found.append(f"mesh {sizes} must have sizes >= 1 and at most one -1 (all devices left): change mesh.*.")
    rollout, algorithm = config.rollout, config.algorithm
    limits = rollout.limits
    if limits.max_new_tokens >= limits.max_length:
        found.append(
            f"rollout.limits.max_new_tokens={limits.max_new_tokens} leaves no room for a prompt: "
            f"make it smaller than rollout.limits.max_length={limits.max_length}."
        )
    if rollout.engine is EngineName.embedded and rollout.lockstep and (rollout.max_staleness or rollout.spare_groups):
        found.append(
            "rollout.lockstep makes the engine wait for all trajectories, so none can run ahead: set "
            "rollout.lockstep=false, or rollout.max_staleness=0 and rollout.spare_groups=0."
        )
    if rollout.engine is EngineName.sglang and not rollout.urls and not rollout.server.python:
        found.append(
            "rollout.engine=sglang needs a server: set rollout.urls=[http://HOST:PORT], or rollout.server.python=PATH "
            "of an interpreter that has SGLang (requirements/README.md)."
        )
    if rollout.server.gpus and len(rollout.server.gpus) != rollout.server.count:
        found.append(
            f"rollout.server.gpus names the GPUs of {len(rollout.server.gpus)} server(s), but rollout.server.count="
            f"{rollout.server.count}: make them agree."
        )
    far = [url for url in rollout.urls if not on_this_host(url)] if rollout.engine == EngineName.sglang else []
    if far and rollout.weight_folder is None:
        found.append(
            f"The server {far[0]} cannot read this host's shared memory, where new weights lie: set "
            "rollout.weight_folder=FOLDER to a folder that the trainer and all servers see."
        )
    if rollout.server.share_gpus:
        found += _sharing(rollout)
    samples = algorithm.tasks_per_step * algorithm.group_size
    if algorithm.minibatches > 0 and samples % algorithm.minibatches:
        found.append(
            f"algorithm.minibatches={algorithm.minibatches} must divide the {samples} samples of a step "
            "(tasks_per_step * group_size): change one of them."
        )
    if algorithm.packing and (algorithm.row_length or limits.max_length) < limits.max_length:
        found.append(
            f"algorithm.row_length={algorithm.row_length} does not hold a trajectory of rollout.limits.max_length="
            f"{limits.max_length}: make it at least as long, or null."
        )
    if config.model.lora.rank and config.model.path is None:
        found.append("model.lora.rank needs a base to freeze: set model.path=FOLDER, or model.lora.rank=0.")
    if config.model.lora.rank and config.model.lora.layers and config.model.scan_layers:
        found.append(
            "model.lora.layers needs layers of their own: set model.scan_layers=false, or model.lora.layers=0."
        )
    if config.model.lora.path is not None and not config.model.lora.rank:
        found.append("model.lora.path starts from adapters: set model.lora.rank to theirs, or model.lora.path=null.")
    if config.model.lora.rank and config.warm_start.pretrained and config.algorithm.loss.kl_coef:
        found.append(
            "Under adapters the KL's reference is their base, which has had no warm start: set "
            "algorithm.loss.kl_coef=0, or warm_start.pretrained=false."
        )
    found += _tools(config)
    return found


def on_this_host(url: str) -> bool:
    """Whether a server's URL has this host's own address."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def _tools(config: RunConfig) -> list[str]:
    """What does not fit among tools, prices and the record."""
    found, tools, factors = [], config.tools, config.pricing.randomise
    server = tools.server
    for key, offer in (("tools", tools), ("tools.evaluation", tools.evaluation)):
        for index, entry in enumerate(offer.mcp):
            try:
                mcp_server(entry, f"{key}.mcp[{index}]")
            except ConfigError as error:
                found.append(str(error))
        if unknown := sorted(set(offer.experts) - set(Role)):
            found.append(f"{key}.experts has the role {unknown[0]}: the roles are {', '.join(Role)}.")
        if offer.menu.most is not None and offer.menu.most < offer.menu.fewest:
            found.append(f"{key}.menu.most={offer.menu.most} must be at least {key}.menu.fewest={offer.menu.fewest}.")
    if (server.max_tokens or 1) >= (server.context_tokens or 32768):
        found.append(
            f"tools.server.max_tokens={server.max_tokens} leaves no room for a question: make it smaller than "
            f"tools.server.context_tokens={server.context_tokens or 32768}."
        )
    if factors.low > factors.high:
        found.append(f"pricing.randomise.low={factors.low} must be at most pricing.randomise.high={factors.high}.")
    if config.replay.mode is not ReplayMode.off and not config.replay.path:
        found.append(f"replay.mode={config.replay.mode} needs a file: set replay.path=FILE.db.")
    return found


def _sharing(rollout: RolloutConfig) -> list[str]:
    """What does not go with servers and a trainer that use the same GPUs in turns."""
    found = []
    if rollout.engine is not EngineName.sglang:
        found.append(
            f"rollout.server.share_gpus is for servers, but rollout.engine={rollout.engine}: set "
            "rollout.engine=sglang, or rollout.server.share_gpus=false."
        )
    elif rollout.urls:
        found.append(
            "rollout.server.share_gpus needs servers that the run starts itself: set rollout.urls=[] and "
            "rollout.server.python=PATH."
        )
    if rollout.max_staleness or rollout.spare_groups:
        found.append(
            "rollout.server.share_gpus stops the servers during an update, so no rollouts can run ahead: set "
            "rollout.max_staleness=0 and rollout.spare_groups=0, or give the servers GPUs of their own "
            "(+placement=separate)."
        )
    return found


def missing_inputs(config: WorldConfig) -> list[str]:
    """One sentence, with the fix, for everything the run needs and that is not named or, a file, not there."""
    found = []
    model, data = config.model, config.data
    if model.path is None and not model.random_init:
        size = model.preset.removeprefix("qwen3-")
        released = f"Qwen/Qwen3-{shown(size.upper())}" if size != model.preset else "Qwen/Qwen3-0.6B"
        found.append(
            f"The policy {shown(model.preset)} has no weights: set model.path={released} (or another id on the Hugging "
            "Face hub), model.path=FOLDER (config.json and *.safetensors), or model.random_init=true."
        )
    trained = {source.source for source in data.training()}
    named = data.eval_path is not None or data.eval_source in (QuestionFormat.auto, *trained)
    if config.evaluation.questions and not named:
        found.append(
            f"The questions of data.eval_source={data.eval_source} are not named: set data.eval_path=FILE, or "
            "data.eval_source=auto to evaluate on data.eval_questions of the training questions, which are held out."
        )
    tools, search, live = config.tools, config.tools.search, config.replay.mode is not ReplayMode.replay
    if tools.opened.experts and not tools.server.url and not tools.experts_file and live:
        found.append(
            "tools.experts need a server: set tools.server.url=http://HOST:PORT/v1 or tools.experts_file=FILE, or "
            "tools=offline."
        )
    searches = live and "local_search" in tools.opened.names
    starts_servers = config.rollout.engine is EngineName.sglang and not config.rollout.urls
    server = config.rollout.server.python if starts_servers else None
    read = [
        ("rollout.server.python", server),
        ("model.path", model.path),
        ("tools.search.corpus", search.corpus if searches and search.index is None else None),
        ("tools.search.index", search.index if searches and not (search.index or "").startswith("http") else None),
        ("tools.experts_file", tools.experts_file),
        ("tools.descriptions", tools.descriptions),
        ("replay.path", None if live else config.replay.path),
        ("data.eval_path", data.eval_path),
        ("data.preferences_file", data.preferences_file if data.preferences else None),
    ]
    if model.tokenizer != "environment":
        read.append(("model.tokenizer", model.tokenizer))
    key = "data.path" if data.path is not None else "data.mixture"
    read += [(key, source.path) for source in data.training()]
    made = {"model.path": ", or make it with `make smollm2`"} if model.preset == "smollm2-135m" else {}
    found += [
        f"{key}={shown(path)} is not there: set {key}{made.get(key, '')}."
        for key, path in read
        if path and not _there(key, path)
    ]
    return found


def _there(key: str, path: str) -> bool:
    """Whether a file or folder is there, or may be had from the hub, which nothing here asks."""
    # Unlike Path.exists, this also answers for a name that no file can have.
    return os.path.exists(path) or (key.startswith(_HUB) and hub.is_id(path))


# What may be named by its id on the Hugging Face hub.
_HUB = ("model.", "data.", "tools.search.index")
# What may differ between a run and its continuation: how far, where and how much is written.
_FREE_ON_RESUME = (
    "steps", "output_dir", "compilation_cache", "mesh", "evaluation", "checkpoint", "logger", "plan", "synthesis",
    "rollout.urls", "rollout.slots", "rollout.threads", "rollout.server", "budget", "replay", "tools.server.url",
    "tools.server.api_key_env",
    "tools.server.timeout_s", "tools.server.retries", "tools.server.concurrency",
    "tools.server.requests_per_minute", "tools.web.url", "tools.web.timeout_s", "tools.search.embedder_url",
    "tools.sandbox.url", "tools.sandbox.workers",
)  # fmt: skip


def resume_conflicts(saved: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Keys whose change would make `config` another run than the saved one.

    Args:
        saved: the earlier run's config as plain containers (`dataclasses.asdict`, through JSON or not).

    Returns: `key: old -> new` for each, where keys of a changed schema count too.
    """
    old, new = (dict(flat(each)) for each in (saved, asdict(config)))
    for settings in (old, new):
        for key in ("tools.mcp", "tools.evaluation.mcp"):
            settings[key] = [_lasting(entry) for entry in settings.get(key, ())]
    return [
        f"{key}: {old.get(key)} -> {new.get(key)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not any(f"{key}.".startswith(f"{free}.") for free in _FREE_ON_RESUME)
    ]


def _lasting(entry: Any) -> Any:
    """What an MCP server with a name keeps in a continuation, wherever it is then."""
    if not isinstance(entry, Mapping) or not entry.get("name"):
        return entry
    return {name: value for name, value in entry.items() if name not in MCP_MAY_MOVE}


def keys(schema: type = RunConfig, prefix: str = "") -> dict[str, type | None]:
    """Every dotted key of the schema, with its dataclass for those that have keys below them."""
    found: dict[str, type | None] = {}
    for entry in fields(schema):
        node = entry.type if isinstance(entry.type, type) and is_dataclass(entry.type) else None
        found[prefix + entry.name] = node
        if node is not None:
            found |= keys(node, f"{prefix}{entry.name}.")
    return found


def unknown_key(key: str) -> str:
    """One sentence that names the new name of an old key, or the neighbours of one that the schema never had."""
    key = shown(key)
    if key in RENAMED:
        return f"'{key}' has another name now: write {RENAMED[key]}."
    known = keys()
    parent = key.rpartition(".")[0]
    while parent and known.get(parent) is None:
        parent = parent.rpartition(".")[0]
    start = f"{parent}." if parent else ""
    siblings = [name for name in known if name.startswith(start) and "." not in name[len(start) :]]
    near = get_close_matches(key, siblings, n=2, cutoff=0.75) if "." in key else get_close_matches(key, siblings, n=2)
    leaf = key.rpartition(".")[2]
    near = near or [name for name in known if name.rpartition(".")[2] == leaf][:4] or get_close_matches(key, known, n=1)
    hint = f": did you mean {' or '.join(near)}? " if near else ". "
    owner = f"{parent} has" if parent else "The top level has"
    return f"Unknown key '{key}'{hint}{owner}: {', '.join(name[len(start) :] for name in siblings)}."


def wrong_values(key: str, value: Any, kind: Any, rule: Mapping[str, Any]) -> Iterator[str]:
    """The sentences for a composed value that is not of its field's type or outside its range, and for all below it.

    OmegaConf converts what the command line sets, but lets groups into lists and interpolations lead anywhere.
    """
    if value is None and (kind is Any or type(None) in get_args(kind)):
        return
    plain = next((part for part in get_args(kind) if part is not type(None)), Any) if _optional(kind) else kind
    base, inner = get_origin(plain) or plain, get_args(plain)
    if is_dataclass(base) and isinstance(value, Mapping):
        known, start = {entry.name: entry for entry in fields(base)}, f"{key}." if key else ""
        for name, item in value.items():
            if name not in known:  # Hydra lets `+key=value` in
                yield unknown_key(f"{start}{name}")
            else:
                yield from wrong_values(f"{start}{name}", item, known[name].type, known[name].metadata)
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


def _optional(kind: Any) -> bool:
    return isinstance(kind, UnionType)


def flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of a tree of mappings; lists are values."""
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
