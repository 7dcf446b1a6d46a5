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
WORDS = {"arith": "arithmetic", "accuracy": "accurate", "cost": "cheap"}  # other names are words
CALLS_SHARES = (0.86, 0.11, 0.03)  # demonstrations with one, two and three calls


def think_aloud(task: Task) -> str:
    """Return the demonstrator's thoughts: the kind of question and what the user wants, not what to call."""
    return " ".join(WORDS.get(name, name.replace("_", " ")) for name in (task.family, task.preference.name))


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
    return max(offered, key=EXPERTS.index) if offered else _likeliest(task)


def cheapest_sufficient(task: Task, threshold: float = 0.8) -> str:
    """Return the cheapest tool of at least `threshold` probability to be right, else the likeliest one."""
    able = [spec for spec in task.tools if success_probability(spec.name, task.family) >= threshold]
    return min(able, key=lambda spec: (spec.price_usd or 0.0, spec.latency_s or 0.0)).name if able else _likeliest(task)


def _likeliest(task: Task) -> str:
    return max(task.tools, key=lambda spec: success_probability(spec.name, task.family)).name


BASELINES: Mapping[str, Script] = {
    "random_tool": random_tools(0, calls=1),
    "strongest_expert": _one_call(strongest_expert),
    "cheapest_sufficient": _one_call(cheapest_sufficient),
    "preference_oracle": _one_call(best_tool),
}
