"""Baselines of any environment: scripts that need no model, made of what its menus offer and its results say.

`do_nothing` gives the empty answer; where a user waits for words, the environment has one of that name that speaks.
`random` calls one tool of the menu at random and answers with what it says. `expert/NAME` asks that model the question,
and its answer is the answer; where a menu does not offer it there is none.

`cheapest_first` asks the menu's models in the order of their prices. It ends with the first answer that two of them
agree on; one that is empty, an error or unsure ("I don't know") counts for nothing. Where no two agree, the answer is
that of the dearest, and an unsure one only where there is no other. In the paper's released form a model's answer ends
the task: there the cheapest is asked, and nobody after it.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.tools.answers import ANSWER_TOOL, extract_answer, matches
from orchestra_jax.types import Task, ToolCall, ToolResult

if TYPE_CHECKING:  # that module has its defaults from here
    from orchestra_jax.envs.base import Environment, Script

DO_NOTHING, RANDOM, CHEAPEST_FIRST, EXPERT = "do_nothing", "random", "cheapest_first", "expert/"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_UNSURE = re.compile(
    r"\b(?:(?:do|does|did)(?:n't| not) know|not sure|unsure|uncertain|unknown|no idea|"
    r"(?:can ?not|can't|unable to) (?:answer|determine|say|tell|find|be determined))\b"
)
_EMPTY: Mapping[str, Any] = {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}


@dataclass(frozen=True)
class Baseline:
    """A script as a policy.

    Attributes:
        name: for reports.
        script: what it does.
        silent: nobody speaks its words: they are no tokens and cost nothing, only what it calls does.
    """

    name: str
    script: "Script"
    silent: bool = True


@dataclass(frozen=True)
class Asked:
    """A model that a menu offers to answer the question.

    Attributes:
        name: whatever the menu calls it.
        call: asks it.
    """

    name: str
    call: ToolCall


def copied_call(task: Task, tool: str) -> ToolCall:
    """A call of `tool` whose required arguments need no model: the question, its numbers as a sum for code, a choice
    at random, and of other types the empty value.
    """
    parameters = next(spec.parameters for spec in task.tools if spec.name == tool)
    properties = parameters.get("properties", {})
    return ToolCall(
        tool, {key: _argument(task, key, properties.get(key, {})) for key in parameters.get("required", ())}
    )


def said(result: ToolResult) -> str | None:
    """What a result says as an answer; None: nothing."""
    text = (result.text if result.final is None else result.final).strip()
    return None if result.is_error or result.refused or not text else text


def do_nothing(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    """The empty answer, at once."""
    return ""


def baseline(environment: "Environment", name: str, tasks: Sequence[Task], most: int) -> Baseline:
    """A script of the environment, or one of this module.

    Args:
        tasks: that it will play.
        most: calls that it may make on one of them.

    Raises:
        ConfigError: there is none of this name.
    """
    own = environment.baselines()
    models = list(dict.fromkeys(asked.name for task in tasks for asked in environment.experts(task)))
    scripts = {DO_NOTHING: do_nothing} | of_any(environment, models, most)
    if name not in own and name not in scripts:
        raise ConfigError(
            f"policy=baseline:{name}: there is none; here are {', '.join(dict.fromkeys([*own, *scripts]))}."
        )
    # A world's own way to do nothing, to a user who waits for words, is as silent as that of any other.
    return Baseline(name, own.get(name) or scripts[name], silent=name in scripts or environment.silent_baselines)


def of_any(environment: "Environment", models: Sequence[str], most: int) -> "dict[str, Script]":
    """The scripts of this module that call something.

    Args:
        models: that are asked alone.
        most: calls that a script may make on a task.
    """
    scripts: dict[str, Script] = {RANDOM: partial(_random, environment)}
    if models:
        scripts[CHEAPEST_FIRST] = partial(_cheapest_first, environment, most)
        scripts |= {EXPERT + model: partial(_alone, environment, model) for model in models}
    return scripts


def _random(environment: "Environment", task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    if results:
        return environment.said(results[-1]) or ""
    # What only takes the answer has none to give.
    tools = [spec.name for spec in task.tools if spec.name != ANSWER_TOOL.name or "answer" not in _required(spec)]
    return environment.copied_call(task, tools[int(_rng(task, "").integers(len(tools)))]) if tools else ""


def _alone(environment: "Environment", model: str, task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    if results:
        return environment.said(results[-1]) or ""
    return next((asked.call for asked in environment.experts(task) if asked.name == model), "")


def _cheapest_first(environment: "Environment", most: int, task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    found = [text for result in results if (text := environment.said(result)) is not None]
    sure = [text for text in found if not _UNSURE.search(text.lower())]
    for place, text in enumerate(sure):
        if matches(extract_answer(text), [extract_answer(other) for other in sure[:place]]):
            return text
    ladder = environment.experts(task)[:most]
    if len(results) < len(ladder):
        return ladder[len(results)].call
    return (sure or found or [""])[-1]


def _required(spec: Any) -> Sequence[str]:
    return tuple(spec.parameters.get("required", ()))


def _argument(task: Task, name: str, schema: Mapping[str, Any]) -> Any:
    if choices := schema.get("enum"):
        return choices[int(_rng(task, name).integers(len(choices)))]
    if schema.get("type") in _EMPTY:
        return _EMPTY[schema["type"]]
    if name == "code":
        return " + ".join(_NUMBER.findall(task.question)[:4]) or "0"
    return task.question


def _rng(task: Task, name: str) -> np.random.Generator:
    digest = hashlib.blake2b(f"{task.id}/{name}".encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest))
