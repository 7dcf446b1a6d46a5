"""Experts with a known skill table: stand-ins for paid models, deterministic and free.

`simulated_tool` offers one as a tool of any world whose tasks have reference answers, so that ablations of the reward
cost nothing: prices and seconds are in the ledger only.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestra_jax.types import InfrastructureError, ToolResult, Usage

ANY = "*"  # in a skill table: every family that is not named


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
