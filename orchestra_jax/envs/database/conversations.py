"""Conversations about a database: a user asks, tools change the database, and three criteria decide (`criteria`).

The environments `database` and `toolscale` are made of this: they read their tasks, open their worlds, and replay the
golden calls. `WorldEnvironment` alone is also the base of τ²-Bench.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.data.pipeline import TaskIterator, task_iterator
from orchestra_jax.envs.base import Environment, OfferedExpert, Score, Script, ToolEpisode, initial_messages
from orchestra_jax.envs.claims import untrue
from orchestra_jax.envs.database.criteria import judge
from orchestra_jax.envs.database.golden import Goal, opened
from orchestra_jax.envs.database.session import Session, World
from orchestra_jax.envs.database.workers.pool import WorldError
from orchestra_jax.envs.menus import WorldMenus
from orchestra_jax.envs.users import SCRIPTED, SimulatedUser
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.executor import ToolHandler
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.run_experts import model_client
from orchestra_jax.tools.user_turn import UserTurn
from orchestra_jax.types import InfrastructureError, Preference, Task, ToolCall, ToolResult, Usage

DONE = "Done."
BY_VALUE, BY_JUDGE = "value", "judge"  # who finds the facts in the policy's words
_CLAIM = "The agent told the customer this fact, in whatever words or form, and did not deny it: {}"
SYSTEM = "{rules}\n\nIt is {now}. Speak to the user only when their request is done, or when you have to ask something."


def facts_problems(cfg: WorldConfig, facts: object) -> list[str]:
    """Return one sentence if facts cannot be found as `env.options.facts` says."""
    if facts not in (BY_VALUE, BY_JUDGE):
        return [f"env.options.facts must be {BY_VALUE} or {BY_JUDGE}, not {facts!r}."]
    if facts == BY_JUDGE and cfg.tools.judge == "match":
        return [f"env.options.facts={BY_JUDGE} needs a judge: set tools.judge to a model of the price list."]
    return []


class WorldEnvironment(Environment):
    """Tasks of worlds, posed with the run's menus.

    Args:
        cfg: of the run.
        user: `env.options.user`: "scripted", or the model that plays the user.
        tasks: all tasks, each with the tools of its world.
        held_out: ids of the tasks that no training sees.
        evaluate_all: evaluate all tasks, not only those that are held out.

    Raises:
        ConfigError: a tool of the menus or the user's model cannot be used.
    """

    def __init__(
        self,
        cfg: WorldConfig,
        user: str,
        tasks: Sequence[Task],
        held_out: Set[str],
        *,
        evaluate_all: bool = False,
    ) -> None:
        self._cfg = cfg
        self._training = [task for task in tasks if task.id not in held_out]
        self._evaluation = [task for task in tasks if evaluate_all or task.id in held_out]
        self._largest = max((len(task.tools) for task in tasks), default=0)
        domain = {spec.name for task in tasks for spec in task.tools}
        self._menus = WorldMenus(cfg, sorted(domain), [task.answer[0] for task in tasks[:64]])
        self._closes: list[Callable[[], Awaitable[None]]] = [self._menus.close]
        self._user_model: ExpertClient | None = None
        if user != SCRIPTED:
            self._user_model, close = model_client(cfg, user, "user")
            self._closes.append(close)

    def train_tasks(self, batch_size: int) -> TaskIterator:
        def posed(task: Task, rng: np.random.Generator) -> Task:
            return self._menus.pose(task, int(rng.integers(2**32)), "train")

        return task_iterator(self._training, seed=self._cfg.seed, batch_size=batch_size, build=posed)

    def held_out(self, count: int) -> Sequence[Task]:
        return [self._menus.pose(task, 0, "eval") for task in self._evaluation[:count]]

    def largest_menu(self) -> int:
        return self._largest + self._menus.largest

    def experts(self, task: Task) -> Sequence[OfferedExpert]:
        return self._menus.experts(task)

    async def close(self) -> None:
        await asyncio.gather(*(close() for close in self._closes))


@dataclass(frozen=True)
class GoldenTask:
    """A task that can be used, with its world and what its golden calls lead to.

    Attributes:
        goal: calls and facts of the task.
        world: the domain that it plays in.
        after: the session after the golden calls.
        question: the user's first words.
        family: for reports.
        situation: the text that a model that plays the user is told.
        plan: what a policy does that knows the golden calls and facts.
        requests: what a scripted user says after the first words, in turn.
    """

    goal: Goal
    world: World
    after: Session
    question: str
    family: str
    situation: str
    plan: Sequence[ToolCall | str]
    requests: Sequence[str] = ()

    @property
    def task(self) -> Task:
        """The task with the tools of its world; an expert could answer with the facts."""
        return Task(
            id=self.goal.id,
            question=self.question,
            answer=(", ".join(self.goal.facts) or DONE,),
            tools=tuple(self.world.specs.values()),
            preference=Preference("accuracy", ""),
            family=self.family,
            extra={"task": self.goal.id},
        )

    def play(self, observed: Sequence[ToolResult]) -> ToolCall | str:
        """Return the next step of the plan; after the last one, words until a user who is played leaves."""
        return self.plan[len(observed)] if len(observed) < len(self.plan) else DONE


class SessionEnvironment(WorldEnvironment):
    """Conversations about databases, with a session for each episode.

    Args:
        cfg: of the run.
        user: see `WorldEnvironment`.
        golden: the tasks by id.
        held_out, evaluate_all: see `WorldEnvironment`.
        worlds: are closed with the environment.
        rules: tell the agent the world's rules and the time.
        facts: who finds the facts in the policy's words, BY_VALUE or BY_JUDGE.
    """

    def __init__(
        self,
        cfg: WorldConfig,
        user: str,
        golden: Mapping[str, GoldenTask],
        held_out: Set[str],
        worlds: Sequence[World],
        *,
        evaluate_all: bool = False,
        rules: bool = True,
        facts: str = BY_VALUE,
    ) -> None:
        tasks, judged = [each.task for each in golden.values()], facts == BY_JUDGE
        if judged:  # an evaluation finds what it kept by the task: one that another judges is another task
            tasks = [replace(task, extra={**task.extra, "facts_judge": cfg.tools.judge}) for task in tasks]
        super().__init__(cfg, user, tasks, held_out, evaluate_all=evaluate_all)
        self._golden, self._worlds, self._rules = golden, worlds, rules
        self._judge: ExpertClient | None = None
        if judged:
            self._judge, close = model_client(cfg, cfg.tools.judge, "judge")
            self._closes.append(close)

    def reset(self, task: Task, budget: Budget) -> "DatabaseEpisode":
        golden, user = self._golden[task.extra["task"]], None
        if self._user_model is not None:
            user = SimulatedUser(self._user_model, golden.situation, budget, opening=task.question)
        return DatabaseEpisode(task, golden, self._menus, budget, rules=self._rules, user=user, judge=self._judge)

    def baselines(self) -> Mapping[str, Script]:
        return {
            "golden": lambda task, observed: self._golden[task.extra["task"]].play(observed),
            "do_nothing": lambda task, observed: DONE,  # an empty turn is no answer, and never scored
        }

    async def close(self) -> None:
        for world in self._worlds:
            world.close()
        await super().close()


class DatabaseEpisode(ToolEpisode):
    """One conversation with a session of its own.

    Args:
        task: with the menu of `WorldMenus.pose`.
        golden: the same task with what decides it.
        menus: execute the calls.
        budget: of the trajectory.
        rules: tell the agent the world's rules and the time.
        user: a model that plays the user; None: they say `golden.requests` in turn, and nothing more.
        judge: the model that finds the facts; None: they are found by value.
    """

    def __init__(
        self,
        task: Task,
        golden: GoldenTask,
        menus: WorldMenus,
        budget: Budget,
        *,
        rules: bool = True,
        user: SimulatedUser | None = None,
        judge: ExpertClient | None = None,
    ) -> None:
        self._golden, self._user, self._judge, world = golden, user, judge, golden.world
        self._told = [f"customer: {task.question}"]
        self._judge_budget = budget.parent or budget  # the judge is not the policy's to pay
        self.session = opened(world, golden.goal)
        self._said, self._order = list[str](), asyncio.Lock()
        handlers = {name: self._handler(name) for name in world.specs}
        system = SYSTEM.format(rules=world.policy.strip(), now=f"{world.now:%A, %d %B %Y, %H:%M}") if rules else None
        super().__init__(task, menus.executor(task, handlers, budget), initial_messages(task, system))

    async def respond(self, text: str) -> UserTurn | None:
        turn = None if self._user is None else await self._user.reply(text)
        self._said.append(text)
        if self._user is None and len(self._said) <= len(self._golden.requests):
            turn = UserTurn(self._golden.requests[len(self._said) - 1])
        self._told += [f"agent: {text}"] if turn is None else [f"agent: {text}", f"customer: {turn.text}"]
        return turn

    async def score(self, answer: str) -> Score:
        facts, rows = self._golden.goal.facts, tuple[Usage, ...]()
        verdict = judge(self._golden.after, self.session, facts, self._said)
        if self._judge is not None and facts and not (verdict.differs or verdict.untouched):
            claims = {_CLAIM.format(fact): fact for fact in facts}
            wrong, rows = await untrue(self._judge, list(claims), "\n".join(self._told), self._judge_budget)
            verdict = replace(verdict, unsaid=tuple(claims[claim] for claim in wrong))
        return Score(verdict.solved, rows, verdict.criteria())

    def _handler(self, name: str) -> ToolHandler:
        async def handle(arguments: Mapping[str, object], budget: Budget) -> ToolResult:
            async with self._order:  # calls of one turn change the state in their order
                try:
                    return await self.session.call_async(ToolCall(name, arguments))
                except WorldError as error:  # code that is not ours fails through no fault of the policy
                    raise InfrastructureError(str(error)) from error

        return handle
