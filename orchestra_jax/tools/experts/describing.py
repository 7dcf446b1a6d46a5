"""Writes descriptions of experts (§3.1): each one answers sampled tasks, and another model describes it from that.

All calls are recorded as they are made, so a run that was stopped continues and pays for no call twice.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from orchestra_jax.data.sources import Question
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools.answers import extract_answer, matches, tagged, without_thinking
from orchestra_jax.tools.experts.client import ExpertClient, expert_clients
from orchestra_jax.tools.experts.context import TokenCounter
from orchestra_jax.tools.experts.descriptions import flaw, read, save
from orchestra_jax.tools.experts.evidence import SHOWN_CHARS, SampleAnswer, entry, question, request
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.types import InfrastructureError, ReplayMiss

EXPECTED_TOKENS = 1000  # of a reply, where none is known yet
TOTAL = "total"
TRIES = 3  # descriptions asked for until one may be shown


@dataclass(frozen=True, kw_only=True)
class DescriptionJob:
    """A job of describing: the experts, the writer and the tasks.

    Attributes:
        writers: names of those that may write; the first that is not the subject itself does.
        calls: file of recorded calls: what is in there is not paid for again.

    Raises:
        ValueError: no task, an unknown name, or a model that would describe itself.
    """

    experts: Sequence[Expert]
    subjects: Sequence[str]
    writers: Sequence[str]
    examples: Sequence[Question]
    prices: PriceList
    calls: Path

    def __post_init__(self) -> None:
        known = {expert.name for expert in self.experts}
        for name in (*self.subjects, *self.writers):
            if name not in known:
                raise ValueError(f"There is no expert {name!r}; known are {', '.join(sorted(known))}.")
        if not self.examples:
            raise ValueError("Descriptions need at least one task.")
        for name in self.subjects:
            if set(self.writers) <= {name}:
                raise ValueError(f"{name!r} would describe itself; name a writer that is another model.")

    def writer(self, subject: str) -> str:
        """Return the first writer that is another model than the subject."""
        return next(name for name in self.writers if name != subject)

    def clients(self, replay: Replay | None) -> dict[str, ExpertClient]:
        """Make a client of each model that takes part."""
        names = {*self.subjects, *(self.writer(subject) for subject in self.subjects)}
        return expert_clients((e for e in self.experts if e.name in names), self.prices, replay=replay)


class UnusableDescription(Exception):  # noqa: N818  named like the fact it states
    """The writer wrote nothing that may be shown; one sentence."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected calls, tokens and dollars of describing.

    Attributes:
        name: model, or "total".
        calls, tokens, usd: expected.
        worst_usd: dollars if every reply were as long as it may be.
    """

    name: str
    calls: float
    tokens: float
    usd: float
    worst_usd: float


@dataclass(frozen=True, slots=True)
class Described:
    """Results of `describe`: descriptions by expert, and one sentence for each expert that has none."""

    descriptions: Mapping[str, str]
    problems: Mapping[str, str]


async def forecast(job: DescriptionJob) -> tuple[Forecast, ...]:
    """Forecast what `describe` will cost, by model, dearest first, and in total; recorded calls cost nothing.

    Expected are as many completion tokens as the recorded replies of the model have, else EXPECTED_TOKENS. The worst
    case is `max_tokens` in every reply and TRIES descriptions; requests that are billed and lost are not in it.
    """
    with TemporaryDirectory() as empty:  # nothing is written beside the descriptions before they are made
        calls = job.calls if job.calls.is_file() else Path(empty, "calls.db")
        Replay(calls, "replay_or_record").close()  # takes up what waits, or makes an empty file
        replay = Replay(calls, "replay")
    clients, unpaid = job.clients(replay), Budget()  # the record alone answers
    lines: dict[str, list[Forecast]] = defaultdict(list)
    try:
        for name in job.subjects:
            known, unknown = list[SampleAnswer](), list[Question]()
            for example in job.examples:
                try:
                    known.append(await _ask(clients[name], example, unpaid))
                except ReplayMiss:
                    unknown.append(example)
            tokens = round(fmean(answer.completion_tokens for answer in known)) if known else EXPECTED_TOKENS
            lines[name] += [_call(job, name, question(example), tokens) for example in unknown]
            writer, evidence = job.writer(name), [*known, *map(_unknown, unknown)]
            try:
                await _write(clients[writer], clients[name].expert, job.examples, evidence, unpaid)
            except ReplayMiss:
                lines[writer].append(_call(job, writer, request(job.examples, evidence), EXPECTED_TOKENS, TRIES))
            except UnusableDescription:
                pass  # recorded, and of no use: that costs nothing either
    finally:
        replay.close()
    table = [_sum(name, calls) for name, calls in lines.items() if calls]
    return (*sorted(table, key=lambda line: -line.usd), _sum(TOTAL, table))


async def describe(
    job: DescriptionJob,
    path: str | Path,
    budget: Budget,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Described:
    """Describe each subject and write the file: {"version", "experts": {name: entry}}.

    An entry is what `load` reads, "description", with its evidence: writer, models, price list, date, share of right
    answers, overall and by family, mean cost, seconds and tokens, and each task's id, answer and grade. Questions and
    reference answers are not in it. The file is written after every subject, and entries of other experts stay. A run
    that was stopped continues where it was, since calls are recorded as they are made.

    `progress` is told (calls done, calls in all).

    Raises:
        MissingKey, ImportError: a model cannot be called from here; nothing was sent then.
        ValueError: `path` is another file; or see `expert_clients`.
        MissingPrice: no price for a model.
    """
    entries = read(path, missing_ok=True)
    needed = {line.name for line in await forecast(job)} - {TOTAL}
    replay = Replay(job.calls, "replay_or_record")
    clients = job.clients(replay)
    done, total = 0, len(job.subjects) * (len(job.examples) + 1)
    descriptions: dict[str, str] = {}
    problems: dict[str, str] = {}

    def count() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    async def subject(name: str) -> None:
        expert, writer = clients[name].expert, clients[job.writer(name)]
        try:
            text, answers = await _described(job, clients[name], writer, budget, count)
        except (InfrastructureError, BudgetExceeded, UnusableDescription) as error:
            problems[name] = str(error)
            return
        finally:
            count()
        descriptions[name] = text
        new = entry(text, expert, writer.expert, job.prices.id, job.examples, answers)
        if {**entries.get(name, {}), "date": new["date"]} != new:  # the same entry keeps its date
            entries[name] = new
            save(path, entries)

    tasks = []
    try:
        for name in needed:
            clients[name].check()
        tasks = [asyncio.create_task(subject(name)) for name in job.subjects]
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in clients.values()))
        replay.close()
    return Described(descriptions, problems)


async def _described(
    job: DescriptionJob, client: ExpertClient, writer: ExpertClient, budget: Budget, count: Callable[[], object]
) -> tuple[str, list[SampleAnswer]]:
    """Return the description of one subject, and its answers; `count` is called after each of them.

    Raises:
        InfrastructureError: it answered no task, or the writer failed.
        BudgetExceeded, UnusableDescription: see `_write`.
    """

    async def tried(example: Question) -> SampleAnswer:
        try:
            return await _ask(client, example, budget)
        except InfrastructureError as error:
            return SampleAnswer(example.id, problem=str(error))
        finally:
            count()

    answers = list[SampleAnswer]()
    for each in await asyncio.gather(*map(tried, job.examples), return_exceptions=True):
        if isinstance(each, BaseException):  # only now: what was paid for is recorded
            raise each
        answers.append(each)
    if all(answer.right is None for answer in answers):
        raise InfrastructureError(f"{client.expert.name} answered no task: {answers[0].problem}")
    return await _write(writer, client.expert, job.examples, answers, budget), answers


async def _ask(client: ExpertClient, example: Question, budget: Budget) -> SampleAnswer:
    """Return the subject's answer to one task; raise as `ExpertClient.chat` does."""
    completion = await client.chat(question(example), budget=budget)
    reply = without_thinking(completion.text)
    answer = extract_answer(reply)
    rows = completion.usage
    return SampleAnswer(
        task=example.id,
        answer=answer,
        right=matches(answer, example.answer),
        reply=reply,
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        completion_tokens=sum(row.completion_tokens for row in rows),
        cost_usd=sum(row.cost_usd for row in rows),
        seconds=sum(row.seconds for row in rows),
    )


async def _write(
    writer: ExpertClient, subject: Expert, examples: Sequence[Question], answers: Sequence[SampleAnswer], budget: Budget
) -> str:
    """Return the subject's description; raise UnusableDescription: none in TRIES tries."""
    problem = ""
    for number in range(TRIES):
        completion = await writer.chat(request(examples, answers, problem), budget=budget, sample=number)
        written = tagged(without_thinking(completion.text), "description")
        text = " ".join(written[-1].split()) if written else ""
        flawed = flaw(text, subject, examples)
        if flawed is None:
            return text
        problem = flawed
    raise UnusableDescription(
        f"{writer.expert.name} wrote no description of {subject.name} that may be shown in {TRIES} tries; name "
        f"another writer. {problem}"
    )


def _unknown(example: Question) -> SampleAnswer:
    """Return a stand-in for a reply that is not there yet, as long as the writer can be shown one."""
    return SampleAnswer(example.id, right=False, reply="?" * SHOWN_CHARS, completion_tokens=EXPECTED_TOKENS)


def _call(
    job: DescriptionJob, name: str, messages: Sequence[Mapping[str, str]], tokens: int, tries: int = 1
) -> Forecast:
    """Return the forecast of one call that has to be made."""
    expert = next(expert for expert in job.experts if expert.name == name)
    counter = TokenCounter(expert.tokenizer)
    prompt, tokens = counter.estimate(messages), min(tokens, expert.max_tokens)
    usd = job.prices.cost(name, prompt_tokens=prompt, completion_tokens=tokens)
    worst = job.prices.cost(name, prompt_tokens=counter.most(messages), completion_tokens=expert.max_tokens)
    return Forecast(name=name, calls=1, tokens=prompt + tokens, usd=usd, worst_usd=worst * tries)


def _sum(name: str, lines: Sequence[Forecast]) -> Forecast:
    sums = {field: sum(getattr(line, field) for line in lines) for field in ("calls", "tokens", "usd", "worst_usd")}
    return Forecast(name=name, **sums)
