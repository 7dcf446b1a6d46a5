"""Reading of the trajectories that evaluations keep, as the outcome of each question."""

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
from orchestra_jax.evaluation.intervals import Interval, bootstrap, wilson
from orchestra_jax.evaluation.results.offering import Offering, offering, training_config
from orchestra_jax.types import Status

_FILE = re.compile(r"(?P<name>.+)\.t(?P<temperature>\d[\d.e-]*)(\.p\d+)?\.jsonl")  # p1, p2, ...: of other processes
TAU2, RECORDED = "tau2", "recorded"
PAPERS = ("airline", "retail", "telecom")  # its domains in the paper
POLICY, BEFORE, AFTER = "policy", "before", "after"  # phases: of an evaluation, and of a training run
_Place = tuple[str, int]  # a question's id and a sample's number


@dataclass(frozen=True)
class MeasuredSample:
    """One sample of a question.

    Attributes:
        calls: number of executed calls by tool, such as "generalist/gpt-5".
        named: the same by the tool's name on the menu, such as "expert-1".
        tools: names on the menu, in order.
        weights: P of Eq. 2 over the tools, the outcome, cost and latency.
    """

    solved: bool
    cost: float
    seconds: float
    calls: Counter[str]
    named: Counter[str]
    tools: tuple[str, ...]
    weights: tuple[float, ...]
    model_calls: ModelCalls
    family: str
    member: int


@dataclass(frozen=True)
class Measured:
    """One policy on one benchmark.

    Attributes:
        run: the folder's name, and for another player than the evaluated policy its phase.
        phase: POLICY, BEFORE, AFTER, or a baseline's name.
        policy: tells the policy from others in other folders.
        benchmark: its name and temperature.
        items: by question, the samples that were answered.
        failed: the number of samples that failed for infrastructure reasons.
        variant: tells the environment from others of its name: data, user, domains.
        as_published: the paper's figures of that name are of the same variant.
    """

    run: str
    folder: Path
    phase: str
    policy: str
    model: str | None
    source: str
    benchmark: str
    offer: Offering
    items: Mapping[str, Sequence[MeasuredSample]]
    failed: int
    variant: tuple[str, ...] = ()
    as_published: bool = True

    @property
    def key(self) -> str:
        """Tells the runs of a report from each other, on each benchmark."""
        return f"{self.folder.resolve()}, {self.phase}, {self.benchmark}"

    @property
    def asked(self) -> str:
        """The questions, whatever is on offer."""
        return ", ".join([self.source, *self.variant, self.benchmark])

    @property
    def label(self) -> str:
        """The questions with what is unseen: policies with the same label are compared question by question."""
        return ", ".join([self.source, *self.variant, *self.offer.unseen, self.benchmark])

    @property
    def whole(self) -> bool:
        """True for a whole benchmark in the paper's variant."""
        return self.as_published and "." not in self.benchmark.partition(" at temperature")[0]

    @property
    def all_items(self) -> list[MeasuredSample]:
        """The samples of all questions."""
        return [item for samples in self.items.values() for item in samples]

    @property
    def samples(self) -> int:
        """The most samples of a question."""
        return max(map(len, self.items.values()), default=0)

    def of_family(self, name: str) -> "Measured":
        """Return the part with the questions of one family."""
        kept = {key: [item for item in items if item.family == name] for key, items in self.items.items()}
        return replace(self, items={key: items for key, items in kept.items() if items})

    def mean(self, figure: Callable[[MeasuredSample], float]) -> float | None:
        """Return the mean over all samples, or None if there is none."""
        return float(np.mean([figure(item) for item in self.all_items])) if self.items else None

    def interval(self, figure: Callable[[MeasuredSample], float]) -> Interval | None:
        """Return the interval of the mean by bootstrap over the questions."""
        means = [question_mean(samples, figure) for samples in self.items.values()]
        return bootstrap(means, weights=[len(samples) for samples in self.items.values()])

    def accuracy_interval(self) -> Interval | None:
        """Return Wilson's interval of the accuracy, or the bootstrap's with several samples of a question."""
        items = self.all_items
        return self.interval(solved) if self.samples > 1 else wilson(sum(item.solved for item in items), len(items))


def question_mean(samples: Sequence[MeasuredSample], figure: Callable[[MeasuredSample], float]) -> float:
    """Return the mean over the samples of a question."""
    return float(np.mean([figure(item) for item in samples]))


def solved(item: MeasuredSample) -> float:
    """Return 1 for a solved question, else 0."""
    return float(item.solved)


def cost(item: MeasuredSample) -> float:
    """Return the dollars of a sample."""
    return item.cost


def measured(folder: Path) -> list[Measured]:
    """Return everything that was evaluated in a run's folder, in the order of its files.

    Raises:
        ConfigError: there is no evaluation in it.
        ValueError: a file is damaged.
    """
    kept = folder / "evaluation"
    trained = record.read(folder) or {}
    evaluated = record.read(kept) or trained
    found: dict[tuple[str, str], Measured] = {}
    read: dict[tuple[str, str], dict[_Place, tuple[MeasuredSample | None, str | None]]] = {}
    for file in sorted(kept.glob("trajectories/*/*.jsonl"), key=lambda file: (file.parent.name == AFTER, file)):
        if (named := _FILE.fullmatch(file.name)) is None:
            continue
        phase = file.parent.name
        benchmark = f"{named['name']} at temperature {named['temperature']}"
        run = folder.name if phase == POLICY else f"{folder.name}, {phase}"
        made = trained if phase in (BEFORE, AFTER) else evaluated
        config = made.get("config", {})
        identity, offer = _identity(folder, phase, made), offering(config, training_config(made))
        variant, as_published = _variant(config)
        found[run, benchmark] = Measured(
            run, folder, phase, identity, None, _source(config), benchmark, offer, {}, 0, variant, as_published
        )
        rows = read.setdefault((run, benchmark), {})
        for place, item, model in _read(file):
            if item is not None or place not in rows:
                rows[place] = item, model
    if not found:
        raise ConfigError(f"{str(folder)!r} has no evaluation: make one with experiments/evaluate.py.")
    return [_filled(one, read[key]) for key, one in found.items()]


def _filled(one: Measured, rows: Mapping[_Place, tuple[MeasuredSample | None, str | None]]) -> Measured:
    items: dict[str, list[MeasuredSample]] = {}
    # By name, not as they ended, so that the same questions of two runs are resampled alike.
    for (name, _), (item, _) in sorted(rows.items(), key=lambda row: row[0]):
        if item is not None:
            items.setdefault(name, []).append(item)
    models = {model for _, model in rows.values()}
    failed = sum(item is None for item, _ in rows.values())
    return replace(one, items=items, failed=failed, model=models.pop() if len(models) == 1 else None)


def _source(config: Mapping[str, Any]) -> str:
    """Return the name of the data set, or of the environment where no setting names one."""
    world, data = config.get("env", {}).get("name"), config.get("data", {})
    if world == TAU2:  # whatever else is set
        return TAU2
    named = (data.get("eval_source"), data.get("source"), world)
    return next((str(name) for name in named if name not in (None, "auto")), "questions")


def _variant(config: Mapping[str, Any]) -> tuple[tuple[str, ...], bool]:
    """Return the table of recorded answers or the variant of τ²-Bench, and whether the paper has figures of it.

    The paper's τ²-Bench has a model as the user.
    """
    world = config.get("env", {})
    options = world.get("options") or {}
    if world.get("name") == RECORDED and options.get("path"):
        return (Path(str(options["path"])).name,), False
    if world.get("name") != TAU2 or not options:
        return (), True
    domains, user = options.get("domains", PAPERS), options.get("user", SCRIPTED)
    own = () if set(domains) == set(PAPERS) else ("+".join(domains),)
    words = (f"{options.get('source', 'wheel')} data", "scripted user" if user == SCRIPTED else f"user {user}", *own)
    return words, user != SCRIPTED and not own and options.get("evaluate") == "all"


def _identity(folder: Path, phase: str, found: Mapping[str, Any]) -> str:
    """Return the place of the weights or the endpoint that played; with adapters it is theirs, the last parent."""
    if phase == AFTER:
        return str((folder / "policy").resolve())  # where an evaluation finds it
    if phase != POLICY:
        return f"{folder.resolve()}, {phase}"
    made = [f"{parent.get('path')} {parent.get('model', '')}".strip() for parent in found.get("parents", [])]
    return made[-1] if made else str(found.get("config", {}).get("policy") or folder.resolve())


def _read(file: Path) -> Iterator[tuple[_Place, MeasuredSample | None, str | None]]:
    """Yield the place of every line, its outcome if it did not fail, and the policy's own model."""
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            row = json.loads(line.decode())
            item, model = _outcome(row), row["policy_model"]
            yield (str(row["id"]), int(row["member"])), None if row["status"] == Status.FAILED else item, model
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{str(file)!r}, line {number} is no trajectory: evaluate again. ({error})") from error


def _outcome(row: Mapping[str, Any]) -> MeasuredSample:
    turns = [turn for turns in row["sequences"] for turn in turns]
    called = [pair for turn in turns for pair in zip(turn["calls"], turn["results"], strict=False)]
    keys = row["menu"]["tools"] if isinstance(row["menu"], dict) else {}
    made = [call for call, result in called if not result["refused"]]
    calls = [called_tool(str(call["name"]), call["arguments"], keys) for call in made]
    wanted, tools = row["weights"], tuple(map(str, row["tools"]))
    rest = (wanted["outcome"], wanted["compute"], wanted["latency"])
    return MeasuredSample(
        solved=bool(row["solved"]),
        cost=float(row["cost_usd"]),
        seconds=float(row["latency_s"]),
        calls=Counter(calls),
        named=Counter(str(call["name"]) for call in made),
        tools=tools,
        weights=(*(float(wanted["tools"].get(name, 0.0)) for name in tools), *map(float, rest)),
        model_calls=count_model_calls(calls, row["models"], row["policy_model"]),
        family=str(row["family"]),
        member=int(row["member"]),
    )
