"""Golden calls, and whether a task can be used at all: they are replayed, and whatever speaks against it is told."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestra_jax.envs.database.criteria import judge
from orchestra_jax.envs.database.facts import problem
from orchestra_jax.envs.database.session import AnySession, AnyWorld
from orchestra_jax.types import InfrastructureError, ToolCall


@dataclass(frozen=True)
class Goal:
    """What a task of a database world asks for.

    Attributes:
        id: of the task, unique in its world.
        calls: the golden calls, in order.
        facts: that the user must be told.
        seed: of the ids in this task, for the golden calls and for every policy alike.
        start: {table: {id: entry or None}} that differs from the world's database at the start.
    """

    id: str
    calls: Sequence[ToolCall]
    facts: Sequence[str] = ()
    seed: int = 0
    start: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


def opened(world: AnyWorld, goal: Goal) -> AnySession:
    """A fresh episode of the task, before anybody called anything."""
    session = world.session(goal.seed)
    if goal.start:
        session.state.apply(goal.start)
    return session


def replay(world: AnyWorld, goal: Goal) -> tuple[AnySession, list[str]]:
    """The session after the golden calls, and a sentence for every one that failed."""
    session, failed = opened(world, goal), []
    for number, call in enumerate(goal.calls, start=1):
        try:
            outcome = session.call(call)
        except InfrastructureError:
            raise
        except Exception as error:  # whatever a tool raises makes the task unusable, and is told
            failed.append(f"Golden call {number} ({call.name}) raised {type(error).__name__}: {error}")
            continue
        if not outcome.ok:
            failed.append(f"Golden call {number} ({call.name}) failed: {outcome.text}")
    return session, failed


def unusable(world: AnyWorld, goal: Goal, *, may_fail: bool = False) -> str | None:
    """Why nobody can be scored on the task, in a sentence; None: it can be used.

    With `may_fail` golden calls may fail: in τ²-Bench some look for what is not there, as the user misremembers it.
    """
    for fact in goal.facts:
        if wrong := problem(fact):
            return wrong
    try:
        session, failed = replay(world, goal)
    except (KeyError, TypeError, ValueError) as error:
        return f"The task's own start does not fit the database: {error}"
    if failed and not may_fail:
        return failed[0]
    if replay(world, goal)[0].state.hash() != session.state.hash():
        return "The golden calls leave another content each time: a tool uses the clock or chance."
    if judge(session, opened(world, goal), goal.facts, ()).solved:
        return "It is solved by doing nothing: the golden calls operate on nothing and there is nothing to say."
    return None


def sift(world: AnyWorld, goals: Iterable[Goal], *, may_fail: bool = False) -> tuple[list[Goal], dict[str, str]]:
    """The tasks that can be used, and by id why each of the others cannot: none is dropped in silence."""
    usable, reasons = list[Goal](), dict[str, str]()
    for goal in goals:
        wrong = unusable(world, goal, may_fail=may_fail)
        if wrong is None:
            usable.append(goal)
        else:
            reasons[goal.id] = wrong
    return usable, reasons
