"""Demonstrations of the quickstart world: the right format and arguments, tools at random."""

import hashlib
from collections.abc import Sequence

import numpy as np

from orchestra_jax.envs.base import Script
from orchestra_jax.tools.search.local import NO_RESULTS
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
    """What the demonstrator thinks before it acts: the kind of question and what the user wants, not what to call."""
    return f"{FAMILY_WORDS[task.family]} {PREFERENCE_WORDS[task.preference.name]}"


def reference_call(task: Task, tool: str) -> ToolCall:
    """The call of `tool` whose arguments are copied from the question as well as they can be."""
    argument = {"python": "code", "local_search": "query", "web_search": "query"}.get(tool)
    return ToolCall(tool, {argument: task.extra["keywords"]} if argument else {})


def read_answer(result: ToolResult) -> str | None:
    """The answer that an observation gives: the value of a fact, or the text; None if it says nothing."""
    if result.is_error or result.text == NO_RESULTS:
        return None
    return result.text.rstrip(".").split(" ")[-1] if result.text.endswith(".") else result.text


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
            return reference_call(task, task.tools[int(chosen[len(results)])].name)
        return answer_from(results)

    return script
