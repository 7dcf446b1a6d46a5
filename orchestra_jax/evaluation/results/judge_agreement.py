"""Agreement of a judge with a labelled sample, of which somebody knows which answers are right."""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestra_jax.config.choices import ReplayMode
from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.data.rows import BadRow, answers_of, rows_of, text_of
from orchestra_jax.evaluation.intervals import wilson
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.money.forecast import call_usd
from orchestra_jax.money.price_book import price_book
from orchestra_jax.money.run_budget import Halted, RunBudget
from orchestra_jax.processes.lock import alone_in
from orchestra_jax.tools.answers import extract_answer, matches
from orchestra_jax.tools.experts.judge import JUDGE_PROMPT, Judge, Verdict
from orchestra_jax.tools.experts.run_experts import make_judge
from orchestra_jax.types import InfrastructureError, ReplayMiss

FILE_NAME = "judge.json"


def measure(cfg: WorldConfig, folder: Path) -> None:
    """Print how right `tools.judge` is on `evaluation.judge_sample`, and write judge.json into the folder.

    With replay.mode=replay_or_record, as experiments/judge.py has it, every verdict is recorded as it comes, and the
    same command asks for none of them again. With evaluation.dry_run only the cost is printed.

    Raises:
        ConfigError: there is no judge, no sample, a bad row, or the judge cannot be asked.
        Halted: the budget or the record ended it.
    """
    sample = read_sample(cfg.evaluation.judge_sample)
    with LoopThread() as loop:
        judge, close = make_judge(cfg)
        try:
            print(_forecast(cfg, len(sample)), flush=True)
            if cfg.evaluation.dry_run:
                return
            folder.mkdir(parents=True, exist_ok=True)
            with alone_in(folder):
                money = RunBudget(cfg.budget, folder)
                try:
                    figures = agreement(sample, loop.run(verdicts(judge, sample, money.run)))
                except (BudgetExceeded, ReplayMiss) as error:
                    kept = cfg.replay.mode is ReplayMode.replay_or_record
                    again = " The same command goes on; no verdict is paid for twice." if kept else ""
                    raise Halted(f"{error}{again}") from None
                finally:
                    loop.run(close())  # a request whose answer came too late is paid for all the same
                    money.close()
                about = {"model": cfg.tools.judge, "prompt": JUDGE_PROMPT, "sample": cfg.evaluation.judge_sample}
                text = json.dumps({**about, **figures, "spent": money.summary()}, indent=2)
                (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")
        finally:
            loop.run(close())
    print(f"{in_words(figures)}\n{FILE_NAME} is in {folder}")


def _forecast(cfg: WorldConfig, count: int) -> str:
    if cfg.replay.mode is ReplayMode.replay:
        return f"{count} verdicts of {cfg.tools.judge}, all of them recorded: they cost nothing."
    plan, limit = cfg.plan, cfg.budget.run_usd
    usd = count * call_usd(cfg, price_book(cfg).base, cfg.tools.judge)
    end = "no budget.run_usd is set" if limit is None else f"budget.run_usd={limit:g} ends it"
    return (
        f"{count} verdicts of {cfg.tools.judge} cost about ${usd:.2f} ({plan.call_input} + {plan.call_output} tokens "
        f"each, less what is recorded); {end}."
    )


@dataclass(frozen=True, slots=True)
class Labelled:
    """A row of the sample: an answer that is known to be right or wrong.

    Attributes:
        place: file and line, in words.
    """

    place: str
    question: str
    reference: tuple[str, ...]
    answer: str
    correct: bool


def read_sample(path: str | Path | None) -> list[Labelled]:
    """Return the rows {question, reference, answer, correct} of a .jsonl, .json, .tsv or .parquet file.

    Raises:
        ConfigError: there is none, or one is broken; the sentence names file and line.
    """
    if not path:
        raise ConfigError("There is no sample: give --sample FILE, with rows {question, reference, answer, correct}.")
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
    """Return the judge's verdict on every row. All are asked at once, within the provider's limits.

    Raises:
        BudgetExceeded: once all requests have ended; their verdicts are in the record.
        ReplayMiss: once all requests have ended, too.
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
    """Return figures of the agreement of verdicts and labels, over the rows with a verdict.

    Returns:
        counted, failed: the numbers of rows with and without a verdict. agreement: of all rows; false_accepts: of the
        wrong answers, those called right; false_rejects: of the right ones, those called wrong; exact_match: the
        agreement of a comparison of texts. Each is {count, of, share, wilson}, the last two null if `of` is 0. kappa:
        Cohen's, the agreement beyond that of guesses with the same frequencies; null where both always say the same.
        cost: dollars of all verdicts, also of those in the record. wrong: the rows in which judge and label differ.
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
            asdict(row) | {"reference": list(row.reference), "judge": each.correct, "reason": each.reason}
            for row, each in wrong
        ],
    }


def _share(count: int, of: int) -> dict[str, Any]:
    interval = wilson(count, of)
    bounds = None if interval is None else list(interval)
    return {"count": count, "of": of, "share": count / of if of else None, "wilson": bounds}


def in_words(figures: Mapping[str, Any]) -> str:
    """Return the figures in lines, and the rows to read."""

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
