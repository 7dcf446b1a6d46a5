"""The environment `bfcl`: the multi-turn tasks of BFCL as conversations.

Settings (`env.options`): `sets`, some of `package.SETS`, all of them by default; `evaluate`, "held_out" (a quarter of
the scenarios, which no training sees) or "all" (a benchmark). A scenario has a variant in each set, and all of its
variants are on one side.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.data.pipeline import TaskIterator, task_iterator
from orchestra_jax.envs.base import Environment, Script, ToolEpisode, initial_messages
from orchestra_jax.envs.bfcl import package
from orchestra_jax.envs.bfcl.apis import EpisodeApis
from orchestra_jax.envs.bfcl.package import SETS, BFCLScenario
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.executor import ToolExecutor, ToolHandler
from orchestra_jax.tools.schema import to_openai
from orchestra_jax.tools.user_turn import UserTurn
from orchestra_jax.types import Preference, Task, ToolCall, ToolResult, ToolSpec

DONE = "Done."  # what a golden policy says to the user


class TurnReferee:
    """The referee of a task: it plays the golden calls on APIs of its own beside the policy's, turn by turn.

    The policy has answered a turn of the user if three things hold when it speaks again: the APIs are in the state that
    the golden calls lead to; all results of the turn's golden calls were read by the policy by now; and the policy
    called something in this turn. A turn without golden calls asks nothing. A task is solved when all its turns are
    answered; one that ended before is not.

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


SYSTEM = (
    "Do what the user asks with the tools. Call them until the request is done, then say so. Where a tool or a value "
    "that you need is missing, say what is missing instead of guessing."
)
MORE_TOOLS = "These tools are there now too:\n{tools}\nTry again with them."
_EVERY = 4  # one scenario of so many is held out
_OPTIONS: Mapping[str, Any] = {"sets": list(SETS), "evaluate": "held_out"}


class BFCLEpisode(ToolEpisode):
    """One conversation: the user's words are given, the APIs are the episode's own."""

    def __init__(self, task: Task, scenario: BFCLScenario, budget: Budget) -> None:
        self._scenario, self._budget = scenario, budget
        self._apis, self._referee = EpisodeApis(scenario), TurnReferee(scenario)
        self._said: list[str] = []
        self._calls = 0  # number in this turn
        super().__init__(task, self._executor_of(scenario.offered(0)), initial_messages(task, SYSTEM))
        self.tools = scenario.offered(0)

    async def respond(self, text: str) -> UserTurn | None:
        self._referee.judge(self._apis, self._said, self._calls)
        turn, self._calls = len(self._referee.answered), 0
        if turn == len(self._scenario.words):
            return None
        before, self.tools = self.tools, self._scenario.offered(turn)
        self._executor = self._executor_of(self.tools)
        words = self._scenario.words[turn]
        if words is not None:
            return UserTurn(words)
        new = [spec for spec in self.tools if spec not in before]
        return UserTurn(MORE_TOOLS.format(tools="\n".join(json.dumps(to_openai(spec)) for spec in new)))

    async def score(self, answer: str) -> bool:
        # The policy's words are not compared: the referee has seen what every turn did.
        return self._referee.solved

    def _executor_of(self, tools: Sequence[ToolSpec]) -> ToolExecutor:
        # An argument is judged by the API, as in the package's harness: one golden call breaks the schema of its tool.
        lenient = [replace(spec, parameters={"type": "object"}) for spec in tools]
        return ToolExecutor(lenient, {spec.name: self._handler(spec.name) for spec in tools}, self._budget)

    def _handler(self, name: str) -> ToolHandler:
        async def handle(arguments: Mapping[str, object], budget: Budget) -> ToolResult:
            # Nothing is awaited: calls of one turn change the state in their order.
            result = self._apis.call(ToolCall(name, arguments))
            self._said.append(result.text)
            self._calls += 1
            return result

        return handle


class BFCLEnvironment(Environment):
    """Conversations of BFCL's tasks.

    Attributes:
        unusable: id of each task that is left out -> why.
    """

    def __init__(self, cfg: WorldConfig) -> None:
        options = {**_OPTIONS, **cfg.env.options}
        if wrong := self.problems(cfg):
            raise ConfigError("\n".join(wrong))
        found = [scenario for kind in options["sets"] for scenario in package.scenarios(kind)]
        reasons = {scenario.id: problem(scenario) for scenario in found}
        self.unusable = {name: reason for name, reason in reasons.items() if reason}
        self._scenarios = {scenario.id: scenario for scenario in found if scenario.id not in self.unusable}
        tasks = [_task(scenario) for scenario in self._scenarios.values()]
        held_out = [self._scenarios[task.id].number % _EVERY == 0 for task in tasks]
        self._training = [task for task, out in zip(tasks, held_out, strict=True) if not out]
        everything = options["evaluate"] == "all"
        self._evaluation = [task for task, out in zip(tasks, held_out, strict=True) if out or everything]
        self._seed = cfg.seed
        for name, reason in self.unusable.items():
            print(f"BFCL: {name} is left out: {reason}", flush=True)

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        options = {**_OPTIONS, **cfg.env.options}
        found = [] if package.folder() else [f"{package.MISSING}."]
        if unknown := sorted(options.keys() - _OPTIONS.keys()):
            found.append(f"env.options of BFCL are {', '.join(_OPTIONS)}, not {', '.join(unknown)}.")
        sets = options["sets"]
        if not isinstance(sets, Sequence) or isinstance(sets, str) or not sets or set(sets) - set(SETS):
            found.append(f"env.options.sets must be some of {', '.join(SETS)}, not {sets}.")
        if options["evaluate"] not in ("held_out", "all"):
            found.append(f"env.options.evaluate must be held_out or all, not {options['evaluate']}.")
        if cfg.tools.relay:
            found.append("BFCL compares states, and no answer that could be handed over: set tools.relay=false.")
        return found

    def train_tasks(self, batch_size: int) -> TaskIterator:
        return task_iterator(self._training, seed=self._seed, batch_size=batch_size)

    def held_out(self, count: int) -> Sequence[Task]:
        return self._evaluation[:count]

    def reset(self, task: Task, budget: Budget) -> BFCLEpisode:
        return BFCLEpisode(task, self._scenarios[task.id], budget)

    def largest_menu(self) -> int:
        return max((len(scenario.tools) for scenario in self._scenarios.values()), default=0)

    def baselines(self) -> Mapping[str, Script]:
        return {
            "golden": lambda task, observed: play(self._scenarios[task.id], observed),
            "do_nothing": lambda task, observed: DONE,
        }


def _task(scenario: BFCLScenario) -> Task:
    return Task(
        id=scenario.id,
        question=scenario.words[0] or "",
        answer=(),  # a state decides, no words
        tools=scenario.tools,
        preference=Preference("accuracy", ""),
        family=scenario.kind,
    )
