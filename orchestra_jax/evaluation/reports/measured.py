"""What was evaluated, read from the trajectories that evaluations keep: what came of each question."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra_jax.config import record
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.types import Status

_FILE = re.compile(r"(?P<name>.+)\.t(?P<temperature>[\d.]+?)(\.\d+)?\.jsonl")  # the number before the end: a process


@dataclass(frozen=True)
class Item:
    """What came of one question: dollars, seconds, and how often each tool was called."""

    solved: bool
    cost: float
    seconds: float
    calls: Counter[str]


@dataclass(frozen=True)
class Measured:
    """One policy on one benchmark.

    Attributes:
        run: folder's name and, of a training run, the phase.
        source: data set; benchmark: its benchmark and temperature.
        items: by question, what was answered; failed: questions that failed for infrastructure reasons.
    """

    run: str
    source: str
    benchmark: str
    items: dict[str, Item]
    failed: int

    @property
    def label(self) -> str:
        """What is asked; two policies with the same label are compared question by question."""
        return f"{self.source}, {self.benchmark}"


def measured(folder: Path) -> list[Measured]:
    """Everything that was evaluated in a run's folder, in the order of its files.

    Raises:
        ConfigError: there is no evaluation in it.
        ValueError: a file is damaged.
    """
    kept = folder / "evaluation"
    config = (record.read(kept) or record.read(folder) or {}).get("config", {})
    data = config.get("data", {})
    source = (
        data.get("eval_source") if data.get("eval_source") not in (None, "auto") else data.get("source", "questions")
    )
    found: dict[tuple[str, str], tuple[dict[str, Item], list[str]]] = {}
    for file in sorted(kept.glob("trajectories/*/*.jsonl"), key=lambda file: (file.parent.name == "after", file)):
        if (named := _FILE.fullmatch(file.name)) is None:
            continue
        phase = "" if file.parent.name == "policy" else f", {file.parent.name}"
        benchmark = f"{named['name']} at temperature {named['temperature']}"
        items, failed = found.setdefault((f"{folder.name}{phase}", benchmark), ({}, []))
        for name, item in _read(file):
            if item is None:
                failed.append(name)
            else:
                items[name] = item
    if not found:
        raise ConfigError(f"{str(folder)!r} has no evaluation: make one with experiments/evaluate.py.")
    return [Measured(run, str(source), name, items, len(failed)) for (run, name), (items, failed) in found.items()]


def _read(file: Path) -> Iterator[tuple[str, Item | None]]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            turns = [turn for turns in row["sequences"] for turn in turns]
            called = [pair for turn in turns for pair in zip(turn["calls"], turn["results"], strict=False)]
            known = row["menu"]["tools"] if isinstance(row["menu"], dict) else {}
            calls = Counter(_tool(call, known) for call, result in called if not result["refused"])
            item = Item(bool(row["solved"]), float(row["cost_usd"]), float(row["latency_s"]), calls)
            yield str(row["id"]), None if row["status"] == Status.FAILED else item
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{str(file)!r}, line {number} is no trajectory: evaluate again. ({error})") from error


def _tool(call: Mapping[str, Any], known: Mapping[str, str]) -> str:
    """What was called: behind the alias of a menu is a tool of the catalogue, or a model that an argument names."""
    name = str(call["name"])
    return known.get(str(call["arguments"].get("model")), known.get(name, name))
