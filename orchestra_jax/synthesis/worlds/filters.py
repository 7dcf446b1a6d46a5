"""The three filters of Section 3.3: golden calls that raise, tasks that nobody solves, tasks solved with no action.

All of it happens in the sandbox: the tools were written by a model.
"""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from orchestra_jax.config.synthesis import SynthesisConfig
from orchestra_jax.envs.database import golden
from orchestra_jax.envs.database.criteria import judge
from orchestra_jax.envs.database.folder import Exchange, TaskRow
from orchestra_jax.envs.database.session import Session, World, WrongKind
from orchestra_jax.envs.database.workers.pool import WorldError
from orchestra_jax.rollout.parsing import ParseError, parse_tool_calls
from orchestra_jax.synthesis.cast import Cast, Rejected
from orchestra_jax.synthesis.stages import Row, StageResult, Stages
from orchestra_jax.tools.experts.context import ChatMessage
from orchestra_jax.tools.experts.roles import messages
from orchestra_jax.tools.schema import to_openai
from orchestra_jax.types import InfrastructureError, ToolCall

T = TypeVar("T")

RAISES, NOBODY, IDLE = "golden calls raise", "nobody solves it", "solved with no action"
BROKEN, UNSURE = "a tool is broken", "golden calls leave another content each time"
_SLOW = re.compile(r"Error: (\w+) took too long")
_MOST_TEXT = 20_000  # characters of a result that the solver reads
SYSTEM = """{policy}

It is {now}. You have these functions:
{tools}

To call one, write <tool_call>{{"name": NAME, "arguments": {{...}}}}</tool_call>, one or several in a message and \
nothing else in it; the results follow. What you write without a call goes to the user: do so when their request is \
done, and tell them what they want to know, or when you have to ask something."""


@dataclass(frozen=True, slots=True)
class SolverAttempt:
    """The end of one attempt: whether it solves the task, and its number of calls."""

    solved: bool
    calls: int


async def replay_all(stages: Stages, tasks: Sequence[Row], world: World) -> tuple[list[Row], set[str]]:
    """Return tasks that can be scored, each with the "outcomes" of its golden calls, and tools that took too long."""

    async def replay(row: Row, out: StageResult) -> None:
        out.keep({**row, "outcomes": await asyncio.to_thread(_twice, replayed, world, task_row(row))})

    async def quick(row: Row, out: StageResult) -> None:
        if late := slow.intersection(call["name"] for turn in row["turns"] for call in turn["calls"]):
            raise Rejected("a tool takes too long", f"{row['id']} needs {', '.join(sorted(late))}.")
        out.keep(row)

    done = await stages.run("golden", tasks, replay)
    found = (_SLOW.search(each["why"]) for each in done.rejected)
    slow = {match[1] for match in found if match is not None}
    return (await stages.run("timing", done.rows, quick)).rows, slow


async def solve_all(
    stages: Stages, settings: SynthesisConfig, cast: Cast, tasks: Sequence[Row], world: World
) -> list[Row]:
    """Return tasks that the solver solves sometimes, and never without a call, each with its "attempts"."""

    async def solve(row: Row, out: StageResult) -> None:
        task = task_row(row)
        after, _ = await asyncio.to_thread(golden.replay, world, task.goal)
        attempts = (attempt(cast, world, task, after, number, settings.turns) for number in range(settings.attempts))
        ended = await asyncio.gather(*attempts, return_exceptions=True)  # so that no attempt goes on after the stage
        tried = [each for each in ended if isinstance(each, SolverAttempt)]
        errors = [each for each in ended if isinstance(each, BaseException)]
        # If the model could not be asked, nothing is known about the task, whatever else was found.
        for error in sorted(errors, key=lambda error: isinstance(error, Rejected)):
            raise error
        solved = [each for each in tried if each.solved]
        if not solved:
            raise Rejected(NOBODY, f"{row['id']}: none of {len(tried)} attempts solves it.")
        if any(not each.calls for each in solved):
            raise Rejected(IDLE, f"{row['id']}: an attempt solves it without a call.")
        calls = sum(each.calls for each in tried) / len(tried)
        out.keep({**row, "attempts": {"solved": len(solved), "of": len(tried), "mean_calls": round(calls, 2)}})

    return (await stages.run("solving", tasks, solve)).rows


def _twice(work: Callable[..., T], *arguments: Any) -> T:
    """Return the result of the work; if a worker dies, try once more, as it may have died by chance.

    Raises:
        Rejected: it dies again: the code of a tool ends it.
    """
    try:
        return work(*arguments)
    except InfrastructureError:
        pass
    try:
        return work(*arguments)
    except InfrastructureError as error:
        raise Rejected(BROKEN, f"It ended two workers: {error}") from None


def task_row(row: Row) -> TaskRow:
    """Return the task in the form of a world's folder."""
    turns = tuple(
        Exchange(
            turn["user"],
            tuple(ToolCall(call["name"], call["arguments"]) for call in turn["calls"]),
            tuple(turn["facts"]),
        )
        for turn in row["turns"]
    )
    return TaskRow(row["id"], row["family"], row["split"], turns, row["seed"])


def replayed(world: World, task: TaskRow) -> list[str]:
    """Return the results of the golden calls.

    Raises:
        Rejected: the task is of no use.
        InfrastructureError: a worker died.
    """
    try:
        wrong = golden.solution(world, task.goal)
        if not isinstance(wrong, str):
            session = golden.opened(world, task.goal)
            return [session.call(call).text for call in task.goal.calls]
    except (WorldError, WrongKind) as error:
        raise Rejected(BROKEN, f"{task.id}: {error}") from None
    reason = {golden.IDLE: IDLE, golden.BY_CHANCE: UNSURE}.get(wrong, RAISES)
    raise Rejected(reason, f"{task.id}: {wrong}")


async def attempt(cast: Cast, world: World, task: TaskRow, after: Session, number: int, turns: int) -> SolverAttempt:
    """Let the solver play the agent once; the user speaks by the script.

    Args:
        after: the session after the golden calls.
        number: of the attempt: each is a sample of its own in the record.

    Raises:
        Rejected: a tool is broken.
        InfrastructureError, BudgetExceeded, ReplayMiss: the solver could not be asked.
    """
    session = golden.opened(world, task.goal)
    conversation: list[ChatMessage] = [*messages(system(world), task.turns[0].user)]
    said = list[str]()
    for _ in range(turns):
        text, cut = await cast.say("solver", conversation, sample=number)
        calls = parse_tool_calls(text)
        if cut or isinstance(calls, ParseError):
            break
        if calls:
            heard = await _results(session, calls)
        else:
            said.append(text)
            if len(said) == len(task.turns):
                break
            heard = task.turns[len(said)].user
        conversation += [{"role": "assistant", "content": text or "(nothing)"}, {"role": "user", "content": heard}]
    made = len(session.done)
    if len(said) < len(task.turns):
        return SolverAttempt(False, made)
    return SolverAttempt(judge(after, session, task.goal.facts, said).solved, made)


async def _results(session: Session, calls: Sequence[ToolCall]) -> str:
    found = []
    for call in calls:
        try:
            result = await asyncio.to_thread(_twice, session.call, call)
        except (WorldError, WrongKind) as error:
            raise Rejected(BROKEN, str(error)) from None
        found.append(f"<tool_response>\n{result.text[:_MOST_TEXT]}\n</tool_response>")
    return "\n".join(found)


def system(world: World) -> str:
    """Return the first message to the solver."""
    tools = "\n".join(json.dumps(to_openai(spec)["function"], ensure_ascii=False) for spec in world.specs.values())
    return SYSTEM.format(policy=world.policy.strip(), now=f"{world.now:%A, %d %B %Y, %H:%M}", tools=tools)


def difficulty(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the number of tasks by share of attempts that solve it, {"1/8": 3, ...}, easiest last."""
    found: dict[tuple[int, int], int] = {}
    for row in rows:
        key = (row["attempts"]["solved"], row["attempts"]["of"])
        found[key] = found.get(key, 0) + 1
    return {f"{solved}/{of}": found[solved, of] for solved, of in sorted(found)}
