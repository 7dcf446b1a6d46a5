"""Tell what a run needs and does not have, before JAX starts: one sentence, with the fix, for each file or address."""

import os
from collections.abc import Iterator

from orchestra_jax.config.choices import EngineName, QuestionFormat, ReplayMode
from orchestra_jax.config.ranges import shown
from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.config.tools import ToolsConfig

_HUB = ("model.", "data.", "tools.search.index")  # what may be named by its id on the Hugging Face hub


def missing_inputs(config: WorldConfig) -> list[str]:
    """Return one sentence, with the fix, for everything that the run needs and that is not named, or not there."""
    model, data, tools = config.model, config.data, config.tools
    live, found = config.replay.mode is not ReplayMode.replay, list[str]()
    if model.path is None and not model.random_init:
        size = model.preset.removeprefix("qwen3-")
        released = f"Qwen/Qwen3-{shown(size.upper())}" if size != model.preset else "Qwen/Qwen3-0.6B"
        found.append(
            f"The policy {shown(model.preset)} has no weights: set model.path={released} (or another id on the Hugging "
            "Face hub), model.path=FOLDER (config.json and *.safetensors), or model.random_init=true."
        )
    known = (QuestionFormat.auto, *(source.source for source in data.training()))
    if config.evaluation.questions > 0 and data.eval_path is None and data.eval_source not in known:
        found.append(
            f"The questions of data.eval_source={data.eval_source} are not named: set data.eval_path=FILE, or "
            "data.eval_source=auto to evaluate on data.eval_questions of the training questions, which are held out."
        )
    if tools.opened.experts and not tools.server.url and not tools.experts_file and live:
        found.append(
            "tools.experts need a server: set tools.server.url=http://HOST:PORT/v1 or tools.experts_file=FILE, or "
            "tools=offline."
        )
    made = {"model.path": ", or make it with `make smollm2`"} if model.preset == "smollm2-135m" else {}
    return found + [
        f"{key}={shown(path)} is not there: set {key}{made.get(key, '')}."
        for key, path in _paths(config, tools, live)
        if path and not is_there(key, path)
    ]


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


def is_there(key: str, path: str) -> bool:
    """Return whether a file or folder is there, or may be on the hub; the hub is not asked."""
    if os.path.exists(path):  # unlike Path.exists, this also answers for a name that no file can have
        return True
    from orchestra_jax.io import hub

    return key.startswith(_HUB) and hub.is_id(path)
