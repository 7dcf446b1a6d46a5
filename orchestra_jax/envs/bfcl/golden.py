"""What solves a task: the golden calls beside the policy's, turn by turn.

A turn of the user's is answered when, as the policy speaks again, the APIs are in the state that the golden calls lead
to, all that the golden calls of the turn said was said to the policy by now, and the policy called something where
they do. A turn without golden calls asks nothing. A task is solved when all its turns are answered; one that ended
before is not.
"""

from collections import Counter
from collections.abc import Sequence

from orchestra_jax.envs.bfcl.apis import Apis
from orchestra_jax.envs.bfcl.package import Scenario
from orchestra_jax.types import ToolCall, ToolResult

DONE = "Done."  # what a golden policy says to the user


class Referee:
    """Plays the golden calls on APIs of its own, and compares."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self._apis = scenario, Apis(scenario)
        self.answered: list[bool] = []

    def judge(self, apis: Apis, said: Sequence[str], calls: int) -> None:
        """Whether the next turn is answered; see `answered`.

        Args:
            apis: the policy's.
            said: all results of its calls so far.
            calls: how many it made in this turn.
        """
        golden = self._scenario.golden[len(self.answered)]
        wanted = [self._apis.call(call).text for call in golden]
        right = calls > 0 and not Counter(wanted) - Counter(said) and apis.same(self._apis)
        self.answered.append(right or not golden)

    @property
    def solved(self) -> bool:
        return len(self.answered) == len(self._scenario.golden) and all(self.answered)


def problem(scenario: Scenario) -> str | None:
    """Why a task cannot be used: its golden calls are not on the menu of their turn, or one of them is an error."""
    apis = Apis(scenario)
    for turn, calls in enumerate(scenario.golden):
        menu = {spec.name for spec in scenario.offered(turn)}
        for call in calls:
            if call.name not in menu:
                return f"turn {turn + 1}: {call.name} is not on the menu"
            result = apis.call(call)
            if result.is_error:
                return f"turn {turn + 1}: {call.name}: {result.text}"
    return None


def play(scenario: Scenario, observed: Sequence[ToolResult]) -> ToolCall | str:
    """A script that makes the golden calls one by one and speaks to the user after those of a turn."""
    plan: list[ToolCall | str] = []
    for turn in scenario.golden:
        plan += [*turn, DONE]
    return plan[len(observed)]
