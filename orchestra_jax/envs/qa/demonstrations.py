"""Scripted demonstrations for real questions: the right format and copied arguments, tools chosen at random."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestra_jax.envs.copying import task_rng
from orchestra_jax.tools.answer_tool import ANSWER_TOOL
from orchestra_jax.tools.relay import RELAY, can_relay
from orchestra_jax.types import HAND_IN, Task, ToolCall, ToolResult

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
QUERY_WORDS = 6
ANSWER_CHARS = 40


def reference_call(task: Task, tool: str, results: Sequence[ToolResult] = ()) -> ToolCall:
    """Return a call of `tool` whose required arguments are copied from the task.

    They are numbers of the question, as a sum for code, a choice of models from the menu, and for every other text the
    question's first words.
    """
    parameters = next(spec.parameters for spec in task.tools if spec.name == tool)
    return ToolCall(tool, _object(task, parameters, parameters))


def _object(task: Task, schema: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: _argument(task, name, properties.get(name), root) for name in schema.get("required", ())}


def _argument(task: Task, name: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Return a value for one argument, of the type that its schema asks for; `root` is the schema of references."""
    schema = schema if isinstance(schema, Mapping) else {}  # true: anything will do
    if str(schema.get("$ref", "")).startswith("#/$defs/"):
        schema = root.get("$defs", {}).get(schema["$ref"].removeprefix("#/$defs/"), {})
    if choices := schema.get("enum"):
        return choices[int(task_rng(task, name).integers(len(choices)))]
    kinds, numbers = schema.get("type", "string"), _NUMBER.findall(task.question) or ["0"]
    match kinds[0] if isinstance(kinds, list) else kinds:
        case "integer":
            return int(float(numbers[0]))
        case "number":
            return float(numbers[0])
        case "boolean":
            return True
        case "array":
            return [_argument(task, name, schema.get("items"), root) for _ in range(schema.get("minItems", 1))]
        case "object":
            return _object(task, schema, root)
    if name == "code":
        return " + ".join(_NUMBER.findall(task.question)[:4]) or "0"
    return " ".join(task.question.split()[:QUERY_WORDS]) or "?"


def answer_from(results: Sequence[ToolResult]) -> str:
    """Return the last result's first line, boxed as the system message asks; a model's answer stays as it is."""
    if results and results[-1].final is not None:
        if results[-1].final == results[-1].text:
            return results[-1].final
        results = results[:-1]  # what came before the answer was called
    lines = results[-1].text.splitlines() if results else []
    return f"\\boxed{{{lines[0][:ANSWER_CHARS] if lines else ''}}}"


def random_tool(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    """Call one tool of the menu at random, then answer with what it said.

    A tool that only takes the answer is not drawn; it is called at the end where it is there. `relay` comes before it.
    """
    ends = [spec for spec in task.tools if spec.name == ANSWER_TOOL.name]
    if results and can_relay(results[-1]) and any(spec.name == RELAY.name for spec in task.tools):
        return ToolCall(RELAY.name, {})
    if results:
        answer = answer_from(results)
        if not ends:
            return answer
        call = reference_call(task, ends[0].name)
        return ToolCall(call.name, {"answer": answer}) if "answer" in call.arguments else call
    tools = [spec for spec in task.tools if spec.name not in HAND_IN] or ends
    return reference_call(task, tools[int(task_rng(task, "").integers(len(tools)))].name)
