"""The environment `tau2`: the tasks of τ²-Bench as conversations.

Settings (`env.options`): `domains`, some of airline, retail, telecom and banking; `source`, "wheel" (the package's
tasks) or "original" (those of `original`, a folder with an airline and a shop); `user`, "scripted" or the model that
plays the user, which is not the policy; `evaluate`, "held_out" (the test split, which no training sees) or "all" (a
benchmark).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.envs import claims
from orchestra_jax.envs.base import Environment, Score, Script, ToolEpisode, initial_messages
from orchestra_jax.envs.database.conversations import WorldEnvironment
from orchestra_jax.envs.menus import WorldMenus
from orchestra_jax.envs.tau2 import package, scripted
from orchestra_jax.envs.tau2.criteria import CLAIMS, ConversationRecord, GoldenReplay, judge, replay, stricter
from orchestra_jax.envs.tau2.domain import HAND_OVER, Tau2Domain
from orchestra_jax.envs.tau2.tasks import AGENT, ORIGINAL, SOURCES, TEST, USER, WHEEL, Tau2Scenario, scenarios
from orchestra_jax.envs.users import GREETING, SCRIPTED, SimulatedUser, user_forecast, user_problems
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.price_book import price_book
from orchestra_jax.tools.executor import ToolHandler
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.run_experts import model_client
from orchestra_jax.tools.user_turn import UserTurn
from orchestra_jax.types import Preference, Task, ToolCall, ToolResult, Usage

_OPTIONS: Mapping[str, Any] = {
    "domains": ["airline", "retail", "telecom"],
    "source": WHEEL,
    "original": None,
    "user": SCRIPTED,
    "evaluate": "held_out",
}
_ANYTHING: Mapping[str, Any] = {"type": "object"}
_ORIGINALS = ("airline", "retail")
_MAX_ERRORS = 10  # failed calls that end a task unsolved, as the authors have it


@dataclass(frozen=True)
class Tau2Shared:
    """The parts that the episodes of a run share.

    Attributes:
        menus: execute the calls.
        user: the model that plays the users; None: they are scripted.
        judge: the model that decides on NL_ASSERTION; None: the facts count instead.
    """

    menus: WorldMenus
    user: ExpertClient | None
    judge: ExpertClient | None


class Tau2Episode(ToolEpisode):
    """One conversation."""

    def __init__(
        self,
        task: Task,
        scenario: Tau2Scenario,
        domain: Tau2Domain,
        golden: GoldenReplay,
        shared: Tau2Shared,
        budget: Budget,
    ) -> None:
        self._scenario, self._domain, self._golden, self._shared = scenario, domain, golden, shared
        self._session, self._record, self._handed_over = domain.open(scenario), ConversationRecord(), False
        self._judge_budget = budget.parent or budget  # the judge is not the policy's to pay
        self._scripted = scripted.ScriptedUser(domain, scenario, self._session)
        self._simulated = None if shared.user is None else self._simulated_user(shared.user, budget)
        handlers = {spec.name: self._handler(spec.name) for spec in domain.specs[AGENT]}
        # The tool judges its arguments, as in the authors' code: "3" may be an integer, and what is wrong is an error.
        tools = [replace(spec, parameters=_ANYTHING) if spec.name in handlers else spec for spec in task.tools]
        executor = shared.menus.executor(replace(task, tools=tuple(tools)), handlers, budget)
        super().__init__(task, executor, initial_messages(task, domain.system))

    def _simulated_user(self, client: ExpertClient, budget: Budget) -> SimulatedUser:
        tools = self._domain.specs[USER]
        system = package.guidelines(bool(tools), self._scenario.situation)
        return SimulatedUser(client, self._scenario.situation, budget, system=system, tools=tools, act=self._users_call)

    async def respond(self, text: str) -> UserTurn:
        if self._simulated is not None:
            turn = await self._simulated.reply(text)
        else:
            turn = self._scripted.reply(text, self._handed_over)
        self._record.said.append(text)
        self._record.told += [f"agent: {text}", f"customer: {turn.text}"]
        return turn

    async def score(self, answer: str) -> Score:
        asked, untrue = self._shared.judge, None
        rows: tuple[Usage, ...] = ()
        if asked is not None and CLAIMS in self._scenario.basis:
            told = "\n".join([f"customer: {self.task.question}", *self._record.told])
            untrue, rows = await claims.untrue(asked, self._scenario.claims, told, self._judge_budget)
        faults = judge(
            self._scenario,
            self._golden.state,
            self._session,
            self._record,
            _MAX_ERRORS,
            untrue,
        )
        return Score(not any(faults.values()), rows, faults | stricter(faults, self._scenario, self._record))

    def _users_call(self, call: ToolCall) -> str:
        return self._session.call(USER, call).text

    def _handler(self, name: str) -> ToolHandler:
        async def handle(arguments: Mapping[str, object], budget: Budget) -> ToolResult:
            # Nothing is awaited: calls of one turn change the domain in their order.
            result = self._session.call(AGENT, ToolCall(name, arguments))
            self._record.errors += result.is_error
            self._record.told.append(f"agent calls {name} with {json.dumps(dict(arguments))}: {result.text}")
            self._handed_over |= name == HAND_OVER and not result.is_error
            return result

        return handle


class Tau2Environment(WorldEnvironment):
    """Conversations of τ²-Bench's tasks.

    Attributes:
        unusable: id of each task that is left out -> why.
        may_fail: id of each task with golden calls that fail -> a sentence for each of them; they fail for the policy
            too, and the task can be used.
    """

    def __init__(self, cfg: WorldConfig) -> None:
        if wrong := self.problems(cfg):
            raise ConfigError("\n".join(wrong))
        options = {**_OPTIONS, **cfg.env.options}
        self._read(options["domains"], options["source"], options["original"])
        # An evaluation finds what it kept by the task: a task with another user is another task.
        told = {key: options[key] for key in ("source", "user")} | {"judge": cfg.tools.judge}
        tasks = [_task(each, self._domains[each.domain], told) for each in self._scenarios.values()]
        held_out = {each.id for each in self._scenarios.values() if each.split == TEST}
        super().__init__(cfg, options["user"], tasks, held_out, evaluate_all=options["evaluate"] == "all")
        asked = None
        if self._with_claims and cfg.tools.judge != "match":
            asked, close = model_client(cfg, cfg.tools.judge, "judge")
            self._closes.append(close)
        self._shared = Tau2Shared(self._menus, self._user_model, asked)
        self._tell(options["source"])

    def _read(self, domains: Sequence[str], source: str, original: str | None) -> None:
        """Read the domains and their tasks, and replay the golden calls."""
        self._domains = {name: Tau2Domain(name, source, original) for name in domains}
        found = [scenario for name in domains for scenario in scenarios(name, source, original)]
        self._golden = {each.id: replay(self._domains[each.domain], each) for each in found}
        self.unusable = {name: each.unusable for name, each in self._golden.items() if each.unusable}
        self.may_fail = {name: each.failed for name, each in self._golden.items() if each.failed}
        self._scenarios = {each.id: each for each in found if each.id not in self.unusable}

    @property
    def _with_claims(self) -> int:
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
        found += user_problems(cfg, options["user"])
        return found + WorldMenus.problems(cfg)

    @classmethod
    def forecast(cls, cfg: WorldConfig) -> str | None:
        return user_forecast(cfg, {**_OPTIONS, **cfg.env.options}["user"], price_book(cfg).base)

    def reset(self, task: Task, budget: Budget) -> Tau2Episode:
        scenario = self._scenarios[task.extra["task"]]
        domain, golden = self._domains[scenario.domain], self._golden[scenario.id]
        return Tau2Episode(task, scenario, domain, golden, self._shared, budget)

    def baselines(self) -> Mapping[str, Script]:
        """Return scripts that talk until the user leaves; an empty turn is no answer, and never scored.

        With a model as the user, doing nothing is the only script: every row of a report would pay for the user.
        """
        if self._shared.user is not None:
            return {"do_nothing": _says_done}
        return {"golden": self._play, "do_nothing": _says_done, "random": partial(_calls_once, self)}

    def _play(self, task: Task, observed: Sequence[ToolResult]) -> ToolCall | str:
        return scripted.play(self._scenarios[task.extra["task"]], observed)

    def _tell(self, source: str) -> None:
        for name, reason in self.unusable.items():
            print(f"τ²-Bench ({source}): {name} is left out: {reason}", flush=True)
        if self.may_fail:
            print(f"τ²-Bench ({source}): golden calls fail, as they should, in {', '.join(self.may_fail)}.", flush=True)
        if self._with_claims and self._shared.judge is None:
            print(
                f"τ²-Bench ({source}): tasks with facts for {CLAIMS}, which needs a judge: {self._with_claims}.",
                flush=True,
            )


def _says_done(task: Task, observed: Sequence[ToolResult]) -> ToolCall | str:
    return scripted.DONE


def _calls_once(environment: Environment, task: Task, observed: Sequence[ToolResult]) -> ToolCall | str:
    """Call one tool of the menu at random, with arguments copied from the note."""
    if observed:
        return scripted.DONE
    names = [spec.name for spec in task.tools]
    return environment.copied_call(task, names[sum(map(ord, task.id)) % len(names)])


def _task(scenario: Tau2Scenario, domain: Tau2Domain, told: Mapping[str, Any]) -> Task:
    return Task(
        id=scenario.id,
        question=scenario.opening if told["user"] == SCRIPTED else GREETING,
        answer=(", ".join(scenario.facts) or scripted.DONE,),  # an expert could answer with it
        tools=domain.specs[AGENT],
        preference=Preference("accuracy", ""),
        family=scenario.domain if scenario.source == WHEEL else f"{scenario.domain}, original data",
        extra={"task": scenario.id, **told},
    )
