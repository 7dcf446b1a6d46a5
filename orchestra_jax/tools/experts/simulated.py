"""Experts with a known skill table: stand-ins for paid models, deterministic and free.

`simulated_tool` offers one as a tool of any world whose tasks have reference answers.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ANY = "*"  # in a skill table: every family that is not named


@dataclass(frozen=True)
class SimulatedExpert:
    """Answers a question of family f rightly with probability `skill[f]`, always the same way for the same question.

    The draw is a hash of (seed, name, question): stable across calls, processes and runs, independent between experts.

    Attributes:
        skill: probability of a right answer by question family, each in [0, 1]; "*" stands for all other families.
        seed: another seed is another expert with the same skills.

    Raises:
        ValueError: a probability outside [0, 1].
    """

    name: str
    skill: Mapping[str, float]
    seed: int = 0

    def __post_init__(self) -> None:
        for family, probability in self.skill.items():
            if not 0.0 <= probability <= 1.0:
                raise ValueError(f"Skill {probability} of expert {self.name!r} in {family!r} must be within [0, 1].")

    def knows(self, question: str, family: str) -> bool:
        """Return whether this expert answers this question rightly.

        Raises:
            ValueError: the skill table has neither the family nor "*".
        """
        skill = self.skill.get(family, self.skill.get(ANY))
        if skill is None:
            raise ValueError(f"Expert {self.name!r} has no skill for {family!r}; it has {sorted(self.skill)}.")
        return self.draw(question)[0] < skill

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
        return wrong[int(self.draw(question)[1] * len(wrong))]

    def draw(self, question: str) -> tuple[float, float]:
        """Return two independent uniforms in [0, 1)."""
        text = f"{self.seed}\x1f{self.name}\x1f{question}"
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        # 53 bits: more would round up to 1.0.
        first, second = (int.from_bytes(part) >> 11 for part in (digest[:8], digest[8:]))
        return first / 2**53, second / 2**53
