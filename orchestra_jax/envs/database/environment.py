"""Conversations in which a database is changed: a user asks, tools do it, and three criteria decide (`criteria`).

Settings (`env.options`): `worlds`, names of shipped worlds or folders (`folder`), all shipped ones by default;
`trusted`, whether tools.py of other folders may run in this process instead of the sandbox; `rules`, whether the agent
is told policy.md and the time; `user`, "scripted" or a model that plays the user, with `user_is_policy` if it may be
the policy itself.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.data.pipeline import TaskIterator, task_iterator
from orchestra_jax.data.preferences import WORDINGS
from orchestra_jax.envs.base import Demonstrations, Environment, OwnChat, Score, Script, ToolEpisode, initial_messages
from orchestra_jax.envs.baselines import Asked
from orchestra_jax.envs.database import demonstrations, golden
from orchestra_jax.envs.database.criteria import judge
from orchestra_jax.envs.database.folder import BadWorld, TaskRow, WorldFolder, load, read
from orchestra_jax.envs.database.golden import Goal
from orchestra_jax.envs.database.session import AnySession, AnyWorld
from orchestra_jax.envs.database.workers.pool import WorldError
from orchestra_jax.envs.menus import WorldMenus, offered_names
from orchestra_jax.envs.users import SCRIPTED, SimulatedUser, user_problems
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.build import user_client
from orchestra_jax.tools.executor import ToolHandler
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.python.isolation import IsolationError
from orchestra_jax.types import InfrastructureError, Preference, Task, ToolCall, ToolResult, UserTurn

SHIPPED = Path(__file__).parent / "shipped"
SYSTEM = "{rules}\n\nIt is {now}. Speak to the user only when their request is done, or when you have to ask something."
GATE_TASKS = 64
_FLAGS = {"trusted": False, "rules": True, "user_is_policy": False}
_OPTIONS: Mapping[str, Any] = {"worlds": [], "user": SCRIPTED, **_FLAGS}


@dataclass(frozen=True)
class Posed:
    """A task with its world, and the session after its golden calls."""

    row: TaskRow
    folder: WorldFolder
    golden: AnySession


class DatabaseEpisode(ToolEpisode):
    """One conversation with a session of its own.

    Args:
        task: of `WorldMenus.pose`.
        after: the session after the golden calls.
        budget: of the trajectory.
        rules: whether the agent is told the world's.
        user: a model that plays the user; None: they say `requests` in turn, and nothing more.
    """

    def __init__(
        self,
        task: Task,
        world: AnyWorld,
        goal: Goal,
        after: AnySession,
        menus: WorldMenus,
        budget: Budget,
        *,
        rules: bool = True,
        user: SimulatedUser | None = None,
        requests: Sequence[str] = (),
    ) -> None:
        self._goal, self._after, self._user, self._requests = goal, after, user, requests
        self.session = golden.opened(world, goal)
        self._said, self._order = list[str](), asyncio.Lock()
        handlers = {name: self._handler(name) for name in world.specs}
        system = SYSTEM.format(rules=world.policy.strip(), now=f"{world.now:%A, %d %B %Y, %H:%M}") if rules else None
        super().__init__(task, menus.executor(task, handlers, budget), initial_messages(task, system))

    async def respond(self, text: str) -> UserTurn | None:
        """What the model says that plays the user; or the next request, None after the last."""
        turn = None if self._user is None else await self._user.reply(text)
        self._said.append(text)
        if self._user is None and len(self._said) <= len(self._requests):
            return UserTurn(self._requests[len(self._said) - 1])
        return turn

    async def score(self, answer: str) -> Score:
        """The three criteria of all that was done and said."""
        verdict = judge(self._after, self.session, self._goal.facts, self._said)
        return Score(verdict.solved, criteria=verdict.criteria())

    def _handler(self, name: str) -> ToolHandler:
        async def handle(arguments: Mapping[str, object], budget: Budget) -> ToolResult:
            async with self._order:  # calls of one turn change the state in their order
                try:
                    outcome = await self.session.make(ToolCall(name, arguments))
                except WorldError as error:  # code that is not ours fails through no fault of the policy
                    raise InfrastructureError(str(error)) from error
            return ToolResult(outcome.text, is_error=not outcome.ok, refused=outcome.refused)

        return handle


class DatabaseEnvironment(Environment):
    """See the module.

    Attributes:
        unusable: id of each task that is left out -> why.
    """

    def __init__(self, cfg: WorldConfig) -> None:
        if wrong := self.problems(cfg):
            raise ConfigError("\n".join(wrong))
        self._cfg, self._options = cfg, {**_OPTIONS, **cfg.env.options}
        self._posed, self.unusable = dict[str, Posed](), dict[str, str]()
        self._folders = open_worlds(cfg)
        self._player: ExpertClient | None = None
        try:
            if self._options["user"] != SCRIPTED:
                self._player, self._close_player = user_client(cfg, self._options["user"])
            self._play_golden()
            tasks = [_task(posed) for posed in self._posed.values()]
            domain = [name for found in self._folders for name in found.world.specs]
            self._menus = WorldMenus(cfg, domain, [task.answer[0] for task in tasks[:64]])
        except BaseException:
            close_worlds(self._folders)
            raise
        self._training = [task for task in tasks if self._posed[task.id].row.split == "train"]
        self._evaluation = _in_turn([task for task in tasks if self._posed[task.id].row.split == "eval"])
        self._largest = max(len(found.world.specs) for found in self._folders)

    def _play_golden(self) -> None:
        """Finds out which tasks can be used, and what their golden calls lead to."""
        for found in self._folders:
            usable, reasons = golden.sift(found.world, [row.goal for row in found.tasks])
            self.unusable |= reasons
            goals = {goal.id: goal for goal in usable}
            for row in found.tasks:
                if row.id in goals:
                    self._posed[row.id] = Posed(row, found, golden.replay(found.world, goals[row.id])[0])
        for name, reason in self.unusable.items():
            print(f"{name} is left out: {reason}", flush=True)
        if not self._posed:
            raise ConfigError("No task of env.options.worlds can be used: their reasons are printed above.")

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        options = {**_OPTIONS, **cfg.env.options}
        if unknown := sorted(options.keys() - _OPTIONS.keys()):
            return [f"env.options of database worlds are {', '.join(_OPTIONS)}, not {', '.join(unknown)}."]
        found = [f"env.options.{name} must be true or false." for name in _FLAGS if not isinstance(options[name], bool)]
        found += user_problems(cfg, options["user"], options["user_is_policy"])
        try:
            for folder, _ in named_worlds(cfg):
                read(folder)
        except (BadWorld, ConfigError) as error:
            found.append(str(error))
        return [*found, *WorldMenus.problems(cfg)]

    @classmethod
    def chat(cls, cfg: WorldConfig) -> OwnChat:
        worlds = open_worlds(cfg)
        try:
            wishes = (words for kind in WORDINGS.values() for split in kind.values() for words in split)
            return demonstrations.own_chat(worlds, offered_names(cfg), wishes if cfg.data.preferences else ())
        finally:
            close_worlds(worlds)

    def train_tasks(self, batch_size: int) -> TaskIterator:
        def posed(task: Task, rng: np.random.Generator) -> Task:
            return self._menus.pose(task, int(rng.integers(2**32)), "train")

        return task_iterator(self._training, seed=self._cfg.seed, batch_size=batch_size, build=posed)

    def held_out(self, count: int) -> Sequence[Task]:
        return [self._menus.pose(task, 0, "eval") for task in self._evaluation[:count]]

    def largest_menu(self) -> int:
        return self._largest + self._menus.largest

    def reset(self, task: Task, budget: Budget) -> DatabaseEpisode:
        posed, user = self._posed[task.extra["task"]], None
        if self._player is not None:
            user = SimulatedUser(self._player, posed.row.told, budget, opening=task.question)
        return DatabaseEpisode(
            task, posed.folder.world, posed.row.goal, posed.golden, self._menus, budget,
            rules=self._options["rules"], user=user, requests=[turn.user for turn in posed.row.turns[1:]],
        )  # fmt: skip

    def demonstrations(self) -> Demonstrations:
        rows = {name: posed.row for name, posed in self._posed.items()}
        short = [task for task in self._training if demonstrations.told_at_once(rows[task.id])]
        gate = short[-GATE_TASKS:]
        left = {task.id for task in self._training} - {task.id for task in gate}
        shown = [task for task in self._training if task.id in left]
        count = self._cfg.warm_start.demonstrations
        drawn = [self._menus.pose(shown[n % len(shown)], n, "train") for n in range(count)]
        return demonstrations.random_tools(rows, drawn, [self._menus.pose(task, 0, "train") for task in gate])

    def baselines(self) -> Mapping[str, Script]:
        rows = {name: posed.row for name, posed in self._posed.items()}
        return {
            "golden": lambda task, observed: demonstrations.golden_play(rows[task.extra["task"]], observed),
            "do_nothing": lambda task, observed: demonstrations.DONE,  # an empty turn is no answer, and never scored
        }

    def experts(self, task: Task) -> Sequence[Asked]:
        return self._menus.experts(task)

    async def close(self) -> None:
        close_worlds(self._folders)
        if self._player is not None:
            await self._close_player()
        await self._menus.close()


def named_worlds(cfg: WorldConfig) -> list[tuple[Path, bool]]:
    """The folders of `env.options.worlds`, and whether each may run its tools in this process.

    Raises:
        ConfigError: one of them is none.
    """
    options = {**_OPTIONS, **cfg.env.options}
    shipped = sorted(folder.name for folder in SHIPPED.iterdir() if (folder / "world.json").is_file())
    named = options["worlds"] or shipped
    if not isinstance(named, Sequence) or isinstance(named, str):
        raise ConfigError(f"env.options.worlds must be a list of worlds, such as [{', '.join(shipped)}], not {named}.")
    for name in map(str, named):
        if name not in shipped and not (Path(name) / "world.json").is_file():
            raise ConfigError(
                f"env.options.worlds: {name} is neither a folder with a world.json nor one of {', '.join(shipped)}."
            )
    return [(SHIPPED / name, True) if name in shipped else (Path(name), options["trusted"]) for name in map(str, named)]


def open_worlds(cfg: WorldConfig) -> list[WorldFolder]:
    """The worlds of `env.options.worlds`.

    Raises:
        ConfigError: one of them cannot be used, or two have a task of one id.
    """
    found, sandbox = list[WorldFolder](), cfg.tools.sandbox
    try:
        for folder, trusted in named_worlds(cfg):
            found.append(load(folder, trusted=trusted, workers=sandbox.workers, isolation=sandbox.isolation))
        ids = [row.id for world in found for row in world.tasks]
        if len(set(ids)) < len(ids):
            raise ConfigError("env.options.worlds: two tasks of these worlds have the same id.")
    except (BadWorld, InfrastructureError, IsolationError) as error:
        close_worlds(found)
        raise ConfigError(str(error)) from error
    except BaseException:
        close_worlds(found)
        raise
    return found


def close_worlds(worlds: Sequence[WorldFolder]) -> None:
    """Stops what their tools run in."""
    for each in worlds:
        each.world.close()


def _task(posed: Posed) -> Task:
    """The task with its domain's tools; what an expert could answer are the facts to be told."""
    row, world = posed.row, posed.folder.world
    return Task(
        id=row.id,
        question=row.turns[0].user,
        answer=(", ".join(row.goal.facts) or demonstrations.DONE,),
        tools=tuple(world.specs.values()),
        preference=Preference("accuracy", ""),
        family=row.family,
        extra={"task": row.id},
    )


def _in_turn(tasks: Sequence[Task]) -> list[Task]:
    """The families in turn, so that the first few tasks are of all of them."""
    families: dict[str, list[Task]] = {}
    for task in tasks:
        families.setdefault(task.family, []).append(task)
    places = [(place, number, task) for number, some in enumerate(families.values()) for place, task in enumerate(some)]
    return [task for _, _, task in sorted(places, key=lambda item: item[:2])]
