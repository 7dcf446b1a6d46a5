"""What a policy by hand chooses among, and how one that asks several tools is written."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from orchestra_jax.envs.base import Script
from orchestra_jax.envs.baselines import Asked
from orchestra_jax.envs.recorded.offer import PYTHON, code_of
from orchestra_jax.types import Task, ToolCall, ToolResult

NEAR = 0.08  # accuracy that a cheaper model may lack


@dataclass(frozen=True)
class Choice(Asked):
    """A model of a menu.

    Attributes:
        usd: dollars of a call like those of the training split, by the instance's prices.
        seconds: the mean of such a call.
    """

    usd: float
    seconds: float


Offered = Callable[[Task], Sequence[Choice]]  # the models of a menu, the cheapest first
AnswerOf = Callable[[ToolResult], str | None]
# Yields calls, is sent what each says (None: nothing), and returns the answer.
Asking = Generator[ToolCall, str | None, str]
Policy = Callable[[Task], Asking]


def scripted(policy: Policy, said: AnswerOf) -> Script:
    """A policy as a script, which keeps nothing between calls: it is begun anew and told what was said so far."""

    def script(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
        asking = policy(task)
        try:
            call = next(asking)
            for result in results:
                call = asking.send(said(result))
        except StopIteration as end:
            return str(end.value)
        return call

    return script


def ask(call: ToolCall) -> Asking:
    """The answer is what one call says."""
    return (yield call) or ""


def code_run(task: Task, then: Policy) -> Asking:
    """Runs the code of the question, where it has some and the menu the sandbox; if that says nothing, asks `then`."""
    if code_of(task.question) is not None and any(spec.name == PYTHON for spec in task.tools):
        shown = yield ToolCall(PYTHON, {})
        if shown is not None:
            return shown
    return (yield from then(task))


def best(choices: Sequence[Choice], shares: Sequence[float]) -> Choice:
    """The one that is right most often by `shares`, of equals the cheapest."""
    return max(zip(shares, choices, strict=True), key=lambda pair: pair[0])[1]


def near(choices: Sequence[Choice], shares: Sequence[float], margin: float = NEAR) -> list[Choice]:
    """Those within `margin` of the best, the cheapest first."""
    most = max(shares)
    return [each for each, share in zip(choices, shares, strict=True) if share >= most - margin]
