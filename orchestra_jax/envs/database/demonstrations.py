"""Demonstrations in database worlds, and the chat of a small policy that learns the format from them.

A demonstration calls tools at random among those whose arguments were named, none twice for one request, copies the
arguments, and tells the user what the last call said. It does not show which of the tools that fit is right, nor when
it is time to speak.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from orchestra_jax.envs.base import Demonstrations, OwnChat
from orchestra_jax.envs.copying import task_rng
from orchestra_jax.envs.database.conversations import DONE
from orchestra_jax.envs.database.folder import TaskRow, WorldFolder
from orchestra_jax.envs.database.golden import opened
from orchestra_jax.envs.database.workers.pool import WorldError
from orchestra_jax.envs.words import word_chat
from orchestra_jax.tools.experts.roles import ROLES
from orchestra_jax.types import Task, ToolCall, ToolResult, ToolSpec

_ASKED = sorted({role.argument for role in ROLES.values()})  # arguments of experts, which take the request as it is
CALLS_SHARES = (0.4, 0.45, 0.15)  # shares of requests that are answered after one, two and three calls


def random_tools(rows: Mapping[str, TaskRow], tasks: Sequence[Task], gate: Sequence[Task]) -> Demonstrations:
    """Return demonstrations of `tasks`.

    Args:
        rows: by id of the task.
        gate: tasks of one request that has every golden argument in its words.
    """

    def script(task: Task, observed: Sequence[ToolResult]) -> ToolCall | str:
        row = rows[task.extra["task"]]
        rng = task_rng(task, f"/{task.extra['instance']['seed']}")
        place = 0  # index of this request's first step; all steps but the current one have been observed
        for number in range(len(row.turns)):
            count = min(len(task.tools), 1 + int(rng.choice(len(CALLS_SHARES), p=CALLS_SHARES)))
            drawn = rng.random(count)
            if len(observed) < place + count:
                read, called = [result.text for result in observed], set[str]()
                for step in range(place, len(observed) + 1):  # results tell which calls were made before
                    left = [tool for tool in task.tools if tool.name not in called]
                    fitting = fitting_tools(row, left, number, read[:step])
                    tool = fitting[int(drawn[step - place] * len(fitting))]
                    called.add(tool.name)
                return copied_call(row, tool, number, read)
            if len(observed) == place + count:
                return last_text(observed[place:])
            place += count + 1
        return DONE

    def reference_call(task: Task, tool: str, results: Sequence[ToolResult] = ()) -> ToolCall:
        spec = next(spec for spec in task.tools if spec.name == tool)
        return copied_call(rows[task.extra["task"]], spec, 0, [])

    return Demonstrations(tasks=tasks, gate=gate, script=script, reference_call=reference_call, answer_from=last_text)


def last_text(results: Sequence[ToolResult]) -> str:
    """Return the text of the last result."""
    return results[-1].text if results else DONE


def told_at_once(row: TaskRow) -> bool:
    """Return whether the task is one request with every golden argument in its words."""
    values = [value for turn in row.turns for call in turn.calls for value in call.arguments.values()]
    return len(row.turns) == 1 and bool(values) and all(str(value) in row.turns[0].user for value in values)


def fitting_tools(row: TaskRow, tools: Sequence[ToolSpec], turn: int, read: Sequence[str]) -> list[ToolSpec]:
    """Return the tools that need no argument but those that were named, or all tools if there is none."""
    named = _named(row, turn, read)
    return [tool for tool in tools if set(tool.parameters.get("required", ())) <= named.keys()] or list(tools)


def copied_call(row: TaskRow, tool: ToolSpec, turn: int, read: Sequence[str]) -> ToolCall:
    """Return a call with the golden arguments of its names as far as they were said; others are the first that was.

    Args:
        turn: index of the request.
        read: texts that were observed so far, the user's further words among them.
    """
    given, parameters = _named(row, turn, read), tool.parameters
    first = next(iter(given.values()))
    names = [name for name in parameters["properties"] if name in given or name in parameters.get("required", ())]
    return ToolCall(tool.name, {name: given.get(name, first) for name in names})


def _named(row: TaskRow, turn: int, read: Sequence[str]) -> dict[str, object]:
    """Return the golden arguments of a request that a user or tool has said; for experts, the request's words."""
    known, given = " ".join((row.turns[0].user, *read)), dict[str, object]()
    for call in row.turns[turn].calls:
        given |= {name: value for name, value in call.arguments.items() if str(value) in known}
    return given | dict.fromkeys(_ASKED, row.turns[turn].user)


def own_chat(worlds: Sequence[WorldFolder], offered: Sequence[str] = (), wishes: Iterable[str] = ()) -> OwnChat:
    """Return a chat in the words of these worlds: all that users and tools say and that is called.

    Args:
        offered: names of the tools beside the domains' own.
        wishes: wordings of preferences.
    """
    calls = [list(spec.parameters["properties"]) for found in worlds for spec in found.world.specs.values()]
    calls += [[name] for name in _ASKED if offered]
    texts = [*_texts(worlds), " ".join(offered), *(f"\n\n{words}" for words in wishes)]
    return word_chat(texts, list(dict.fromkeys(part for names in calls for part in _scaffolds(names))))


def _scaffolds(names: Sequence[str]) -> Iterator[str]:
    """Yield the text around the name and the arguments of a call, as `rollout.parsing.render_call` writes it."""
    yield '\n{"name": "'
    yield '", "arguments": {' + (f'"{names[0]}": "' if names else "}}\n")
    yield from (f'", "{name}": "' for name in names[1:])
    if names:
        yield '"}}\n'


def _texts(worlds: Sequence[WorldFolder]) -> Iterator[str]:
    """Yield all that can be said and called: every tool is tried on every task, since errors are words too."""
    yield DONE
    for found in worlds:
        yield " ".join(found.world.specs)
        for row in found.tasks:
            session, read = opened(found.world, row.goal), list[str]()
            for number, turn in enumerate(row.turns):
                yield from (turn.user, *(json.dumps(dict(call.arguments)) for call in turn.calls), *turn.facts)
                for spec in found.world.specs.values():
                    with contextlib.suppress(WorldError):  # a foreign tool has a bug
                        yield opened(found.world, row.goal).call(copied_call(row, spec, number, read)).text
                read += [session.call(call).text for call in turn.calls]
                yield from read
