"""What was evaluated, read from the trajectories that evaluations keep: what came of each question."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.config import record
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.users import SCRIPTED
from orchestra_jax.evaluation.calls import ModelCalls, called_tool, count_model_calls
from orchestra_jax.evaluation.intervals import Interval, bootstrap
from orchestra_jax.evaluation.results.offers import Offer, offer_of, trained_on
from orchestra_jax.types import Status

_FILE = re.compile(r"(?P<name>.+)\.t(?P<temperature>\d[\d.e-]*)(\.p\d+)?\.jsonl")  # p1, p2, ...: of other processes
TAU2 = "tau2"  # a world, where others are told by their questions' source
PAPERS = ("airline", "retail", "telecom")  # its domains in the paper
BEFORE, AFTER = "before", "after"  # training: the phases of a training run


@dataclass(frozen=True)
class Item:
    """What came of one sample of a question: dollars, seconds, and how often each tool was called.

    Attributes:
        calls: by what a tool is; named: by what the menu calls it.
        tools: names on the menu, in order; None in files of before they were kept.
        weights: P over them, the outcome, cost and latency (Eq. 2); None likewise.
        model_calls: calls of models; None likewise.
        family: of the question, "" likewise.
    """

    solved: bool
    cost: float
    seconds: float
    calls: Counter[str]
    named: Counter[str]
    tools: tuple[str, ...] | None = None
    weights: tuple[float, ...] | None = None
    model_calls: ModelCalls | None = None
    family: str = ""


@dataclass(frozen=True)
class Measured:
    """One policy on one benchmark.

    Attributes:
        run: folder's name and, where it is not the evaluated policy itself, who else played: of a training run the
            phase, of a baseline its name.
        folder: the run's; phase: "policy", BEFORE, AFTER, or a baseline's name.
        policy: what tells the policy from others in other folders; `model`: the name of its own model, if known.
        source: data set; benchmark: its benchmark and temperature; offer: tools and prices.
        items: by question, the samples that were answered, one of each question as a rule.
        failed: samples that failed for infrastructure reasons.
        variant: what tells the world that was asked from others of its name: data, user, domains.
        as_published: whether the paper's figures of that name are of the same.
    """

    run: str
    folder: Path
    phase: str
    policy: str
    model: str | None
    source: str
    benchmark: str
    offer: Offer
    items: Mapping[str, Sequence[Item]]
    failed: int
    variant: tuple[str, ...] = ()
    as_published: bool = True

    @property
    def asked(self) -> str:
        """The questions, whatever is offered."""
        return ", ".join([self.source, *self.variant, self.benchmark])

    @property
    def label(self) -> str:
        """What is asked; two policies with the same label are compared question by question."""
        return ", ".join([self.source, *self.variant, *self.offer.unseen, self.benchmark])

    @property
    def whole(self) -> bool:
        """Whether it is all of a benchmark, and no part or variant of it."""
        return self.as_published and "." not in self.benchmark.partition(" at temperature")[0]

    @property
    def all_items(self) -> list[Item]:
        return [item for samples in self.items.values() for item in samples]

    @property
    def samples(self) -> int:
        """Of a question, the most."""
        return max(map(len, self.items.values()), default=0)

    def mean(self, figure: Callable[[Item], float]) -> float | None:
        """Over all samples; None of nothing."""
        return float(np.mean([figure(item) for item in self.all_items])) if self.items else None

    def interval(self, figure: Callable[[Item], float]) -> Interval | None:
        """Of that mean, by bootstrap over the questions."""
        means = [question_mean(samples, figure) for samples in self.items.values()]
        return bootstrap(means, weights=[len(samples) for samples in self.items.values()])


def question_mean(samples: Sequence[Item], figure: Callable[[Item], float]) -> float:
    return float(np.mean([figure(item) for item in samples]))


def solved(item: Item) -> float:
    return float(item.solved)


def cost(item: Item) -> float:
    return item.cost


def measured(folder: Path) -> list[Measured]:
    """Everything that was evaluated in a run's folder, in the order of its files.

    Raises:
        ConfigError: there is no evaluation in it.
        ValueError: a file is damaged.
    """
    kept = folder / "evaluation"
    trained = record.read(folder) or {}
    evaluated = record.read(kept) or trained
    found: dict[tuple[str, str], Measured] = {}
    read: dict[tuple[str, str], dict[tuple[str, int], tuple[Item | None, str | None]]] = {}
    for file in sorted(kept.glob("trajectories/*/*.jsonl"), key=lambda file: (file.parent.name == AFTER, file)):
        if (named := _FILE.fullmatch(file.name)) is None:
            continue
        phase = file.parent.name
        benchmark = f"{named['name']} at temperature {named['temperature']}"
        run = folder.name if phase == "policy" else f"{folder.name}, {phase}"
        made = trained if phase in (BEFORE, AFTER) else evaluated
        config = made.get("config", {})
        found[run, benchmark] = Measured(
            run, folder, phase, _identity(folder, phase, made), None, _source(config), benchmark,
            offer_of(config, trained_on(made)), {}, 0, *_variant(config),
        )  # fmt: skip
        rows = read.setdefault((run, benchmark), {})
        for place, item, model in _read(file):
            if item is not None or place not in rows:
                rows[place] = item, model
    if not found:
        raise ConfigError(f"{str(folder)!r} has no evaluation: make one with experiments/evaluate.py.")
    return [_filled(one, read[key]) for key, one in found.items()]


def _filled(one: Measured, rows: Mapping[tuple[str, int], tuple[Item | None, str | None]]) -> Measured:
    items: dict[str, list[Item]] = {}
    # By name, not as they ended: what is resampled of two runs is then the same questions.
    for (name, _), (item, _) in sorted(rows.items(), key=lambda row: row[0]):
        if item is not None:
            items.setdefault(name, []).append(item)
    models = {model for _, model in rows.values()}
    failed = sum(item is None for item, _ in rows.values())
    return replace(one, items=items, failed=failed, model=models.pop() if len(models) == 1 else None)


def _source(config: Mapping[str, Any]) -> str:
    """Whose questions they are."""
    if config.get("env", {}).get("name") == TAU2:
        return TAU2
    data = config.get("data", {})
    other = data.get("eval_source")
    return str(other if other not in (None, "auto") else data.get("source", "questions"))


def _variant(config: Mapping[str, Any]) -> tuple[tuple[str, ...], bool]:
    """Of τ²-Bench, which the paper has with a model as the user: what was asked, and whether the paper asked so."""
    world = config.get("env", {})
    options = world.get("options") or {}
    if world.get("name") != TAU2 or not options:
        return (), True
    domains, user = options.get("domains", PAPERS), options.get("user", SCRIPTED)
    own = () if set(domains) == set(PAPERS) else ("+".join(domains),)
    words = (f"{options.get('source', 'wheel')} data", "scripted user" if user == SCRIPTED else f"user {user}", *own)
    return words, user != SCRIPTED and not own and options.get("evaluate") == "all"


def _identity(folder: Path, phase: str, found: Mapping[str, Any]) -> str:
    """The weights or the endpoint that played, by their place: of adapters their own, the last of the parents."""
    if phase == AFTER:
        return str((folder / "policy").resolve())  # where an evaluation finds it
    if phase != "policy":
        return f"{folder.resolve()}, {phase}"
    made = [f"{parent.get('path')} {parent.get('model', '')}".strip() for parent in found.get("parents", [])]
    return made[-1] if made else str(found.get("config", {}).get("policy") or folder.resolve())


def _read(file: Path) -> Iterator[tuple[tuple[str, int], Item | None, str | None]]:
    """Of every line: its question and sample, what came of it if it did not fail, and the policy's own model."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            item, model = _item(row), row.get("policy_model")
            yield (str(row["id"]), int(row.get("member", 0))), None if row["status"] == Status.FAILED else item, model
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{str(file)!r}, line {number} is no trajectory: evaluate again. ({error})") from error


def _item(row: Mapping[str, Any]) -> Item:
    turns = [turn for turns in row["sequences"] for turn in turns]
    called = [pair for turn in turns for pair in zip(turn["calls"], turn["results"], strict=False)]
    known = row["menu"]["tools"] if isinstance(row["menu"], dict) else {}
    made = [call for call, result in called if not result["refused"]]
    calls = [called_tool(str(call["name"]), call["arguments"], known) for call in made]
    item = Item(
        bool(row["solved"]), float(row["cost_usd"]), float(row["latency_s"]), Counter(calls),
        Counter(str(call["name"]) for call in made), family=str(row.get("family", "")),
    )  # fmt: skip
    if "weights" not in row:
        return item
    wanted, tools = row["weights"], tuple(map(str, row["tools"]))
    rest = (wanted["outcome"], wanted["compute"], wanted["latency"])
    weights = (*(float(wanted["tools"].get(name, 0.0)) for name in tools), *map(float, rest))
    whom = count_model_calls(calls, row["models"], row.get("policy_model"))
    return replace(item, tools=tools, weights=weights, model_calls=whom)
