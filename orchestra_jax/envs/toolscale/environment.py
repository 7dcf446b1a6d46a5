"""The tasks of ToolScale (§3.3) as conversations: a user asks, the domain's tools change a database, experts can help.

Settings (`env.options`): `repo`, a clone of the authors' repository, whose code runs in the sandbox; `rows`, a file or
folder of tasks, or a data set's id on the hub; `data`, the folder of databases and policies, by default the clone's,
else toolscale_domains in ORCHESTRA_DATA; `domains`, some of the ten, all by default; `user`, "scripted" or
the model that plays the user, with `user_is_policy` if it may be the policy itself; `evaluate`, "held_out" (a tenth of
the tasks, which no training sees) or "all"; `workers`, processes of each domain; `isolation`, see the sandbox.
"""

import importlib.util
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.data.pipeline import TaskIterator, task_iterator
from orchestra_jax.envs.base import Environment, Script
from orchestra_jax.envs.baselines import Asked
from orchestra_jax.envs.database.environment import DatabaseEpisode
from orchestra_jax.envs.database.remote import RemoteWorld
from orchestra_jax.envs.database.workers.pool import WorldError
from orchestra_jax.envs.menus import WorldMenus
from orchestra_jax.envs.toolscale import domains, tasks
from orchestra_jax.envs.toolscale.rows import Scenario
from orchestra_jax.envs.toolscale.tasks import Posed
from orchestra_jax.envs.users import GREETING, SCRIPTED, SimulatedUser, user_problems
from orchestra_jax.io import hub
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.build import user_client
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.python.isolation import IsolationError
from orchestra_jax.types import InfrastructureError, Preference, Task, ToolCall, ToolResult

DONE = "Done."
OPTIONS: Mapping[str, Any] = {
    "repo": None,
    "rows": tasks.ROWS,
    "data": None,
    "domains": [],
    "user": SCRIPTED,
    "user_is_policy": False,
    "evaluate": "held_out",
    "workers": 1,
    "isolation": "auto",
}
_STARTS = 2  # workers that load their domain at the same time


class ToolScaleEnvironment(Environment):
    """See the module.

    Attributes:
        sifted: the tasks that can be used, and why each of the others cannot.
    """

    def __init__(self, cfg: WorldConfig) -> None:
        if wrong := self.problems(cfg):
            raise ConfigError("\n".join(wrong))
        self._cfg, self._options = cfg, {**OPTIONS, **cfg.env.options}
        found, broken = tasks.read_all(self._options["rows"], self._options["domains"])
        self._worlds = open_worlds(self._options, sorted({scenario.domain for scenario, _ in found.values()}))
        self._close: Callable[[], Awaitable[None]] | None = None
        self._client: ExpertClient | None = None
        try:
            self.sifted = tasks.sift(found, self._worlds, broken)
            print("\n".join(tasks.report(self.sifted, found)), flush=True)
            if not self.sifted.usable:
                raise ConfigError(f"None of the {len(found)} tasks of {self._options['rows']} can be used.")
            played = self._options["user"] != SCRIPTED
            all_tasks = [_task(name, posed, played) for name, posed in self.sifted.usable.items()]
            self._split(all_tasks)
            specs = [name for world in self._worlds.values() for name in world.specs]
            self._menus = WorldMenus(cfg, specs, [task.answer[0] for task in all_tasks[:64]])
            if played:
                self._client, self._close = user_client(cfg, self._options["user"])
        except BaseException:
            self._stop()
            raise

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        options = {**OPTIONS, **cfg.env.options}
        if unknown := sorted(options.keys() - OPTIONS.keys()):
            return [f"env.options of ToolScale are {', '.join(OPTIONS)}, not {', '.join(unknown)}."]
        found = list[str]()
        if options["repo"]:
            try:
                domains.data_folders(options["data"], options["repo"])
                domains.code_folder(options["repo"])
            except ConfigError as error:
                found.append(str(error))
        else:
            found.append(
                "ToolScale's tools are code of the authors' repository, which runs in the sandbox: "
                f"{domains.CLONE}, and set env.options.repo=FOLDER (or TOOLSCALE_REPO)."
            )
        if importlib.util.find_spec("pydantic") is None:
            found.append("ToolScale's domains need pydantic: pip install pydantic.")
        named = options["domains"]
        if not isinstance(named, Sequence) or isinstance(named, str):
            found.append(f"env.options.domains must be a list of names, not {named}.")
        if options["evaluate"] not in ("held_out", "all"):
            found.append(f"env.options.evaluate must be held_out or all, not {options['evaluate']}.")
        if not isinstance(options["workers"], int) or options["workers"] < 1:
            found.append(f"env.options.workers must be a number from 1, not {options['workers']}.")
        found += user_problems(cfg, options["user"], options["user_is_policy"])
        found += WorldMenus.problems(cfg)
        if not found and (wrong := _rows_problem(str(options["rows"]))):  # last, as it may fetch them
            found.append(wrong)
        return found

    def train_tasks(self, batch_size: int) -> TaskIterator:
        def posed(task: Task, rng: np.random.Generator) -> Task:
            return self._menus.pose(task, int(rng.integers(2**32)), "train")

        return task_iterator(self._training, seed=self._cfg.seed, batch_size=batch_size, build=posed)

    def held_out(self, count: int) -> Sequence[Task]:
        return [self._menus.pose(task, 0, "eval") for task in self._evaluation[:count]]

    def largest_menu(self) -> int:
        return max(len(world.specs) for world in self._worlds.values()) + self._menus.largest

    def reset(self, task: Task, budget: Budget) -> DatabaseEpisode:
        posed, user = self.sifted.usable[task.extra["task"]], None
        if self._client is not None:
            user = SimulatedUser(self._client, situation(posed.scenario), budget)
        return DatabaseEpisode(task, posed.world, posed.goal, posed.golden, self._menus, budget, user=user)

    def baselines(self) -> Mapping[str, Script]:
        return {"golden": self._golden, "do_nothing": lambda task, observed: DONE}

    def experts(self, task: Task) -> Sequence[Asked]:
        return self._menus.experts(task)

    async def close(self) -> None:
        self._stop()
        await self._menus.close()
        if self._close is not None:
            await self._close()

    def _golden(self, task: Task, observed: Sequence[ToolResult]) -> ToolCall | str:
        """Makes the golden calls and says the facts, until a user who is played leaves."""
        goal = self.sifted.usable[task.extra["task"]].goal
        plan: list[ToolCall | str] = [*goal.calls, "; ".join(goal.facts) or DONE]
        return plan[len(observed)] if len(observed) < len(plan) else DONE

    def _split(self, found: Sequence[Task]) -> None:
        out = [tasks.held_out(task.id) for task in found]
        everything = self._options["evaluate"] == "all"
        self._training = [task for task, held in zip(found, out, strict=True) if not held]
        self._evaluation = [task for task, held in zip(found, out, strict=True) if held or everything]

    def _stop(self) -> None:
        for world in self._worlds.values():
            world.close()


def open_worlds(options: Mapping[str, Any], names: Sequence[str]) -> dict[str, RemoteWorld]:
    """The domains of these names that there are, each with a worker that has loaded it.

    Raises:
        ConfigError: one cannot be loaded, or the sandbox does not work here.
    """
    code = domains.code_folder(options["repo"])
    data = domains.data_folders(options["data"], options["repo"])
    there = [name for name in names if (code / name / "tools.py").is_file() and domains.data_of(name, data)]

    def opened(name: str) -> RemoteWorld | Exception:
        try:
            return domains.world(name, code, data, count=options["workers"], isolation=options["isolation"])
        except (ConfigError, WorldError, IsolationError, InfrastructureError) as error:
            return error

    with ThreadPoolExecutor(_STARTS) as pool:
        found = dict(zip(there, pool.map(opened, there), strict=True))
    worlds = {name: each for name, each in found.items() if isinstance(each, RemoteWorld)}
    for error in found.values():
        if isinstance(error, Exception):
            for world in worlds.values():
                world.close()
            raise ConfigError(str(error)) from error
    return worlds


def _rows_problem(rows: str) -> str | None:
    """Why the rows cannot be had, in a sentence; fetches those of an id on the hub."""
    if hub.is_id(rows):
        return hub.problem("env.options.rows", rows, "dataset")
    there = Path(rows).expanduser().exists()
    return None if there else f"env.options.rows={rows} is not there: name ToolScale's tasks (or TOOLSCALE_PATH)."


def situation(scenario: Scenario) -> str:
    """What a model that plays the user is told."""
    parts = {
        "Who you are": scenario.persona,
        "Why you ask": scenario.reason,
        "How you behave": scenario.instructions,
        "What you know": scenario.known,
        "What you do not know": scenario.unknown,
    }
    return "\n".join(f"{head}: {text}" for head, text in parts.items() if text)


def _task(name: str, posed: Posed, played: bool) -> Task:
    """The task with its domain's tools; a user without a model says everything at once."""
    scenario = posed.scenario
    words = "\n".join(filter(None, (scenario.reason, scenario.instructions, scenario.known)))
    return Task(
        id=name,
        question=GREETING if played else words,
        answer=(", ".join(posed.goal.facts) or DONE,),
        tools=tuple(posed.world.specs.values()),
        preference=Preference("accuracy", ""),
        family=scenario.domain,
        extra={"task": name},
    )
