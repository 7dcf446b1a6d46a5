"""Writes descriptions of experts (§3.1): each one answers sampled tasks, and another model describes it from that.

All calls are recorded as they are made, so a run that was stopped continues and pays for no call twice.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.money.replay import Replay, ReplayMiss
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.context import TokenCounter
from orchestra_jax.tools.experts.description_job import TRIES, DescriptionJob, UnusableDescription, ask, write
from orchestra_jax.tools.experts.descriptions import Example, read, save
from orchestra_jax.tools.experts.evidence import SHOWN_CHARS, Answer, entry, question, request
from orchestra_jax.types import InfrastructureError

EXPECTED_TOKENS = 1000  # of a reply, where none is known yet
TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What describing is expected to take.

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
    """What `describe` came to: descriptions by expert, and one sentence by expert that has none."""

    descriptions: Mapping[str, str]
    problems: Mapping[str, str]


async def forecast(job: DescriptionJob) -> tuple[Forecast, ...]:
    """What `describe` will cost, by model, dearest first, and in total; calls that are recorded cost nothing.

    Expected are as many completion tokens as the recorded replies of the model have, else EXPECTED_TOKENS. The worst
    case is `max_tokens` in every reply and TRIES descriptions; requests that are billed and lost are not in it.
    """
    Replay(job.calls, "replay_or_record").close()  # makes the file if there is none
    replay = Replay(job.calls, "replay")
    clients, unpaid = job.clients(replay), Budget()  # the record alone answers
    lines: dict[str, list[Forecast]] = defaultdict(list)
    try:
        for name in job.subjects:
            known, unknown = list[Answer](), list[Example]()
            for example in job.examples:
                try:
                    known.append(await ask(clients[name], example, unpaid))
                except ReplayMiss:
                    unknown.append(example)
            tokens = round(fmean(answer.completion_tokens for answer in known)) if known else EXPECTED_TOKENS
            lines[name] += [_call(job, name, question(example), tokens) for example in unknown]
            writer = job.writer(name)
            try:
                evidence = [*known, *map(_unknown, unknown)]
                await write(clients[writer], clients[name].expert, job.examples, evidence, unpaid)
            except ReplayMiss:
                messages = request(job.examples, [*known, *map(_unknown, unknown)])
                lines[writer].append(_call(job, writer, messages, EXPECTED_TOKENS, TRIES))
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
    """Describes each subject and writes the file: {"version", "experts": {name: entry}}.

    An entry is what `load` reads, "description", with its evidence: writer, models, price list, date, share of right
    answers, overall and by family, mean cost, seconds and tokens, and each task's id, answer and grade. Questions and
    reference answers are not in it. The file is written after every subject, and entries of other experts stay. A run
    that was stopped continues where it was, since calls are recorded as they are made.

    Args:
        job: see there.
        path: of the file.
        budget: pays.
        progress: told (calls done, calls in all).

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

    try:
        for name in needed:
            clients[name].check()
        tasks = [asyncio.create_task(subject(name)) for name in job.subjects]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await asyncio.gather(*(client.close() for client in clients.values()))
        replay.close()
    return Described(descriptions, problems)


async def _described(
    job: DescriptionJob, client: ExpertClient, writer: ExpertClient, budget: Budget, count: Callable[[], object]
) -> tuple[str, list[Answer]]:
    """The description of one subject, and its answers; `count` is called after each of them.

    Raises:
        InfrastructureError: it answered no task, or the writer failed.
        BudgetExceeded, UnusableDescription: see `write`.
    """

    async def tried(example: Example) -> Answer:
        try:
            return await ask(client, example, budget)
        except InfrastructureError as error:
            return Answer(example.id, problem=str(error))
        finally:
            count()

    asked = await asyncio.gather(*map(tried, job.examples), return_exceptions=True)
    for each in asked:  # only now: what was paid for is recorded
        if isinstance(each, BaseException):
            raise each
    answers = [each for each in asked if isinstance(each, Answer)]
    if all(answer.right is None for answer in answers):
        raise InfrastructureError(f"{client.expert.name} answered no task: {answers[0].problem}")
    return await write(writer, client.expert, job.examples, answers, budget), answers


def _unknown(example: Example) -> Answer:
    """Stands for a reply that is not there yet, as long as the writer can be shown one."""
    return Answer(example.id, right=False, reply="?" * SHOWN_CHARS, completion_tokens=EXPECTED_TOKENS)


def _call(
    job: DescriptionJob, name: str, messages: Sequence[Mapping[str, str]], tokens: int, tries: int = 1
) -> Forecast:
    """One call that has to be made."""
    expert = next(expert for expert in job.experts if expert.name == name)
    counter = TokenCounter(expert.tokenizer)
    prompt, tokens = counter.estimate(messages), min(tokens, expert.max_tokens)
    usd = job.prices.cost(name, prompt_tokens=prompt, completion_tokens=tokens)
    worst = job.prices.cost(name, prompt_tokens=counter.most(messages), completion_tokens=expert.max_tokens)
    return Forecast(name=name, calls=1, tokens=prompt + tokens, usd=usd, worst_usd=worst * tries)


def _sum(name: str, lines: Sequence[Forecast]) -> Forecast:
    sums = {field: sum(getattr(line, field) for line in lines) for field in ("calls", "tokens", "usd", "worst_usd")}
    return Forecast(name=name, **sums)
