"""Policies written by hand for the quickstart world: demonstrations, and baselines that know its odds."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from orchestra_jax.envs.base import Script
from orchestra_jax.envs.quickstart.facts import EXPERTS, original
from orchestra_jax.envs.quickstart.plans import best_plan, cheapest_sufficient
from orchestra_jax.tools.search.bm25 import NO_RESULTS
from orchestra_jax.types import Task, ToolCall, ToolResult, ToolSpec

NO_IDEA = "unknown"
MORE = "first"  # said of a step that is not the last: to go on or to end is read off the question, not off a result
WORDS = {"arith": "arithmetic", "accuracy": "accurate", "cost": "cheap"}  # other names are words


def read_answer(result: ToolResult) -> str | None:
    """Return the answer of an observation: the value of a fact, or the text; None if it says nothing."""
    if result.is_error or result.text == NO_RESULTS:
        return None
    words = result.text.removesuffix(".").split(" ")
    return " ".join(words[-2:] if "boss" in words else words[-1:])


def answer_from(results: Sequence[ToolResult]) -> str:
    """Return the answer of the last result that says something."""
    return next((answer for result in reversed(results) if (answer := read_answer(result)) is not None), NO_IDEA)


def next_step(task: Task, results: Sequence[ToolResult]) -> tuple[str, str] | None:
    """Return the kind of the step that comes after these results, and the words for its tool; None: it is time to end.

    A result that says nothing ends it too: nothing is known that would do better.
    """
    found, steps = [read_answer(result) for result in results], task.extra["steps"]
    if None in found or len(found) >= len(steps):
        return None
    kind, words = steps[len(found)]
    return kind, words.format(*found)


def reference_call(task: Task, tool: str, results: Sequence[ToolResult] = ()) -> ToolCall:
    """Return the call of `tool` whose arguments are copied from the question and the results; empty when it is over."""
    arguments = next((list(spec.parameters["properties"]) for spec in task.tools if spec.name == tool), [])
    step = next_step(task, results)
    return ToolCall(tool, dict.fromkeys(arguments, step[1] if step else ""))


def figure(task: Task, spec: ToolSpec) -> int | None:
    """Return the figure of the menu that the wish is about, cents or seconds; None if it is about neither."""
    figures = {"cost": 100 * (spec.price_usd or 0.0), "fast": spec.latency_s or 0.0}
    return round(figures[task.preference.name]) if task.preference.name in figures else None


def considered(seed: int, task: Task, results: Sequence[ToolResult]) -> list[ToolSpec]:
    """Draw the two tools of the menu that a demonstration compares before its next call."""
    digest = hashlib.blake2b(f"{seed}/{task.id}/{len(results)}".encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(digest))
    return [task.tools[place] for place in rng.permutation(len(task.tools))[:2]]


def think_aloud(seed: int, task: Task, results: Sequence[ToolResult]) -> str:
    """Return the demonstrator's thoughts: whether more steps follow, the next one, the wish, and what it compares."""
    if (step := next_step(task, results)) is None:
        return ""
    said = [MORE] if len(results) + 1 < len(task.extra["steps"]) else []
    offers = [(spec.name, figure(task, spec)) for spec in considered(seed, task, results)]
    told = [f"{name} {number}" for name, number in offers if number is not None]
    return " ".join([*(WORDS.get(name, name) for name in (*said, step[0], task.preference.name)), *told])


def reads_menu(task: Task, said: str, tool: str) -> bool | None:
    """Return whether a turn tells figures as the menu has them and calls the lowest; None: it tells none."""
    words = said.partition("<think> ")[2].partition("</think>")[0].split(" ")
    told = {name: number for name, number in pairwise(words) if number.isdigit()}
    if not told:
        return None
    offered = {spec.name: str(figure(task, spec)) for spec in task.tools}
    true = all(offered.get(name) == number for name, number in told.items())
    return true and tool in told and int(told[tool]) == min(map(int, told.values()))


def _walk(choose: Callable[[Task, Sequence[ToolResult]], str]) -> Script:
    """Return a script that takes step after step with the chosen tool, and answers with what the last one says."""

    def script(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
        done = next_step(task, results) is None
        return answer_from(results) if done else reference_call(task, choose(task, results), results)

    return script


def shown_tools(seed: int, *, heed: bool = True) -> Script:
    """Return the script of demonstrations: of two random tools it takes what the wish prefers; without `heed` any."""

    def rank(task: Task, spec: ToolSpec) -> float:
        return (figure(task, spec) or (task.preference.name == "local" and not spec.local)) if heed else 0

    return _walk(lambda task, results: min(considered(seed, task, results), key=lambda spec: rank(task, spec)).name)


def strongest_expert(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    """Ask the largest expert on the menu, else take the first steps of the cheapest sufficient plan."""
    if not (offered := [spec for spec in task.tools if original(spec) in EXPERTS]):
        return BASELINES["cheapest_sufficient"](task, results)
    strongest = max(offered, key=lambda spec: EXPERTS.index(original(spec)))
    return answer_from(results) if results else reference_call(task, strongest.name)


BASELINES: Mapping[str, Script] = {
    "random_tool": shown_tools(0, heed=False),
    "strongest_expert": strongest_expert,
    "cheapest_sufficient": _walk(lambda task, results: cheapest_sufficient(task)[len(results)]),
    "preference_oracle": _walk(lambda task, results: best_plan(task)[len(results)]),
}
