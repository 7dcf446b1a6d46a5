"""Experts with a known skill table: stand-ins for paid models, deterministic and free.

`SimulatedTool` offers one as a tool of any world whose tasks have reference answers, so that ablations of the reward
cost nothing: prices and seconds are in the ledger only.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any

from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.executor import ToolHandler
from orchestra_jax.types import InfrastructureError, Task, ToolResult, ToolSpec, Usage

ANY = "*"  # in a skill table: every family that is not named
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_PARAMETERS = {
    "type": "object",
    "properties": {"question": {"type": "string", "description": "The whole question."}},
    "required": ["question"],
}


@dataclass(frozen=True, slots=True)
class SimulatedExpert:
    """Answers a question of family f rightly with probability `skill[f]`, always the same way for the same question.

    The draw is a hash of (seed, name, question): stable across calls, processes and runs, independent between
    experts. No call really waits: the seconds go to the ledger only.

    Attributes:
        name: the expert's tool name.
        skill: probability of a right answer by question family, each in [0, 1]; "*" stands for all other families.
        price_usd: dollars per call.
        latency_s: simulated seconds per call.
        seed: another seed is another expert with the same skills.
        failure_rate: probability that a call fails as a server would, see `fails`.
        description: what the policy reads; by default the skill table in words.

    Raises:
        ValueError: a probability outside [0, 1].
    """

    name: str
    skill: Mapping[str, float]
    price_usd: float = 0.0
    latency_s: float = 0.0
    seed: int = 0
    failure_rate: float = 0.0
    description: str = ""

    def __post_init__(self) -> None:
        for family, probability in self.skill.items():
            if not 0.0 <= probability <= 1.0:
                raise ValueError(f"Skill {probability} of expert {self.name!r} in {family!r} must be within [0, 1].")
        if not 0.0 <= self.failure_rate < 1.0:
            raise ValueError(
                f"failure_rate={self.failure_rate} of expert {self.name!r} must be within [0, 1): with 1 no call ends."
            )

    def knows(self, question: str, family: str) -> bool:
        """Return whether this expert answers this question rightly.

        Raises:
            ValueError: the skill table has neither the family nor "*".
        """
        skill = self.skill.get(family, self.skill.get(ANY))
        if skill is None:
            raise ValueError(f"Expert {self.name!r} has no skill for {family!r}; it has {sorted(self.skill)}.")
        return self._draw(question)[0] < skill

    def answer(self, question: str, right: str, family: str, distractors: Sequence[str]) -> str:
        """Return the right answer, or one of the distractors that differ from it; `question` identifies the draw.

        Raises:
            ValueError: an unknown family, or no distractor differs from the right answer.
        """
        if self.knows(question, family):
            return right
        wrong = [text for text in distractors if text != right]
        if not wrong:
            raise ValueError(
                f"No wrong answer to give for {question!r}: pass a distractor that differs from {right!r}."
            )
        return wrong[int(self._draw(question)[1] * len(wrong))]

    def fails(self, question: str, attempt: int) -> bool:
        """Return whether call number `attempt` about a question fails; each has a draw, so retries succeed."""
        return self._draw(f"{question}\x1f{attempt}")[0] < self.failure_rate

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

    def _draw(self, question: str) -> tuple[float, float]:
        """Two independent uniforms in [0, 1)."""
        text = f"{self.seed}\x1f{self.name}\x1f{question}"
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        # 53 bits: more would round up to 1.0.
        first, second = (int.from_bytes(part) >> 11 for part in (digest[:8], digest[8:]))
        return first / 2**53, second / 2**53


class SimulatedTool:
    """A simulated expert as a tool of any world: it answers the task itself, however the policy words its question.

    Wrong answers are the task's own (`extra["distractors"]`); else, where a number is in the right answer, numbers near
    it; else those given here, such as answers to other tasks.

    Calls about one question are counted here, over all episodes, and each has its own draw of failure. With a
    failure rate above 0, which of several episodes at once sees a failure depends on their order, and a run that was
    restored counts from zero; nothing else about an expert depends on either.

    Attributes:
        expert: who answers.
        spec: what the policy reads; price and latency are the expert's.
    """

    def __init__(self, expert: SimulatedExpert, distractors: Sequence[str] = ()) -> None:
        self.expert = expert
        self.spec = ToolSpec(
            name=expert.name,
            description=expert.description or skills_in_words(expert.skill),
            parameters=_PARAMETERS,
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


def experts_from_config(config: Mapping[str, Any]) -> list[SimulatedExpert]:
    """Read experts of {seed: 0, experts: {name: {skill: {family: 0.9, "*": 0.5}, price_usd: 0.01, ...}}}.

    Raises:
        ValueError: an unknown key, no skill, or a value out of its range.
    """
    if "experts" not in config or set(config) - {"seed", "experts"}:
        raise ValueError(f"A set of simulated experts has the keys experts and seed, not {sorted(config)}.")
    known = {field.name for field in fields(SimulatedExpert)} - {"name"}
    experts = []
    for name, given in config["experts"].items():
        if unknown := sorted(set(given) - known):
            raise ValueError(
                f"Simulated expert {name!r} has the unknown key {unknown[0]!r}; known are {sorted(known)}."
            )
        if not given.get("skill"):
            raise ValueError(f"Simulated expert {name!r} has no skill; give skill: {{'*': 0.5}}.")
        experts.append(SimulatedExpert(name, **{"seed": config.get("seed", 0), **given}))
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
