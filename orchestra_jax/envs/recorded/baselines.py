"""Policies by hand on recorded answers; what they know of the models, the training split told them.

Beside those of every environment (`envs.by_hand`: each expert alone, random, cheapest_first). `oracle` is no policy: it
knows who is right.
"""

from collections.abc import Callable, Mapping, Sequence

from orchestra_jax.envs.base import Script
from orchestra_jax.envs.by_hand import Asked
from orchestra_jax.envs.recorded.evidence import Evidence
from orchestra_jax.envs.recorded.offer import PYTHON, code_of
from orchestra_jax.envs.recorded.table import Recording
from orchestra_jax.types import Task, ToolCall, ToolResult

Offered = Callable[[Task], Sequence[Asked]]  # the models of a menu, the cheapest first
Said = Callable[[ToolResult], str | None]


def baselines(
    offered: Offered, said: Said, evidence: Mapping[str, Evidence], recording: Recording
) -> dict[str, Script]:
    """The scripts by name.

    `best`: the model that was right most often in training, of equals the cheapest; `best_per_family`: the same on
    questions of this kind (it is told the kind); `cheapest`: the cheapest of the menu; `code_first`: runs the code
    where the question has some, else asks as `best_per_family`; `code_then_cheapest_good`: asks the cheapest model
    within 8 points of the best of the kind instead; `oracle`: the code, else the cheapest that is right.
    """

    def best(task: Task) -> ToolCall:
        return max(offered(task), key=lambda asked: evidence[asked.name].accuracy).call

    def of_family(task: Task) -> ToolCall:
        return max(offered(task), key=lambda asked: evidence[asked.name].by_family[task.family]).call

    def good(task: Task) -> ToolCall:
        shares = [(evidence[asked.name].by_family[task.family], asked.call) for asked in offered(task)]
        most = max(share for share, _ in shares)
        return next(call for share, call in shares if share >= most - 0.08)

    def cheapest(task: Task) -> ToolCall:
        return offered(task)[0].call

    def oracle(task: Task) -> ToolCall:
        models = offered(task)
        right = [each.call for each in models if recording.records[each.name][task.extra["question"]].correct]
        return right[0] if right else models[0].call

    def one_call(choose: Callable[[Task], ToolCall], code: bool = False) -> Script:
        def script(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
            runs = code and code_of(task.question) is not None and any(spec.name == PYTHON for spec in task.tools)
            if results and (answer := said(results[-1])) is not None:
                return answer
            if runs and not results:
                return ToolCall(PYTHON, {})
            return choose(task) if len(results) <= runs and offered(task) else ""

        return script

    return {
        "best": one_call(best),
        "best_per_family": one_call(of_family),
        "cheapest": one_call(cheapest),
        "code_first": one_call(of_family, code=True),
        "code_then_cheapest_good": one_call(good, code=True),
        "oracle": one_call(oracle, code=True),
    }
