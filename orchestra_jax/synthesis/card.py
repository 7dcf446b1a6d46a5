"""The data card of a synthesis, as JSON and as a page: rows kept and rejected by stage, costs and models."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.config.synthesis import SynthesisConfig
from orchestra_jax.io.whole import write_whole
from orchestra_jax.synthesis.stages import StageResult

CARD, README = "card.json", "README.md"
_EXAMPLES = 3  # examples of each reason


def card(
    settings: SynthesisConfig, cfg: WorldConfig, stages: Sequence[StageResult], figures: Mapping[str, Any]
) -> dict[str, Any]:
    """Return counts by stage, rejections with examples, dollars by model, models by role, seed, and `figures`."""
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


def _stage(stage: StageResult) -> dict[str, Any]:
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


def save_card(folder: Path, content: Mapping[str, Any], title: str, about: str, lines: Sequence[str]) -> None:
    """Write the card and its page.

    Args:
        lines: further paragraphs of the page.
    """
    write_whole(folder / CARD, json.dumps(content, indent=2) + "\n")
    write_whole(folder / README, _page(content, title, about, lines))


def _page(content: Mapping[str, Any], title: str, about: str, lines: Sequence[str]) -> str:
    models = ", ".join(f"{role} {name}" for role, name in content["models"].items())
    head = [
        f"# {title}",
        "",
        about,
        "",
        f"Written by models ({models}) with seed {content['seed']}: {content['calls']} calls, "
        f"{content['tokens']} tokens, ${content['usd']:.4f} at the prices of {content['price_list']}.",
        "",
    ]
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
    """Return the text on one line, without anything that Markdown or a browser would interpret."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")
