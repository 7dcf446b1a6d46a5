"""Scripts in database worlds, and the chat of a small policy that learns the format from them.

A demonstration calls tools at random, with arguments that are copied as well as they can be, and tells the user what
the last one said: the choice of tools carries no information, and what is right is left to be learned.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from orchestra_jax.envs.base import Demonstrations, OwnChat
from orchestra_jax.envs.database.folder import TaskRow, WorldFolder
from orchestra_jax.envs.database.golden import opened
from orchestra_jax.envs.words import word_chat
from orchestra_jax.types import Task, ToolCall, ToolResult, ToolSpec

DONE = "Done."
CALLS_SHARES = (0.6, 0.3, 0.1)  # requests that are answered after one, two and three calls
Plan = list[ToolCall | str]


def golden_play(row: TaskRow, observed: Sequence[ToolResult]) -> ToolCall | str:
    """Makes the golden calls of each request, and says its facts."""
    plan: Plan = []
    for turn in row.turns:
        plan += [*turn.calls, "; ".join(turn.facts) or DONE]
    return plan[len(observed)]


def random_tools(rows: Mapping[str, TaskRow], tasks: Sequence[Task], gate: Sequence[Task]) -> Demonstrations:
    """Demonstrations of `tasks`.

    Args:
        rows: by id of the task.
        gate: tasks of one request that has every golden argument in its words.
    """

    def script(task: Task, observed: Sequence[ToolResult]) -> ToolCall | str:
        row = rows[task.extra["task"]]
        rng = np.random.default_rng(_digest(f"{task.id}/{task.extra['instance']['seed']}"))
        place = 0  # in the plan, of which every step has been observed but the last
        for number in range(len(row.turns)):
            count = 1 + int(rng.choice(len(CALLS_SHARES), p=CALLS_SHARES))
            chosen = rng.integers(0, len(task.tools), count)
            if len(observed) < place + count:
                tool = task.tools[int(chosen[len(observed) - place])]
                return copied_call(row, tool, number, [result.text for result in observed])
            if len(observed) == place + count:
                return told(observed[place:])
            place += count + 1
        return DONE

    def reference_call(task: Task, tool: str) -> ToolCall:
        spec = next(spec for spec in task.tools if spec.name == tool)
        return copied_call(rows[task.extra["task"]], spec, 0, [])

    return Demonstrations(tasks=tasks, gate=gate, script=script, reference_call=reference_call, answer_from=told)


def told(results: Sequence[ToolResult]) -> str:
    """What the last result said."""
    return results[-1].text if results else DONE


def told_at_once(row: TaskRow) -> bool:
    """Whether the task is one request with every golden argument in its words."""
    values = [value for turn in row.turns for call in turn.calls for value in call.arguments.values()]
    return len(row.turns) == 1 and bool(values) and all(str(value) in row.turns[0].user for value in values)


def copied_call(row: TaskRow, tool: ToolSpec, turn: int, read: Sequence[str]) -> ToolCall:
    """A call whose arguments are the golden ones of that name, as far as they were said; else the first that was.

    Args:
        turn: index of the request.
        read: what was observed so far, the user's further words among it.
    """
    request, given = row.turns[turn], dict[str, object]()
    known = " ".join((row.turns[0].user, *read))
    for call in request.calls:
        given |= {name: value for name, value in call.arguments.items() if str(value) in known}
    first = next(iter(given.values()), request.user.split()[0])
    return ToolCall(tool.name, {name: given.get(name, first) for name in tool.parameters["properties"]})


def own_chat(worlds: Sequence[WorldFolder]) -> OwnChat:
    """A chat in the words of these worlds: what users and tools say, and what is called."""
    specs = [spec for found in worlds for spec in found.world.specs.values()]
    return word_chat(_texts(worlds), list(dict.fromkeys(part for spec in specs for part in _scaffolds(spec))))


def _scaffolds(spec: ToolSpec) -> Iterator[str]:
    """What stands around the name and the arguments of a call, as `rollout.actors.render_call` writes it."""
    yield '\n{"name": "'
    names = list(spec.parameters["properties"])
    yield '", "arguments": {' + (f'"{names[0]}": "' if names else "}}\n")
    yield from (f'", "{name}": "' for name in names[1:])
    if names:
        yield '"}}\n'


def _texts(worlds: Sequence[WorldFolder]) -> Iterator[str]:
    """All that can be said and called: every tool is tried on every task, since errors are words too."""
    yield DONE
    for found in worlds:
        yield " ".join(found.world.specs)
        for row in found.tasks:
            session, read = opened(found.world, row.goal), list[str]()
            for number, turn in enumerate(row.turns):
                yield from (turn.user, *(json.dumps(dict(call.arguments)) for call in turn.calls), *turn.facts)
                for spec in found.world.specs.values():
                    yield opened(found.world, row.goal).call(copied_call(row, spec, number, read)).text
                read += [session.call(call).text for call in turn.calls]
                yield from read


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
