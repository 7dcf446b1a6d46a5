"""The referee of a task: it plays the golden calls beside the policy's, turn by turn.

The policy has answered a turn of the user if three things hold when it speaks again: the APIs are in the state that the
golden calls lead to; all results of the turn's golden calls were read by the policy by now; and the policy called
something in this turn. A turn without golden calls asks nothing. A task is solved when all its turns are answered; one
that ended before is not.
"""

from collections import Counter
from collections.abc import Sequence

from orchestra_jax.envs.bfcl.apis import EpisodeApis
from orchestra_jax.envs.bfcl.package import BFCLScenario
from orchestra_jax.types import ToolCall, ToolResult

DONE = "Done."  # what a golden policy says to the user


class TurnReferee:
    """A referee with APIs of its own, on which it plays the golden calls.

    Attributes:
        answered: for each turn so far, whether the policy answered it.
    """

    def __init__(self, scenario: BFCLScenario) -> None:
        self._scenario, self._apis = scenario, EpisodeApis(scenario)
        self.answered: list[bool] = []

    def judge(self, apis: EpisodeApis, said: Sequence[str], calls: int) -> None:
        """Note in `answered` whether the policy has answered the next turn.

        Args:
            apis: the policy's.
            said: all results of its calls so far.
            calls: number of its calls in this turn.
        """
        golden = self._scenario.golden[len(self.answered)]
        wanted = [self._apis.call(call).text for call in golden]
        right = calls > 0 and not Counter(wanted) - Counter(said) and apis.same(self._apis)
        self.answered.append(right or not golden)

    @property
    def solved(self) -> bool:
        """Return whether every turn was answered."""
        return len(self.answered) == len(self._scenario.golden) and all(self.answered)


def problem(scenario: BFCLScenario) -> str | None:
    """Return why a task cannot be used (a golden call is not on the menu of its turn, or is an error), or None."""
    apis = EpisodeApis(scenario)
    for turn, calls in enumerate(scenario.golden):
        menu = {spec.name for spec in scenario.offered(turn)}
        for call in calls:
            if call.name not in menu:
                return f"turn {turn + 1}: {call.name} is not on the menu"
            result = apis.call(call)
            if result.is_error:
                return f"turn {turn + 1}: {call.name}: {result.text}"
    return None


def play(scenario: BFCLScenario, observed: Sequence[ToolResult]) -> ToolCall | str:
    """Make the golden calls one by one, and speak to the user after those of a turn; see `envs.base.Script`."""
    plan: list[ToolCall | str] = []
    for turn in scenario.golden:
        plan += [*turn, DONE]
    return plan[len(observed)]
