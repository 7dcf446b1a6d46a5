"""The pieces of policies by hand: priced experts of a menu, and generators that yield calls."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from orchestra_jax.envs.base import OfferedExpert, Script
from orchestra_jax.envs.recorded.offer import PYTHON, code_of
from orchestra_jax.types import Task, ToolCall, ToolResult

NEAR = 0.08  # accuracy that a cheaper model may lack
WORTH_USD = 0.01  # the rate at which a right answer is exchanged for money


@dataclass(frozen=True)
class PricedExpert(OfferedExpert):
    """A model of a menu, with the cost of asking it.

    Attributes:
        usd: mean dollars of a call like those of the training split, by the instance's prices.
        seconds: mean seconds of such a call.
    """

    usd: float
    seconds: float


Offered = Callable[[Task], Sequence[PricedExpert]]  # the models of a menu, the cheapest first
AnswerOf = Callable[[ToolResult], str | None]
# Yields calls, is sent what each of them says (None: nothing), and returns the answer.
Asking = Generator[ToolCall, str | None, str]
Policy = Callable[[Task], Asking]


def scripted(policy: Policy, said: AnswerOf) -> Script:
    """Return a policy as a script, which keeps nothing: each time the policy begins anew with all results so far."""

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
    """Answer with what one call says."""
    return (yield call) or ""


def code_run(task: Task, then: Policy) -> Asking:
    """Run the code of the question if there is some and a sandbox; if that says nothing, go on with `then`."""
    if code_of(task.question) is not None and any(spec.name == PYTHON for spec in task.tools):
        shown = yield ToolCall(PYTHON, {})
        if shown is not None:
            return shown
    return (yield from then(task))


def best(choices: Sequence[PricedExpert], shares: Sequence[float]) -> PricedExpert:
    """Return the expert that is right most often by `shares`, of equals the cheapest."""
    return max(zip(shares, choices, strict=True), key=lambda pair: pair[0])[1]


def near(choices: Sequence[PricedExpert], shares: Sequence[float], margin: float = NEAR) -> list[PricedExpert]:
    """Return the experts within `margin` of the best, the cheapest first."""
    most = max(shares)
    return [each for each, share in zip(choices, shares, strict=True) if share >= most - margin]


def wished(task: Task, wish: str | None) -> str:
    """Return "accuracy", "low_cost", "fast", or another word for none: `wish`, or where it is None the task's."""
    preference = task.preference
    return (preference.name if preference.instruction else "") if wish is None else wish


def chosen(choices: Sequence[PricedExpert], shares: Sequence[float], wanted: str) -> PricedExpert:
    """Return the expert that serves a wish, where `shares` tell how probably each is right.

    "accuracy": the most probably right one; "low_cost", "fast": the cheapest or fastest within `NEAR` of it; else that
    of most value: `WORTH_USD` for a right answer less the call's cost.
    """
    if wanted == "accuracy":
        return best(choices, shares)
    if wanted == "low_cost":
        return near(choices, shares)[0]
    if wanted == "fast":
        return min(near(choices, shares), key=lambda choice: choice.seconds)
    return best(choices, [WORTH_USD * p - choice.usd for p, choice in zip(shares, choices, strict=True)])
