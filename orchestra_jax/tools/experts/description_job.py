"""One description to be written: the models that take part, the tasks, and the two kinds of calls."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools.answers import extract_answer, matches, without_thinking
from orchestra_jax.tools.experts.client import ExpertClient, expert_clients
from orchestra_jax.tools.experts.descriptions import Example, flaw
from orchestra_jax.tools.experts.evidence import Answer, question, request
from orchestra_jax.tools.experts.expert import Expert

TRIES = 3  # descriptions asked for until one may be shown
_WRITTEN = re.compile(r"<description>(.*?)</description>", re.DOTALL)


@dataclass(frozen=True)
class DescriptionJob:
    """What is described, by whom and from what.

    Attributes:
        experts: the models, writers included.
        subjects: names of those to describe.
        writers: names of those that may write; the first that is not the subject itself does.
        examples: the tasks.
        prices: of all of them.
        calls: file of recorded calls: what is in there is not paid for again.

    Raises:
        ValueError: no task, an unknown name, or a model that would describe itself.
    """

    experts: Sequence[Expert]
    subjects: Sequence[str]
    writers: Sequence[str]
    examples: Sequence[Example]
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
        return next(name for name in self.writers if name != subject)

    def clients(self, replay: Replay | None) -> dict[str, ExpertClient]:
        """A client of each model that takes part."""
        names = {*self.subjects, *(self.writer(subject) for subject in self.subjects)}
        return expert_clients((e for e in self.experts if e.name in names), self.prices, replay=replay)


class UnusableDescription(Exception):  # noqa: N818  named like the fact it states
    """The writer wrote nothing that may be shown; one sentence."""


async def ask(client: ExpertClient, example: Example, budget: Budget) -> Answer:
    """The subject's answer to one task. Raises as `ExpertClient.chat` does."""
    completion = await client.chat(question(example), budget=budget)
    reply = without_thinking(completion.text)
    answer = extract_answer(reply)
    rows = completion.usage
    return Answer(
        task=example.id,
        answer=answer,
        right=matches(answer, example.answers),
        reply=reply,
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        completion_tokens=sum(row.completion_tokens for row in rows),
        cost_usd=sum(row.cost_usd for row in rows),
        seconds=sum(row.seconds for row in rows),
    )


async def write(
    writer: ExpertClient, subject: Expert, examples: Sequence[Example], answers: Sequence[Answer], budget: Budget
) -> str:
    """The subject's description.

    Raises:
        UnusableDescription: none in TRIES tries.
    """
    problem = ""
    for number in range(TRIES):
        completion = await writer.chat(request(examples, answers, problem), budget=budget, sample=number)
        written = _WRITTEN.findall(without_thinking(completion.text))
        text = " ".join(written[-1].split()) if written else ""
        flawed = flaw(text, subject, examples)
        if flawed is None:
            return text
        problem = flawed
    raise UnusableDescription(
        f"{writer.expert.name} wrote no description of {subject.name} that may be shown in {TRIES} tries; name "
        f"another writer. {problem}"
    )
