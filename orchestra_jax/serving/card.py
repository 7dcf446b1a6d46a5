"""The model card of a run's policy: README.md of its repository on the Hugging Face hub."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra_jax import __version__
from orchestra_jax.config import record
from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.envs.base import Environment
from orchestra_jax.evaluation.benchmark_rows import benchmark_rows
from orchestra_jax.io import hub
from orchestra_jax.models.lora import adapter_base
from orchestra_jax.serving.opened import AskableWorld

MARK = "<!-- orchestra-jax push writes this page anew; remove this line to keep what you change. -->"
# Settings that say where a policy works, and not how it was trained.
_WORLD = re.compile(
    r"\+?(?:experiment|benchmark|env|tools|data|pricing|rollout\.(?:limits|history)|model\.tokenizer)\b"
)
_FILE, _ADDRESS = re.compile(r"(?<![\w.])(?:~|\.\.?)?/[\w.~/+-]+"), re.compile(r"\w+://[^\s,'\"\]}]+")
_ADAPTERS = "adapter_config.json"
_SHOWN, _LOOKED_AT = 12, 20  # tools of the card, and questions whose menus are looked at


def card(run: Path, name: str, licence: str | None, cfg: WorldConfig, environment: Environment, folder: Path) -> str:
    """Return the card.

    Args:
        licence: its licence, as the hub writes it; None: the card says that there is none.
        cfg: settings in force for an evaluation of the run.

    Raises:
        ConfigError: the run has no record.
    """
    kept = record.read(run)
    if kept is None:
        raise ConfigError(f"{str(run)!r} is no folder of a run: it has no {record.FILE_NAME}.")
    base = _base(kept, folder)
    parts = {
        "": [_about(cfg)],
        "What was it trained on?": list(_trained(kept, base)),
        "What does it call?": list(_menu(cfg, environment)),
        "What may a user wish?": list(_wishes(environment)),
        "How good is it?": list(_figures(run)),
        "What are its limits?": list(_limits(cfg, licence)),
        "How do I ask or serve it?": list(_use(kept, name)),
    }
    lines = [*_head(cfg, licence, base), MARK, "", f"# {name.partition('/')[2]}", ""]
    for title, found in parts.items():
        lines += [*([f"## {title}", ""] if title else []), *found, ""]
    return "\n".join(lines)


def _head(cfg: WorldConfig, licence: str | None, base: str | None) -> Iterator[str]:
    """Yield what the hub reads of a card."""
    yield from ("---", "library_name: orchestra_jax", "pipeline_tag: text-generation")
    yield from ("tags:", "- orchestra_jax", "- tool-use", f"- {json.dumps(cfg.env.name)}")
    if licence is not None:
        yield f"license: {json.dumps(licence)}"
    if base is not None:
        yield f"base_model: {json.dumps(base)}"
    yield "---"


def _about(cfg: WorldConfig) -> str:
    return (
        "A policy that answers questions by calling tools and other models, and weighs whether the answer is right, "
        f"what it costs and how long it takes. It was trained with orchestra_jax {__version__} in the world "
        f"`{cfg.env.name}`, and knows the menus and words of that world."
    )


def _base(kept: Mapping[str, Any], folder: Path) -> str | None:
    """Return the id on the hub that the policy was made from, None: it is none that others could have."""
    named = adapter_base(folder) if (folder / _ADAPTERS).is_file() else str(kept["config"]["model"].get("path"))
    return named if hub.is_id(named) else None


def _trained(kept: Mapping[str, Any], base: str | None) -> Iterator[str]:
    config, starts = kept["config"], kept["starts"]
    began = (
        ("the weights of an earlier run" if config["model"].get("path") else "random weights")
        if base is None
        else f"`{base}`"
    )
    yield f"- It began with {began}; seed {config['seed']}, {config['steps']} policy steps."
    if starts:
        first = starts[0]
        yield f"- Commit {first.get('commit') or 'unknown'} of orchestra_jax, {str(first.get('date'))[:10]}."
        if words := _shown(first.get("overrides") or ()):
            yield f"- Settings: `{' '.join(words)}`."


def _menu(cfg: WorldConfig, environment: Environment) -> Iterator[str]:
    tasks = environment.held_out(_LOOKED_AT)
    offers = {(spec.name, " ".join(spec.description.split())) for task in tasks for spec in task.tools}
    shown, about = {spec.name: spec for task in tasks for spec in task.tools}, "What its menus offer"
    if len(offers) > len(shown):  # a name stands for another tool in each menu
        shown, about = (
            {spec.name: spec for spec in tasks[0].tools},
            "One of its menus, which are drawn for each question",
        )
    yield f"{about}, with prices of the list `{cfg.pricing.name}`:"
    yield ""
    for spec in list(shown.values())[:_SHOWN]:
        yield f"- `{spec.name}`: {' '.join(spec.description.split())}"
    if len(shown) > _SHOWN:
        yield f"- and {len(shown) - _SHOWN} more"
    if models := sorted({expert.name for task in tasks for expert in environment.experts(task)}):
        yield f"\nModels: {', '.join(f'`{model}`' for model in models)}."


def _wishes(environment: Environment) -> Iterator[str]:
    wishes = environment.wishes() if isinstance(environment, AskableWorld) else {}
    for word, sentence in wishes.items():
        yield f"- `{word}`: {sentence}"
    if not wishes:
        yield "Nothing: it was trained without wishes, or its world takes no questions of users."


def _figures(run: Path) -> Iterator[str]:
    """Yield the figures of the run on questions that training has not seen."""
    file = run / "summary.json"
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    after = found.get("after") or {}
    rows = [("before training", found.get("before")), ("after", after), ("after, temperature 0", after.get("greedy"))]
    for name, phases in (found.get("benchmarks") or {}).items():
        rows += [(label, figures) for label, figures, _ in benchmark_rows(name, phases.get("after") or {})]
    if not any(figures for _, figures in rows):
        yield "Nobody knows: the run has no figures of questions that training has not seen."
        return
    yield "On questions that training has not seen; intervals are 95 % (Wilson's for shares, bootstrap for means)."
    yield ""
    yield "| policy | questions | right | cents an answer | seconds | calls |"
    yield "|---|---|---|---|---|---|"
    for label, figures in rows:
        if figures:
            yield f"| {label} | {' | '.join(_cells(figures))} |"


def _cells(figures: Mapping[str, Any]) -> Iterator[str]:
    intervals = figures.get("intervals") or {}

    def cell(name: str, scale: float, kinds: Sequence[str], unit: str = "") -> str:
        if figures.get(name) is None:
            return ""
        known = intervals.get(name) or {}
        ends = next((known[kind] for kind in kinds if known.get(kind)), None)
        within = f" ({scale * ends[0]:.3g} to {scale * ends[1]:.3g})" if ends else ""
        return f"{scale * figures[name]:.3g}{unit}{within}"

    yield f"{figures.get('counted') or 0:.0f}"
    yield cell("accuracy", 100, ("wilson", "bootstrap"), " %")
    yield cell("cost", 100, ("bootstrap",))
    yield cell("latency", 1, ("bootstrap",))
    yield cell("calls", 1, ())


def _limits(cfg: WorldConfig, licence: str | None) -> Iterator[str]:
    limits = cfg.rollout.limits
    yield f"- At most {limits.max_turns} turns, {limits.max_calls} calls and {limits.max_length} tokens."
    yield "- The figures hold for the world, menus and prices above. Elsewhere nobody has measured it."
    yield "- What it answers is what its tools and models say: it may be wrong, and their terms hold."
    yield f"- Licence: {licence or 'its owner has not stated one'}."


def _use(kept: Mapping[str, Any], name: str) -> Iterator[str]:
    starts = kept["starts"]
    words = [word for word in _shown(starts[0].get("overrides") or () if starts else ()) if _WORLD.match(word)]
    given = "".join(f" {shlex.quote(word)}" for word in words)
    yield from ("```bash", 'pip install "orchestra-jax[serve]"')
    yield from (
        f'orchestra-jax ask {name} "a question"{given}',
        f"orchestra-jax serve {name} --port 8100{given}",
        "```",
    )
    yield from ("", "```python", "import orchestra_jax as oj", "")
    settings = "".join(f", {json.dumps(word)}" for word in words)
    yield f"with oj.Orchestrator.load({json.dumps(name)}{settings}) as orchestrator:"
    yield from ('    print(orchestrator.ask("a question", max_usd=0.25).trace)', "```")
    if any("FILE" in word or "ADDRESS" in word for word in words):
        yield "\n`FILE` and `ADDRESS` stand for files and servers of your own, in place of those of the training."


def _shown(words: Sequence[str]) -> list[str]:
    """Return settings without files, addresses and folders of the machine of the training."""
    kept = [word for word in words if not re.match(r"(?:output_dir|model\.path|policy|checkpoint|compilation)\b", word)]
    return [_FILE.sub("FILE", _ADDRESS.sub("ADDRESS", word)) for word in kept]
