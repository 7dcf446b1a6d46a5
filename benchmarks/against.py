"""A finished evaluation on recorded answers beside rivals at its cost: how much of the gain is choice by question.

`recorded.py --against RUN` prints it. The rivals are the policy's own models dealt out at random, single models mixed
so that they cost what the policy does, and guarded nearest neighbours (`knn*`), as they are and mixed likewise. A mix
asks one of two in fixed shares; which two, the training split says. Differences are paired by question.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orchestra_jax.api import load_run
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.data.preferences import WORDINGS
from orchestra_jax.envs.base import Script
from orchestra_jax.envs.recorded.environment import RecordedEnvironment
from orchestra_jax.envs.recorded.offer import PYTHON, code_of
from orchestra_jax.envs.recorded.table import Recording, dollars
from orchestra_jax.evaluation.intervals import bootstrap
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.price_book import price_book
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.training.build import make_collector
from orchestra_jax.types import TRAJECTORY_ROLES, Preference, Status, Task

PHASES = ("after", "policy")  # folders of what a trained or evaluated policy played
CENTS = 100.0
_WIDTH = 80  # of the names
_SAME = 0.01  # costs that differ by less are the same


class Outcome(NamedTuple):
    """Share of right answers and cents of each question."""

    right: np.ndarray
    cents: np.ndarray

    @property
    def cost(self) -> float:
        """Mean cents of a question."""
        return float(self.cents.mean())

    def mixed(self, other: "Outcome", share: float) -> "Outcome":
        """Return the outcome of asking the other in a share of the cases."""
        return Outcome(*(one * (1 - share) + its * share for one, its in zip(self, other, strict=True)))

    def where(self, rows: np.ndarray, other: "Outcome") -> "Outcome":
        """Return the outcome with the other's in these rows."""
        return Outcome(*(np.where(rows, its, one) for one, its in zip(self, other, strict=True)))


class Sample(NamedTuple):
    """One rollout: the row of its question, the models that it asked in order, and how it ended."""

    row: int
    asked: tuple[str, ...]
    right: float
    cents: float


class Alone(NamedTuple):
    """Every model alone on the same questions, and its share of right answers in training."""

    outcomes: Mapping[str, Outcome]
    trained: Mapping[str, float]


def averaged(samples: Sequence[Sample], count: int) -> Outcome:
    """Return the means of the samples of each of so many questions."""
    rows = np.array([sample.row for sample in samples])
    sizes = np.bincount(rows, minlength=count)
    right = np.bincount(rows, [sample.right for sample in samples], count) / sizes
    cents = np.bincount(rows, [sample.cents for sample in samples], count) / sizes
    return Outcome(right, cents)


def dealt(samples: Sequence[Sample], alone: Mapping[str, Outcome], menus: Sequence[frozenset[str]]) -> Outcome:
    """Return what the policy's own calls are expected to give when they are dealt out at random over the questions.

    The answer is that of the model asked last. A rollout that asked no model, because it ran code, stays as it is. A
    question gets the calls whose models its menu has.
    """
    mix = Counter(sample.asked for sample in samples if sample.asked)
    expected = dict[int, tuple[float, float]]()
    for row, menu in enumerate(menus):
        found = [(count, asked) for asked, count in mix.items() if menu.issuperset(asked)]
        if not found:
            continue
        shares = np.array([count for count, _ in found]) / sum(count for count, _ in found)
        rights = [alone[asked[-1]].right[row] for _, asked in found]
        expected[row] = float(shares @ rights), float(shares @ [_paid(asked, alone, row) for _, asked in found])
    anew = list[Sample]()
    for each in samples:
        if each.asked and each.row in expected:
            right, cents = expected[each.row]
            own = each.cents - _paid(each.asked, alone, each.row)  # tokens of the policy, and of the sandbox
            each = Sample(each.row, each.asked, right, own + cents)
        anew.append(each)
    return averaged(anew, len(menus))


def _paid(asked: Sequence[str], alone: Mapping[str, Outcome], row: int) -> float:
    return float(sum(alone[model].cents[row] for model in asked))


def best_mix(models: Alone, cost: float) -> tuple[str, Outcome]:
    """Return the single model or the mix of two that is best in training among those that cost so much at most.

    A mix costs exactly as much. Where every model is dearer, it is the cheapest.
    """
    costs = {name: outcome.cost for name, outcome in models.outcomes.items()}
    found = [(models.trained[name], 0.0, name, name) for name, its in costs.items() if its <= cost * (1 + _SAME)]
    for cheap, low in costs.items():
        for dear, high in costs.items():
            if low * (1 + _SAME) < cost < high * (1 - _SAME):
                share = (cost - low) / (high - low)
                trained = (1 - share) * models.trained[cheap] + share * models.trained[dear]
                found.append((trained, share, cheap, dear))
    if not found:
        name = min(costs, key=costs.__getitem__)
        return name, models.outcomes[name]
    _, share, cheap, dear = max(found)
    if cheap == dear:
        return cheap, models.outcomes[cheap]
    return f"{100 * share:.3g} % {dear}, else {cheap}", models.outcomes[cheap].mixed(models.outcomes[dear], share)


def at_cost(rival: Outcome, models: Alone, cost: float) -> tuple[str, Outcome] | None:
    """Return a rival mixed with a single model so that both cost so much; None: no model moves it there.

    The model is the one with which the mix is right most often, the model's share of right answers being training's.
    """
    found = list[tuple[float, float, str]]()
    for name, other in models.outcomes.items():
        if (other.cost - cost) * (rival.cost - cost) <= 0 and other.cost != rival.cost:
            share = (cost - rival.cost) / (other.cost - rival.cost)
            found.append(((1 - share) * float(rival.right.mean()) + share * models.trained[name], share, name))
    if not found:
        return None
    _, share, name = max(found)
    return f"{100 * share:.3g} % {name}", rival.mixed(models.outcomes[name], share)


def line(name: str, rival: Outcome, policy: Outcome) -> str:
    """Return a line on a rival and on the policy minus the rival, with a 95 % bootstrap interval over questions."""
    difference = CENTS * (policy.right - rival.right)
    low, high = bootstrap(difference) or (math.nan, math.nan)
    words = f"{difference.mean():+5.1f} ({low:+.1f} to {high:+.1f})"
    return f"  {name:{_WIDTH}} {CENTS * rival.right.mean():5.1f} %  {rival.cost:.4f}  {words}"


def report(folder: Path, benchmark: str = "held_out") -> Iterator[str]:
    """Yield the lines on every evaluation of held-out questions in a run's folder.

    Args:
        benchmark: its name in the files; its questions may have other wishes than the held-out ones, but their menus.

    Raises:
        ValueError: there is none, or it is of other questions than its settings say.
    """
    kept = folder / "evaluation" / "trajectories"
    files = [file for phase in PHASES for file in sorted((kept / phase).glob(f"{benchmark}.t*.jsonl"))]
    if not files:
        raise ValueError(f"{str(folder)!r} has no rollouts of {benchmark}: make some with experiments/evaluate.py.")
    for file in files:
        own = file.parent.name == "policy"  # an evaluation's, which has settings of its own
        cfg = load_run(folder / "evaluation" if own else folder).config
        if cfg.env.name != "recorded":
            raise ValueError(f"{str(folder)!r} is a run of env={cfg.env.name}, not of env=recorded.")
        environment = RecordedEnvironment(cfg)
        with LoopThread() as loop:
            try:
                yield f"{file.parent.name}, {file.name}:"
                yield from _compared(file, cfg, environment, loop)
            finally:
                loop.run(environment.close())


def _compared(file: Path, cfg: RunConfig, environment: RecordedEnvironment, loop: LoopThread) -> Iterator[str]:
    tasks = {task.id: task for task in environment.held_out(len(environment.recording.questions))}
    samples, asked = samples_of(file, tasks, environment.recording.models)
    collector, recording = make_collector(cfg, environment, None), environment.recording
    scripts = environment.baselines()
    menus = [frozenset(choice.name for choice in environment.experts(task)) for task in asked]
    known = recording.of(environment.splits["train"])
    policy, alone = averaged(samples, len(asked)), _alone(recording, cfg, asked, frozenset().union(*menus))
    shared = {name: one for name, one in alone.items() if all(name in menu for menu in menus)}
    plain = Alone(shared, _trained(known, tuple(shared)))
    rests = {"": plain}
    if any(spec.name == PYTHON for spec in asked[0].tools):
        ran, rows = _played(scripts["code_first"], asked, collector, loop)
        rests["_code"] = Alone(
            {name: one.where(rows, ran) for name, one in shared.items()},
            _trained(known, tuple(shared), [code_of(each.question) is not None for each in known.questions.values()]),
        )
    rivals = {"its own models, dealt out at random": (dealt(samples, alone, menus), list(rests.values())[-1])}
    yield f"  {'':{_WIDTH}} right    cents   policy minus it, points (95 %)"
    yield f"  {'policy':{_WIDTH}} {CENTS * policy.right.mean():5.1f} %  {policy.cost:.4f}"
    for code, models in rests.items():
        if shared:
            name, mix = best_mix(models, policy.cost)
            yield line(f"code, else {name}" if code else name, mix, policy)
        for name in (f"knn{code}", f"knn{code}_right"):
            if name in scripts:
                rivals[name] = _played(scripts[name], asked, collector, loop)[0], models
    for name, (rival, models) in rivals.items():
        yield line(name, rival, policy)
        moved = None if math.isclose(rival.cost, policy.cost, rel_tol=_SAME) else at_cost(rival, models, policy.cost)
        if moved is not None:
            yield line(f"{name}, but {moved[0]}", moved[1], policy)


def samples_of(file: Path, tasks: Mapping[str, Task], models: Sequence[str]) -> tuple[list[Sample], list[Task]]:
    """Return the rollouts of a file that did not fail, and the tasks of their questions, by row.

    Raises:
        ValueError: a rollout is of none of the tasks, or all failed.
    """
    samples, asked, rows = list[Sample](), list[Task](), dict[tuple[str, str], int]()
    for text in file.read_text(encoding="utf-8").splitlines():
        record: dict[str, Any] = json.loads(text)
        if record["status"] == Status.FAILED:
            continue
        task = tasks.get(record["id"])
        if task is None or record["menu"]["tools"] != task.extra["instance"]["tools"]:
            raise ValueError(f"{str(file)!r} has the question {record['id']!r} with another menu: evaluate again.")
        if (key := (task.id, record["preference"])) not in rows:
            rows[key] = len(asked)
            asked.append(replace(task, preference=_preference(record)))
        paid = [row for row in record["ledger"] if row["role"] in TRAJECTORY_ROLES]
        called = tuple(row["name"] for row in paid if row["name"] in models)
        samples.append(Sample(rows[key], called, float(record["solved"]), CENTS * sum(row["cost_usd"] for row in paid)))
    if not asked:
        raise ValueError(f"{str(file)!r} has no rollout that did not fail: evaluate again.")
    return samples, asked


def _preference(record: Mapping[str, Any]) -> Preference:
    """Return the preference of a rollout, named by the kind that its words are of."""
    words = record["preference"]
    kind = next((kind for kind, splits in WORDINGS.items() if any(words in said for said in splits.values())), "")
    return Preference(kind, words, **record["weights"])


def _alone(recording: Recording, cfg: RunConfig, asked: Sequence[Task], models: Collection[str]) -> dict[str, Outcome]:
    """Return what each of the models alone says of the questions, by the table and the run's prices."""
    prices, found = price_book(cfg).base, dict[str, Outcome]()
    for model in models:
        answers = [recording.answer(model, task.extra["question"]) for task in asked]
        cents = [CENTS * dollars(model, answer, prices) for answer in answers]
        found[model] = Outcome(np.array([float(answer.correct) for answer in answers]), np.array(cents))
    return found


def _trained(known: Recording, models: Sequence[str], run: Sequence[bool] | None = None) -> dict[str, float]:
    """Return the share of right answers, those that are `run` as code counting as right."""
    right = known.correct | (np.zeros(len(known.questions), bool) if run is None else np.array(run))[:, None]
    return {model: float(right[:, known.models.index(model)].mean()) for model in models}


def _played(
    script: Script, asked: Sequence[Task], collector: Collector, loop: LoopThread
) -> tuple[Outcome, np.ndarray]:
    """Return the outcome of a script, and in which rows the sandbox alone was called."""
    run = loop.run(collector.play(script, asked, budget=Budget(), silent=True))
    outcome = Outcome(np.array([float(each.solved) for each in run]), np.array([CENTS * each.cost_usd for each in run]))
    return outcome, np.array([{row.name for row in each.ledger} == {PYTHON} for each in run])
