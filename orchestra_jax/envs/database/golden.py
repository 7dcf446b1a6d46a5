"""Golden calls: they are replayed to find out whether a task can be used, and why not."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestra_jax.envs.database.criteria import judge
from orchestra_jax.envs.database.facts import problem
from orchestra_jax.envs.database.session import Session, World
from orchestra_jax.types import InfrastructureError, ToolCall

# Sentences about tasks that cannot be used.
BY_CHANCE = "The golden calls leave another content each time: a tool uses the clock or chance."
IDLE = "It is solved by doing nothing: the golden calls operate on nothing and there is nothing to say."


@dataclass(frozen=True)
class Goal:
    """The aim of a task of a database world.

    Attributes:
        id: of the task, unique in its world.
        calls: the golden calls, in order.
        facts: the facts that the user must be told.
        seed: of the ids in this task, for the golden calls and for every policy alike.
        start: {table: {id: entry or None}} that differs from the world's database at the start.
    """

    id: str
    calls: Sequence[ToolCall]
    facts: Sequence[str] = ()
    seed: int = 0
    start: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


def opened(world: World, goal: Goal) -> Session:
    """Return a fresh episode of the task, before any call."""
    session = world.session(goal.seed)
    if goal.start:
        session.state.apply(goal.start)
    return session


def replay(world: World, goal: Goal) -> tuple[Session, list[str]]:
    """Return the session after the golden calls, and a sentence for every call that failed."""
    session, failed = opened(world, goal), list[str]()
    for number, call in enumerate(goal.calls, start=1):
        try:
            result = session.call(call)
        except InfrastructureError:
            raise
        except Exception as error:  # whatever a tool raises makes the task unusable, and is told
            failed.append(f"Golden call {number} ({call.name}) raised {type(error).__name__}: {error}")
            continue
        if result.is_error:
            failed.append(f"Golden call {number} ({call.name}) failed: {result.text}")
    return session, failed


def solution(world: World, goal: Goal) -> Session | str:
    """Return the session after the golden calls, or a sentence why nobody can be scored on the task."""
    for fact in goal.facts:
        if wrong := problem(fact):
            return wrong
    try:
        session, failed = replay(world, goal)
    except (KeyError, TypeError, ValueError) as error:
        return f"The task's own start does not fit the database: {error}"
    if failed:
        return failed[0]
    if replay(world, goal)[0].state.hash() != session.state.hash():
        return BY_CHANCE
    return IDLE if judge(session, opened(world, goal), goal.facts, ()).solved else session


def solutions(world: World, goals: Iterable[Goal]) -> tuple[dict[str, Session], dict[str, str]]:
    """Return the session after the golden calls by id of the task, and the reason for each task that has none."""
    found = {goal.id: solution(world, goal) for goal in goals}
    return (
        {name: each for name, each in found.items() if not isinstance(each, str)},
        {name: each for name, each in found.items() if isinstance(each, str)},
    )
