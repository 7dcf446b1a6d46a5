"""Calls whose arguments are copied from the task, for scripts that have no model."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestra_jax.types import Task, ToolCall, ToolResult

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_EMPTY: Mapping[str, Any] = {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}


def copied_call(task: Task, tool: str, results: Sequence[ToolResult] = ()) -> ToolCall:
    """Return a call of `tool` whose required arguments need no model.

    They are the question, its numbers as a sum for code, a choice at random, and the empty value for other types.
    """
    parameters = next(spec.parameters for spec in task.tools if spec.name == tool)
    properties = parameters.get("properties", {})
    return ToolCall(
        tool, {key: _argument(task, key, properties.get(key, {})) for key in parameters.get("required", ())}
    )


def task_rng(task: Task, name: str) -> np.random.Generator:
    """Return a generator that depends on the task and the name alone."""
    digest = hashlib.blake2b(f"{task.id}{name}".encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest))


def _argument(task: Task, name: str, schema: Mapping[str, Any]) -> Any:
    if choices := schema.get("enum"):
        return choices[int(task_rng(task, f"/{name}").integers(len(choices)))]
    if kind := next((each for each in _EMPTY if each in schema.get("type", ())), None):  # a name, or a list of them
        return _EMPTY[kind]
    if name == "code":
        return " + ".join(_NUMBER.findall(task.question)[:4]) or "0"
    return task.question
