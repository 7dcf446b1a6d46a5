"""Policies written by hand for the quickstart world: demonstrations, and baselines that know its odds."""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from orchestra_jax.envs.base import Script
from orchestra_jax.envs.quickstart.facts import EXPERTS, success_probability
from orchestra_jax.envs.quickstart.world import best_tool
from orchestra_jax.tools.search.bm25 import NO_RESULTS
from orchestra_jax.types import Task, ToolCall, ToolResult

NO_IDEA = "unknown"
FAMILY_WORDS = {"arith": "arithmetic", "lookup": "lookup", "easy": "easy", "hard": "hard"}
PREFERENCE_WORDS = {
    "accuracy": "accurate",
    "cost": "cheap",
    "fast": "fast",
    "local": "local",
    "free": "free",
    "cheap_fast": "cheap fast",
    "local_fast": "local fast",
}
CALLS_SHARES = (0.86, 0.11, 0.03)  # demonstrations with one, two and three calls


def think_aloud(task: Task) -> str:
    """Return the demonstrator's thoughts: the kind of question and what the user wants, not what to call."""
    return f"{FAMILY_WORDS[task.family]} {PREFERENCE_WORDS[task.preference.name]}"


def reference_call(task: Task, tool: str) -> ToolCall:
    """Return the call of `tool` whose arguments are copied from the question as well as they can be."""
    argument = {"python": "code", "local_search": "query", "web_search": "query"}.get(tool)
    return ToolCall(tool, {argument: task.extra["keywords"]} if argument else {})


def read_answer(result: ToolResult) -> str | None:
    """Return the answer of an observation: the value of a fact, or the text; None if it says nothing."""
    if result.is_error or result.text == NO_RESULTS:
        return None
    return result.text.rstrip(".").split(" ")[-1] if result.text.endswith(".") else result.text


def answer_from(results: Sequence[ToolResult]) -> str:
    """Return the answer of the last result that says something."""
    return next((answer for result in reversed(results) if (answer := read_answer(result)) is not None), NO_IDEA)


def random_tools(seed: int, *, calls: int | None = None) -> Script:
    """Return a script that calls tools at random (one to three, or `calls`), then answers.

    The format and the arguments are right; the choice of tools carries no information.
    """

    def script(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
        digest = hashlib.blake2b(f"{seed}/{task.id}".encode(), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest))
        count = calls or 1 + int(rng.choice(len(CALLS_SHARES), p=CALLS_SHARES))
        chosen = rng.integers(0, len(task.tools), count)
        if len(results) < count:
            return reference_call(task, task.tools[int(chosen[len(results)])].name)
        return answer_from(results)

    return script


def _one_call(choose: Callable[[Task], str]) -> Script:
    """Return a script that calls the chosen tool once and answers with what it says."""

    def script(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
        return answer_from(results) if results else reference_call(task, choose(task))

    return script


def strongest_expert(task: Task) -> str:
    """Return the largest expert on the menu, else the tool that is likeliest to be right."""
    offered = [spec.name for spec in task.tools if spec.name in EXPERTS]
    if offered:
        return max(offered, key=EXPERTS.index)
    return max(task.tools, key=lambda spec: success_probability(spec.name, task.family)).name


def cheapest_sufficient(task: Task, threshold: float = 0.8) -> str:
    """Return the cheapest tool of at least `threshold` probability to be right, else the likeliest one."""
    able = [spec for spec in task.tools if success_probability(spec.name, task.family) >= threshold]
    if not able:
        return max(task.tools, key=lambda spec: success_probability(spec.name, task.family)).name
    return min(able, key=lambda spec: (spec.price_usd or 0.0, spec.latency_s or 0.0)).name


BASELINES: Mapping[str, Script] = {
    "random_tool": random_tools(0, calls=1),
    "strongest_expert": _one_call(strongest_expert),
    "cheapest_sufficient": _one_call(cheapest_sufficient),
    "preference_oracle": _one_call(best_tool),
}
