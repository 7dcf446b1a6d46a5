"""The three criteria by which a conversation solves its task (Section 3.3); each is reported, all are needed."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestra_jax.envs.database.facts import unsaid
from orchestra_jax.envs.database.session import Session
from orchestra_jax.envs.database.state import Key, differing


@dataclass(frozen=True, slots=True)
class CriteriaVerdict:
    """The faults of an episode by criterion; a criterion holds if its faults are empty.

    Attributes:
        differs: entries that are not as the golden calls leave them (execution correctness).
        unsaid: facts that the user was not told (process fidelity).
        untouched: entries that the golden calls operate on and the policy did not (operation completeness).
    """

    differs: tuple[Key, ...] = ()
    unsaid: tuple[str, ...] = ()
    untouched: tuple[Key, ...] = ()

    @property
    def solved(self) -> bool:
        """r_outcome of Eq. 1."""
        return not (self.differs or self.unsaid or self.untouched)

    def criteria(self) -> dict[str, str]:
        """Return a sentence on the faults by criterion, or "" if it holds; for `Score.criteria`."""
        parts = (
            ("executed", "Not as it should be: ", [f"{table} {name}" for table, name in self.differs]),
            ("faithful", "Not said: ", [repr(fact) for fact in self.unsaid]),
            ("complete", "Not operated on: ", [f"{table} {name}" for table, name in self.untouched]),
        )
        return {name: f"{head}{', '.join(each)}." if each else "" for name, head, each in parts}


def judge(golden: Session, made: Session, facts: Sequence[str], said: Sequence[str]) -> CriteriaVerdict:
    """Return the faults of one episode.

    Args:
        golden: the session after the golden calls, see `golden.replay`.
        made: the session after the policy's calls.
        facts: the facts that the user must be told.
        said: the policy's words to the user, without its thoughts and the results of tools.

    Raises:
        ValueError: the sessions are of different databases.
    """
    # Whoever changed an entry knew it; whoever looked at it did not change it.
    unread = golden.read - made.read - made.written
    untouched = unread | (golden.written - made.written)
    return CriteriaVerdict(tuple(differing(golden.state, made.state)), unsaid(facts, said), tuple(sorted(untouched)))
