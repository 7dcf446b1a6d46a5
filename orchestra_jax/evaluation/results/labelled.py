"""How right a judge is: its verdicts on a labelled sample, where somebody already knows which answers are right."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.data.rows import BadRow, answers_of, rows_of, text_of
from orchestra_jax.evaluation.intervals import wilson
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.tools.answers import extract_answer, matches
from orchestra_jax.tools.experts.judge import Judge, Verdict
from orchestra_jax.types import InfrastructureError, ReplayMiss


@dataclass(frozen=True, slots=True)
class Labelled:
    """A row of the sample: an answer that is known to be right or wrong.

    Attributes:
        place: file and line, in words.
        reference: one or several, each of which is right.
        correct: what is known of the answer.
    """

    place: str
    question: str
    reference: tuple[str, ...]
    answer: str
    correct: bool


def read_sample(path: str | Path) -> list[Labelled]:
    """The rows {question, reference, answer, correct} of a .jsonl, .json, .tsv or .parquet file.

    Raises:
        ConfigError: there is none, or one is broken; one sentence with file and line.
    """
    if not Path(path).is_file():
        raise ConfigError(f"There is no sample at {str(path)!r}: give --sample FILE.")
    try:
        rows = [_labelled(place, read()) for _, place, read in rows_of(Path(path))]
    except (BadRow, OSError, ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
    if not rows:
        raise ConfigError(f"{str(path)!r} has no row {{question, reference, answer, correct}}.")
    return rows


def _labelled(place: str, row: Mapping[str, Any]) -> Labelled:
    for key in ("question", "reference", "answer", "correct"):
        if row.get(key) is None:
            raise BadRow(f"{place}: no {key!r}; a row is {{question, reference, answer, correct}}.")
    correct = {"true": True, "1": True, "false": False, "0": False}.get(str(row["correct"]).lower())
    if correct is None:
        raise BadRow(f"{place}: 'correct' must be true or false, not {row['correct']!r}.")
    answer = row["answer"]
    if isinstance(answer, str) and not answer.strip():
        given = ""  # no answer is one that a judge has to refuse
    else:
        (given,) = answers_of(answer, "answer", place, most=1)
    question = text_of(row["question"], "question", place)
    return Labelled(place, question, answers_of(row["reference"], "reference", place), given, correct)


async def verdicts(judge: Judge, sample: Sequence[Labelled], budget: Budget) -> list[Verdict | InfrastructureError]:
    """What the judge finds of every row, all asked at once: the provider's limits hold them back.

    Raises:
        BudgetExceeded, ReplayMiss: once all that were under way have ended; what was answered is in the record.
    """

    async def ask(row: Labelled) -> Verdict | InfrastructureError | BudgetExceeded | ReplayMiss:
        try:
            return await judge.judge(row.question, row.answer, row.reference, budget=budget)
        except (InfrastructureError, BudgetExceeded, ReplayMiss) as error:
            return error

    found = []
    for each in await asyncio.gather(*map(ask, sample)):
        if isinstance(each, BudgetExceeded | ReplayMiss):
            raise each
        found.append(each)
    return found


def agreement(sample: Sequence[Labelled], found: Sequence[Verdict | InfrastructureError]) -> dict[str, Any]:
    """How the verdicts stand to what is known; rows that the judge failed on are in no figure but `failed`.

    Returns:
        agreement: of all rows; false_accepts: of the wrong answers, those called right; false_rejects: of the right
        ones, those called wrong; exact_match: the agreement that comparing texts would have. Each is {count, of, share,
        wilson}, the last two null of nothing. kappa: Cohen's, the agreement beyond that of two who guess with the
        same frequencies; null where both always say the same. cost: dollars of all verdicts, also those of the record.
        wrong: the rows in which judge and label differ.
    """
    known = [(row, each) for row, each in zip(sample, found, strict=True) if isinstance(each, Verdict)]
    wrong = [(row, each) for row, each in known if row.correct != each.correct]
    right_answers, accepted = sum(row.correct for row, _ in known), sum(each.correct for _, each in known)
    false_accepts = sum(each.correct for _, each in wrong)
    matched = sum(row.correct == matches(extract_answer(row.answer), row.reference) for row, _ in known)
    count, same = len(known), len(known) - len(wrong)
    by_chance = right_answers * accepted + (count - right_answers) * (count - accepted)  # times count^2
    beyond = count * count - by_chance
    return {
        "counted": count,
        "failed": len(sample) - count,
        "agreement": _share(same, count),
        "kappa": (count * same - by_chance) / beyond if beyond else None,
        "false_accepts": _share(false_accepts, count - right_answers),
        "false_rejects": _share(len(wrong) - false_accepts, right_answers),
        "exact_match": _share(matched, count),
        "cost": math.fsum(row.cost_usd for _, each in known for row in each.usage),
        "wrong": [
            {
                "place": row.place, "question": row.question, "reference": list(row.reference), "answer": row.answer,
                "correct": row.correct, "judge": each.correct, "reason": each.reason,
            }
            for row, each in wrong
        ],
    }  # fmt: skip


def _share(count: int, of: int) -> dict[str, Any]:
    interval = wilson(count, of)
    bounds = None if interval is None else list(interval)
    return {"count": count, "of": of, "share": count / of if of else None, "wilson": bounds}


def told(figures: Mapping[str, Any]) -> str:
    """The figures in lines, and the rows to read."""

    def share(name: str, answers: str) -> str:
        one = figures[name]
        counts = f"{one['count']} of {one['of']} {answers}"
        if one["share"] is None:
            return counts
        low, high = (100 * bound for bound in one["wilson"])
        return f"{counts}: {100 * one['share']:.1f} %, 95 % interval {low:.1f} to {high:.1f} %"

    kappa = "not defined: both always say the same" if figures["kappa"] is None else f"{figures['kappa']:.3f}"
    lines = [
        f"agreement      {share('agreement', 'answers')}",
        f"Cohen's kappa  {kappa}",
        f"false accepts  {share('false_accepts', 'wrong answers')}",
        f"false rejects  {share('false_rejects', 'right answers')}",
        f"exact match    agrees in {share('exact_match', 'answers')}",
        f"${figures['cost']:.6g} for {figures['counted']} verdicts; {figures['failed']} rows without one do not count.",
    ]
    for row in figures["wrong"]:
        says, knows = ("right", "wrong") if row["judge"] else ("wrong", "right")
        lines.append(f"{row['place']}: {row['answer'][:60]!r} is {knows}, the judge says {says}.")
    return "\n".join(lines)
