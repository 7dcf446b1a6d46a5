"""The data card: what each stage kept and rejected, what it cost, who took part; as JSON and as a page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from orchestra_jax.config.schema import RunConfig
from orchestra_jax.synthesis.stages import Done

_EXAMPLES = 3  # of each reason, in words


def card(cfg: RunConfig, stages: Sequence[Done], figures: Mapping[str, Any]) -> dict[str, Any]:
    """Counts by stage, rejections with examples, dollars by model, models by role, seed, and further `figures`."""
    settings = cfg.synthesis
    totals = Counter[str]()
    for stage in stages:
        for of_model in stage.tally["models"].values():
            totals.update(of_model)
    return {
        "made": str(settings.make),
        "models": asdict(settings.models),
        "seed": cfg.seed,
        "settings": {key: value for key, value in asdict(settings).items() if key not in ("models", "concurrency")},
        "price_list": cfg.pricing.name,
        **figures,
        "stages": [_stage(stage) for stage in stages],
        "calls": int(totals["calls"]),
        "tokens": int(totals["tokens"]),
        "usd": float(totals["usd"]),
    }


def _stage(stage: Done) -> dict[str, Any]:
    examples: dict[str, list[str]] = {}
    for each in stage.rejected:
        some = examples.setdefault(each["reason"], [])
        if len(some) < _EXAMPLES and each["why"] not in some:
            some.append(each["why"])
    return {
        "name": stage.name,
        "kept": len(stage.rows),
        "rejected": len(stage.rejected),
        "reasons": stage.reasons,
        "examples": examples,
        "unfit_replies": stage.tally["unfit"],
        "models": stage.tally["models"],
    }


def page(content: Mapping[str, Any], title: str, about: str, lines: Sequence[str] = ()) -> str:
    """The card as Markdown.

    Args:
        content: of `card`.
        lines: further paragraphs on what was made.
    """
    models = ", ".join(f"{role} {name}" for role, name in content["models"].items())
    head = [
        f"# {title}", "", about, "",
        f"Written by models ({models}) with seed {content['seed']}: {content['calls']} calls, "
        f"{content['tokens']} tokens, ${content['usd']:.4f} at the prices of {content['price_list']}.", "",
    ]  # fmt: skip
    body = [part for line in lines for part in (line, "")]
    table = ["| stage | kept | rejected | why | replies that did not fit |", "|---|---|---|---|---|"]
    for stage in content["stages"]:
        why = "; ".join(f"{reason} {count}" for reason, count in stage["reasons"].items())
        table.append(f"| {stage['name']} | {stage['kept']} | {stage['rejected']} | {why} | {stage['unfit_replies']} |")
    told = ["", "Examples of what was rejected:", ""]
    told += [
        f"- {stage['name']}, {reason}: {_plain(example)}"
        for stage in content["stages"]
        for reason, some in stage["examples"].items()
        for example in some
    ]
    return "\n".join([*head, *body, *table, *(told if len(told) > 3 else [])]) + "\n"


def _plain(text: str) -> str:
    """On one line, and nothing that Markdown or a browser would read as its own."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")
