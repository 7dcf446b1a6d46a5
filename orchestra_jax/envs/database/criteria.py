"""When a conversation solves its task (Section 3.3): three criteria, each reported, all of them needed."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestra_jax.envs.database.facts import unsaid
from orchestra_jax.envs.database.session import AnySession
from orchestra_jax.envs.database.state import Key, differing


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong by criterion; nothing is where all three are empty.

    Attributes:
        differs: entries that are not as the golden calls leave them (execution correctness).
        unsaid: facts that the user was not told (process fidelity).
        untouched: entries that the golden calls operate on and the policy did not (operation completeness).
    """

    differs: tuple[Key, ...] = ()
    unsaid: tuple[str, ...] = ()
    untouched: tuple[Key, ...] = ()

    @property
    def executed(self) -> bool:
        return not self.differs

    @property
    def faithful(self) -> bool:
        return not self.unsaid

    @property
    def complete(self) -> bool:
        return not self.untouched

    @property
    def solved(self) -> bool:
        """r_outcome of Eq. 1."""
        return self.executed and self.faithful and self.complete

    def criteria(self) -> dict[str, str]:
        """What is wrong by criterion, a sentence, or "" where it holds; for `Score.criteria`."""
        parts = (
            ("executed", "Not as it should be: ", [f"{table} {name}" for table, name in self.differs]),
            ("faithful", "Not said: ", [repr(fact) for fact in self.unsaid]),
            ("complete", "Not operated on: ", [f"{table} {name}" for table, name in self.untouched]),
        )
        return {name: f"{head}{', '.join(each)}." if each else "" for name, head, each in parts}


def judge(golden: AnySession, made: AnySession, facts: Sequence[str], said: Sequence[str]) -> Verdict:
    """The three criteria of one episode.

    Args:
        golden: after the golden calls, see `golden.replay`.
        made: after the policy's.
        facts: that the user must be told.
        said: what the policy said to the user; neither its thoughts nor what tools answered.

    Raises:
        ValueError: the sessions are of different databases.
    """
    # Whoever changed an entry knew it; whoever looked at it did not change it.
    unread = golden.read - made.read - made.written
    untouched = unread | (golden.written - made.written)
    return Verdict(tuple(differing(golden.state, made.state)), unsaid(facts, said), tuple(sorted(untouched)))
