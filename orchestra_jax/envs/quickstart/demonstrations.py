"""Scripted players of the quickstart world: demonstrations for the warm start, and the baselines.

A script is a function of (task, results so far) that gives the next call, or the answer as a string.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from orchestra_jax.envs.quickstart.environment import good_call, read_answer
from orchestra_jax.envs.quickstart.world import EXPERTS, best_tool, success_probability
from orchestra_jax.types import Task, ToolCall, ToolResult

Script = Callable[[Task, Sequence[ToolResult]], ToolCall | str]
NO_IDEA = "unknown"
FAMILY_WORDS = {"arith": "arithmetic", "lookup": "lookup", "easy": "easy", "hard": "hard"}
WISH_WORDS = {
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
    """What the demonstrator thinks before it acts: the kind of question and what the user wants, not what to call."""
    return f"{FAMILY_WORDS[task.family]} {WISH_WORDS[task.preference.name]}"


def answer_from(results: Sequence[ToolResult]) -> str:
    """The last result that says something."""
    return next((answer for result in reversed(results) if (answer := read_answer(result)) is not None), NO_IDEA)


def random_tools(seed: int, *, calls: int | None = None) -> Script:
    """Calls tools of the menu at random (one to three, or `calls`), with well-copied arguments, then answers.

    The format and the arguments are right; the choice of tools carries no information.
    """

    def script(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
        digest = hashlib.blake2b(f"{seed}/{task.id}".encode(), digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest))
        count = calls or 1 + int(rng.choice(len(CALLS_SHARES), p=CALLS_SHARES))
        chosen = rng.integers(0, len(task.tools), count)
        if len(results) < count:
            return good_call(task, task.tools[int(chosen[len(results)])].name)
        return answer_from(results)

    return script


def _one_call(choose: Callable[[Task], str]) -> Script:
    """Calls the chosen tool once and answers with what it says."""

    def script(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
        return answer_from(results) if results else good_call(task, choose(task))

    return script


def strongest_expert(task: Task) -> str:
    """The largest expert on the menu, else the tool that is likeliest to be right."""
    offered = [spec.name for spec in task.tools if spec.name in EXPERTS]
    if offered:
        return max(offered, key=EXPERTS.index)
    return max(task.tools, key=lambda spec: success_probability(spec.name, task.family)).name


def cheapest_sufficient(task: Task, threshold: float = 0.8) -> str:
    """The cheapest tool that is right with at least `threshold` probability, else the one likeliest to be right."""
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
