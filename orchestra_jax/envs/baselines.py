"""Baselines of any environment: scripts that need no model, made of what its menus offer and its results say.

`do_nothing` gives the empty answer; where a user waits for words, the environment has one of that name that speaks.
`random` calls one tool of the menu at random and answers with what it says. `expert/NAME` asks that model the question,
and its answer is the answer; a menu without that model has no such baseline.

`cheapest_first` asks the menu's models in the order of their prices. It ends with the first answer that two of them
agree on; one that is empty, an error or unsure ("I don't know") counts for nothing. Where no two agree, the answer is
that of the dearest, and an unsure one only where there is no other. In the paper's released form a model's answer ends
the task: there the cheapest is asked, and nobody after it.
"""

import re
from collections.abc import Sequence
from functools import partial

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.base import (
    CHEAPEST_FIRST,
    DO_NOTHING,
    EXPERT,
    RANDOM,
    Baseline,
    Environment,
    Script,
    do_nothing,
)
from orchestra_jax.envs.copying import task_rng
from orchestra_jax.types import Task, ToolCall, ToolResult

_UNSURE = re.compile(
    r"\b(?:(?:do|does|did)(?:n't| not) know|not sure|unsure|uncertain|unknown|no idea|"
    r"(?:can ?not|can't|unable to) (?:answer|determine|say|tell|find|be determined))\b"
)


def baseline(environment: Environment, name: str, tasks: Sequence[Task], most: int) -> Baseline:
    """Return a script of the environment, or one of this module.

    Args:
        tasks: tasks that it will play.
        most: most calls on one of them.

    Raises:
        ConfigError: there is none of this name.
    """
    own = environment.baselines()
    models = list(dict.fromkeys(expert.name for task in tasks for expert in environment.experts(task)))
    scripts = {DO_NOTHING: do_nothing} | calling_scripts(environment, models, most)
    if name not in own and name not in scripts:
        raise ConfigError(
            f"policy=baseline:{name}: there is none; here are {', '.join(dict.fromkeys([*own, *scripts]))}."
        )
    # A world's own way to do nothing, to a user who waits for words, is as silent as that of any other.
    return Baseline(name, own.get(name) or scripts[name], silent=name in scripts or environment.silent_baselines)


def calling_scripts(environment: Environment, models: Sequence[str], most: int) -> dict[str, Script]:
    """Return the scripts of this module that call something.

    Args:
        models: models that are asked alone.
        most: most calls of a script on a task.
    """
    scripts: dict[str, Script] = {RANDOM: partial(_random, environment)}
    if models:
        scripts[CHEAPEST_FIRST] = partial(_cheapest_first, environment, most)
        scripts |= {EXPERT + model: partial(_alone, environment, model) for model in models}
    return scripts


def _random(environment: Environment, task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    if results:
        return environment.said(task, results[-1]) or ""
    # What only takes the answer has none to give.
    tools = [
        spec.name
        for spec in task.tools
        if not spec.terminal or "model" in spec.parameters.get("required", ())  # what only ends the task is no call
    ]
    return environment.copied_call(task, tools[int(task_rng(task, "/").integers(len(tools)))]) if tools else ""


def _alone(environment: Environment, model: str, task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    if results:
        return environment.said(task, results[-1]) or ""
    return next((expert.call for expert in environment.experts(task) if expert.name == model), "")


def _cheapest_first(environment: Environment, most: int, task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    from orchestra_jax.tools.answers import extract_answer, matches

    found = [text for result in results if (text := environment.said(task, result)) is not None]
    sure = [text for text in found if not _UNSURE.search(text.lower())]
    for place, text in enumerate(sure):
        if matches(extract_answer(text), [extract_answer(other) for other in sure[:place]]):
            return text
    ladder = environment.experts(task)[:most]
    if len(results) < len(ladder):
        return ladder[len(results)].call
    return (sure or found or [""])[-1]
