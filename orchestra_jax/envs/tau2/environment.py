"""The tasks of τ²-Bench as conversations.

Settings (`env.options`): `domains`, some of airline, retail, telecom and banking; `source`, "wheel" (the package's
tasks) or "original" (those of `original`, a folder with an airline and a shop); `user`, "scripted" or the model that
plays the user, with `user_is_policy` if it may be the policy itself; `evaluate`, "held_out" (the test split, which no
training sees) or "all" (a benchmark); `max_errors`, failed calls that end a task unsolved, null for any number.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.data.pipeline import TaskIterator, task_iterator
from orchestra_jax.envs.base import Environment, Score, Script, ToolEpisode, initial_messages
from orchestra_jax.envs.baselines import Asked
from orchestra_jax.envs.menus import WorldMenus, without_judge
from orchestra_jax.envs.tau2 import package, scripted
from orchestra_jax.envs.tau2.claims import Claims
from orchestra_jax.envs.tau2.criteria import CLAIMS, Record, Replay, judge, replay
from orchestra_jax.envs.tau2.tasks import AGENT, ORIGINAL, SOURCES, TEST, USER, WHEEL, Scenario, scenarios
from orchestra_jax.envs.tau2.world import HAND_OVER, World
from orchestra_jax.envs.users import GREETING, SCRIPTED, SimulatedUser, user_forecast, user_problems
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.forecast import dry_run
from orchestra_jax.money.price_book import price_book
from orchestra_jax.tools.build import judge_client, user_client
from orchestra_jax.tools.executor import ToolHandler
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.types import Preference, Task, ToolCall, ToolResult, Usage, UserTurn

_OPTIONS: Mapping[str, Any] = {
    "domains": ["airline", "retail", "telecom"],
    "source": WHEEL,
    "original": None,
    "user": SCRIPTED,
    "user_is_policy": False,
    "evaluate": "held_out",
    "max_errors": 10,
}
_ORIGINALS = ("airline", "retail")


@dataclass(frozen=True)
class Shared:
    """What the episodes of a run share.

    Attributes:
        menus: of all tasks.
        max_errors: see the module.
        user: plays the users; None: they are scripted.
        claims: the judge of NL_ASSERTION; None: the facts count instead.
    """

    menus: WorldMenus
    max_errors: int | None
    user: ExpertClient | None = None
    claims: Claims | None = None


class Tau2Episode(ToolEpisode):
    """One conversation."""

    def __init__(
        self, task: Task, scenario: Scenario, world: World, golden: Replay, shared: Shared, budget: Budget
    ) -> None:
        self._scenario, self._world, self._golden, self._shared = scenario, world, golden, shared
        self._desk, self._record, self._payer = world.open(scenario.start), Record(), budget.parent or budget
        self._scripted = scripted.ScriptedUser(world, scenario, self._desk)
        self._simulated = None if shared.user is None else self._simulation(shared.user, budget)
        handlers = {spec.name: self._handler(spec.name) for spec in world.specs[AGENT]}
        super().__init__(task, shared.menus.executor(task, handlers, budget), initial_messages(task, world.system))

    def _simulation(self, client: ExpertClient, budget: Budget) -> SimulatedUser:
        tools = self._world.specs[USER]
        system = package.guidelines(bool(tools), self._scenario.situation)
        return SimulatedUser(client, self._scenario.situation, budget, system=system, tools=tools, act=self._users_call)

    async def respond(self, text: str) -> UserTurn:
        """What the user says; words with a stop word are the last."""
        if self._simulated is not None:
            turn = await self._simulated.reply(text)
        else:
            handed_over = any(call.name == HAND_OVER for call in self._record.made[AGENT])
            turn, made = self._scripted.reply(text, handed_over)
            self._record.made[USER] += made
        self._record.said.append(text)
        self._record.told += [f"agent: {text}", f"customer: {turn.text}"]
        return turn

    async def score(self, answer: str) -> Score:
        """See `criteria`; every word of the policy was said to the user."""
        claims, untrue = self._shared.claims, None
        rows: tuple[Usage, ...] = ()
        if claims is not None and CLAIMS in self._scenario.basis:
            told = "\n".join([f"customer: {self.task.question}", *self._record.told])
            untrue, rows = await claims.untrue(self._scenario.claims, told, self._payer)
        found = judge(
            self._world, self._scenario, self._golden.state, self._desk, self._record, self._shared.max_errors, untrue
        )
        return Score(not any(found.values()), rows, found)

    def _users_call(self, call: ToolCall) -> str:
        result = self._desk.call(USER, call)
        if not result.is_error:
            self._record.made[USER].append(call)
        return result.text

    def _handler(self, name: str) -> ToolHandler:
        async def handle(arguments: Mapping[str, object], budget: Budget) -> ToolResult:
            # Nothing is awaited: calls of one turn change the domain in their order.
            call = ToolCall(name, arguments)
            result = self._desk.call(AGENT, call)
            self._record.errors += result.is_error
            self._record.told.append(f"agent calls {name} with {json.dumps(dict(arguments))}: {result.text}")
            if not result.is_error:
                self._record.made[AGENT].append(call)
            return result

        return handle


class Tau2Environment(Environment):
    """See the module.

    Attributes:
        unusable: id of each task that is left out -> why.
        may_fail: id of each task with golden calls that fail -> a sentence for each of them; they fail for the policy
            too, and the task can be used.
    """

    def __init__(self, cfg: WorldConfig) -> None:
        options = {**_OPTIONS, **cfg.env.options}
        if wrong := self.problems(cfg):
            raise ConfigError("\n".join(wrong))
        source, original = options["source"], options["original"]
        self._worlds = {name: World(name, source, original) for name in options["domains"]}
        found = [scenario for name in options["domains"] for scenario in scenarios(name, source, original)]
        self._golden = {each.id: replay(self._worlds[each.domain], each) for each in found}
        self.unusable = {name: each.unusable for name, each in self._golden.items() if each.unusable}
        self.may_fail = {name: each.failed for name, each in self._golden.items() if each.failed}
        self._scenarios = {each.id: each for each in found if each.id not in self.unusable}
        # What is kept of an evaluation is found again by its task: another user's is another one.
        told = {key: options[key] for key in ("source", "user", "max_errors")} | {"judge": cfg.tools.judge}
        tasks = [_task(each, self._worlds[each.domain], told) for each in self._scenarios.values()]
        held_out = [self._scenarios[task.id].split == TEST for task in tasks]
        self._training = [task for task, out in zip(tasks, held_out, strict=True) if not out]
        everything = options["evaluate"] == "all"
        self._evaluation = [task for task, out in zip(tasks, held_out, strict=True) if out or everything]
        self._seed = cfg.seed
        domain = {spec.name for world in self._worlds.values() for spec in world.specs[AGENT]}
        self._menus = WorldMenus(cfg, sorted(domain), [task.answer[0] for task in tasks[:64]])
        self._shared = Shared(self._menus, options["max_errors"])
        self._closes: list[Callable[[], Awaitable[None]]] = [self._menus.close]
        if options["user"] != SCRIPTED:
            client, close = user_client(cfg, options["user"])
            self._shared = replace(self._shared, user=client)
            self._closes.append(close)
        if self._judged and cfg.tools.judge != "match":
            client, close = judge_client(cfg)
            self._shared = replace(self._shared, claims=Claims(client))
            self._closes.append(close)
        self._tell(source)

    @property
    def _judged(self) -> int:
        """Number of tasks with claims that only a judge can check."""
        return sum(CLAIMS in each.basis for each in self._scenarios.values())

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        options = {**_OPTIONS, **cfg.env.options}
        found = [] if package.folder() else [f"{package.MISSING}."]
        if unknown := sorted(options.keys() - _OPTIONS.keys()):
            found.append(f"env.options of τ²-Bench are {', '.join(_OPTIONS)}, not {', '.join(unknown)}.")
        domains, known = options["domains"], tuple(package.LAYOUTS)
        if not isinstance(domains, Sequence) or isinstance(domains, str) or not domains or set(domains) - set(known):
            found.append(f"env.options.domains must be some of {', '.join(known)}, not {domains}.")
        elif options["source"] == ORIGINAL and set(domains) - set(_ORIGINALS):
            found.append(f"The original data are of {' and '.join(_ORIGINALS)}: set env.options.domains to these.")
        if options["source"] not in SOURCES:
            found.append(f"env.options.source must be {' or '.join(SOURCES)}, not {options['source']}.")
        if options["evaluate"] not in ("held_out", "all"):
            found.append(f"env.options.evaluate must be held_out or all, not {options['evaluate']}.")
        most = options["max_errors"]
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            found.append(f"env.options.max_errors must be a number from 1 or null, not {most}.")
        found += user_problems(cfg, options["user"], options["user_is_policy"])
        return found + WorldMenus.problems(cfg)

    @classmethod
    def forecast(cls, cfg: WorldConfig) -> str | None:
        prices = price_book(cfg).base
        user = user_forecast(cfg, {**_OPTIONS, **cfg.env.options}["user"], prices)
        return "\n".join(filter(None, (dry_run(without_judge(cfg), prices), user))) or None

    def train_tasks(self, batch_size: int) -> TaskIterator:
        def posed(task: Task, rng: np.random.Generator) -> Task:
            return self._menus.pose(task, int(rng.integers(2**32)), "train")

        return task_iterator(self._training, seed=self._seed, batch_size=batch_size, build=posed)

    def held_out(self, count: int) -> Sequence[Task]:
        return [self._menus.pose(task, 0, "eval") for task in self._evaluation[:count]]

    def reset(self, task: Task, budget: Budget) -> Tau2Episode:
        scenario = self._scenarios[task.extra["task"]]
        world, golden = self._worlds[scenario.domain], self._golden[scenario.id]
        return Tau2Episode(task, scenario, world, golden, self._shared, budget)

    def largest_menu(self) -> int:
        return max(len(world.specs[AGENT]) for world in self._worlds.values()) + self._menus.largest

    def baselines(self) -> Mapping[str, Script]:
        """Scripts that talk until the user leaves; an empty turn would be no answer, and never scored.

        With a model as the user, whom every row of a report would pay for, doing nothing is the only one.
        """
        if self._shared.user is not None:
            return {"do_nothing": _says_done}
        return {"golden": self._play, "do_nothing": _says_done, "random": partial(_calls_once, self)}

    def experts(self, task: Task) -> Sequence[Asked]:
        return self._menus.experts(task)

    async def close(self) -> None:
        await asyncio.gather(*(close() for close in self._closes))

    def _play(self, task: Task, observed: Sequence[ToolResult]) -> ToolCall | str:
        return scripted.play(self._scenarios[task.extra["task"]], observed)

    def _tell(self, source: str) -> None:
        for name, reason in self.unusable.items():
            print(f"τ²-Bench ({source}): {name} is left out: {reason}", flush=True)
        if self.may_fail:
            print(f"τ²-Bench ({source}): golden calls fail, as they should, in {', '.join(self.may_fail)}.", flush=True)
        if self._judged and self._shared.claims is None:
            print(
                f"τ²-Bench ({source}): tasks with facts for {CLAIMS}, which needs a judge: {self._judged}.", flush=True
            )


def _says_done(task: Task, observed: Sequence[ToolResult]) -> ToolCall | str:
    return scripted.DONE


def _calls_once(environment: Environment, task: Task, observed: Sequence[ToolResult]) -> ToolCall | str:
    """One tool of the menu at random, with arguments copied from the note."""
    if observed:
        return scripted.DONE
    names = [spec.name for spec in task.tools]
    return environment.copied_call(task, names[sum(map(ord, task.id)) % len(names)])


def _task(scenario: Scenario, world: World, told: Mapping[str, Any]) -> Task:
    return Task(
        id=scenario.id,
        question=scenario.opening if told["user"] == SCRIPTED else GREETING,
        answer=(", ".join(scenario.facts) or scripted.DONE,),  # what an expert could answer; what counts is a state
        tools=world.specs[AGENT],
        preference=Preference("accuracy", ""),
        family=scenario.domain if scenario.source == WHEEL else f"{scenario.domain}, original data",
        extra={"task": scenario.id, **told},
    )
