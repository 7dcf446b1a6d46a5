"""Simulated experts as tools of any world whose tasks have reference answers, so that ablations of the reward are free.

No call really waits: prices and seconds go to the ledger only.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any

from orchestra_jax.config.checks import wrong_values
from orchestra_jax.config.ranges import shown
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.executor import ToolHandler
from orchestra_jax.tools.experts.simulated import ANY, SimulatedExpert
from orchestra_jax.tools.schema import one_text
from orchestra_jax.types import InfrastructureError, Task, ToolResult, ToolSpec, Usage

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


@dataclass(frozen=True)
class FallibleExpert(SimulatedExpert):
    """A simulated expert whose calls cost dollars and seconds, and may fail.

    Attributes:
        failure_rate: probability that a call fails as a server would, see `fails`.
        description: what the policy reads; by default the skill table in words.

    Raises:
        ValueError: a probability outside its range.
    """

    price_usd: float = 0.0
    latency_s: float = 0.0
    failure_rate: float = 0.0
    description: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.failure_rate < 1.0:
            raise ValueError(
                f"failure_rate={self.failure_rate} of expert {self.name!r} must be within [0, 1): with 1 no call ends."
            )

    def fails(self, question: str, attempt: int) -> bool:
        """Return whether call number `attempt` about a question fails; each has a draw, so retries succeed."""
        return self.draw(f"{question}\x1f{attempt}")[0] < self.failure_rate

    def call(
        self, question: str, right: str, family: str, distractors: Sequence[str], *, attempt: int = 0
    ) -> ToolResult:
        """Return `answer` as a tool result with its ledger row.

        Raises:
            InfrastructureError: this attempt fails; it costs nothing.
        """
        if self.fails(question, attempt):
            raise InfrastructureError(f"Expert {self.name!r} simulates a failure; ask again.")
        text = self.answer(question, right, family, distractors)
        return ToolResult(text, (Usage(self.name, cost_usd=self.price_usd, seconds=self.latency_s),))


class SimulatedTool:
    """A simulated expert as a tool of any world: it answers the task itself, however the policy words its question.

    Wrong answers are the task's own (`extra["distractors"]`); else, where a number is in the right answer, numbers near
    it; else those given here, such as answers to other tasks.

    Calls about one question are counted here, over all episodes, and each has its own draw of failure. With a
    failure rate above 0, which of several episodes at once sees a failure depends on their order, and a run that was
    restored counts from zero; nothing else about an expert depends on either.

    Attributes:
        spec: what the policy reads; price and latency are the expert's.
    """

    def __init__(self, expert: FallibleExpert, distractors: Sequence[str] = ()) -> None:
        self.expert = expert
        self.spec = ToolSpec(
            name=expert.name,
            description=expert.description or skills_in_words(expert.skill),
            parameters=one_text("question", "The whole question."),
            price_usd=expert.price_usd,
            latency_s=expert.latency_s,
        )
        self._distractors = tuple(distractors)
        self._asked: Counter[str] = Counter()

    def handler(self, task: Task) -> ToolHandler:
        """Return the handler for an episode of this task.

        Its calls raise InfrastructureError as often as `failure_rate` says.

        Raises:
            ValueError: the task has no reference answer, or there is no wrong one to give.
        """
        if not task.answer:
            raise ValueError(f"Task {task.id!r} has no reference answer that {self.expert.name!r} could know.")
        right = task.answer[0]
        sources = (task.extra.get("distractors", ()), near_numbers(right), self._distractors)
        candidates = ([text for text in source if text not in task.answer] for source in sources)
        wrong = next(filter(None, candidates), None)
        if wrong is None:
            raise ValueError(
                f"Task {task.id!r} has no distractors; give SimulatedTool some, as answers of other tasks."
            )

        async def handle(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
            attempt = self._asked[task.question]
            if self.expert.failure_rate:
                self._asked[task.question] += 1
            return self.expert.call(task.question, right, task.family, wrong, attempt=attempt)

        return handle


def simulated_experts(config: Mapping[str, Mapping[str, Any]], seed: int) -> list[FallibleExpert]:
    """Read experts of {name: {skill: {family: 0.9, "*": 0.5}, price_usd: 0.01, ...}}; `seed` for those without one.

    Raises:
        ValueError: an unknown key, no skill, or a value out of its range.
    """
    known = {field.name for field in fields(FallibleExpert)} - {"name"}
    experts = []
    for name, entry in config.items():
        given = entry if isinstance(entry, Mapping) else {}
        if unknown := sorted(set(given) - known):
            raise ValueError(
                f"Simulated expert {name!r} has the unknown key {unknown[0]!r}; known are {sorted(known)}."
            )
        skill = given.get("skill")
        numbers = isinstance(skill, Mapping) and all(isinstance(share, int | float) for share in skill.values())
        if not skill or not numbers:
            raise ValueError(f"Simulated expert {name!r} has no skill; give skill: {{'*': 0.5}}.")
        if wrong := next(wrong_values(f"tools.simulated.{shown(name)}", given, FallibleExpert, {}), None):
            raise ValueError(wrong)
        experts.append(FallibleExpert(name, **{"seed": seed, **given}))
    return experts


def skills_in_words(skill: Mapping[str, float]) -> str:
    """Return a description that tells the truth: 'Answers questions. Right answers: 90% in maths, 40% elsewhere.'"""
    named = [f"{share:.0%} in {family}" for family, share in skill.items() if family != ANY]
    rest = [f"{skill[ANY]:.0%} {'elsewhere' if named else 'in all fields'}"] if ANY in skill else []
    return f"Answers questions. Right answers: {', '.join(named + rest)}."


def near_numbers(right: str) -> list[str]:
    """Return the answer with other numbers for its last one ("72 km": "71 km", "73 km", ...), or nothing."""
    text = _THOUSANDS.sub("", right)
    found = list(_NUMBER.finditer(text))
    if not found:
        return []
    match, number = found[-1], Decimal(found[-1][0])
    unit = Decimal(1).scaleb(-len(match[0].partition(".")[2]))  # of the last digit
    others = {abs(number + unit * step) for step in (-10, -2, -1, 1, 2, 10)} | {number * 2}
    return [f"{text[: match.start()]}{other}{text[match.end() :]}" for other in sorted(others - {number})]
