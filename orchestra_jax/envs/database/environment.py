"""The environment `database`: conversations in worlds of folders, shipped or one's own (`folder`).

Settings (`env.options`): `worlds`, names of shipped worlds or folders, all shipped ones by default; `trusted`, whether
tools.py of other folders may run in this process instead of the sandbox; `rules`, whether the agent is told policy.md
and the time; `user`, "scripted" or a model that plays the user, which is not the policy; `facts`, whether these are
found by "value" or by the "judge" of `tools.judge`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.data.preferences import WORDINGS
from orchestra_jax.envs.base import Demonstrations, OwnChat
from orchestra_jax.envs.database import demonstrations
from orchestra_jax.envs.database.conversations import BY_VALUE, DONE, GoldenTask, SessionEnvironment, facts_problems
from orchestra_jax.envs.database.folder import BadWorld, TaskRow, WorldFolder, load, read
from orchestra_jax.envs.database.golden import solutions
from orchestra_jax.envs.database.session import Session
from orchestra_jax.envs.menus import WorldMenus, offered_names
from orchestra_jax.envs.users import SCRIPTED, user_problems
from orchestra_jax.tools.python.isolation import IsolationError
from orchestra_jax.types import InfrastructureError, Task, ToolCall

SHIPPED = Path(__file__).parent / "shipped"
GATE_TASKS = 64
_FLAGS = {"trusted": False, "rules": True}
_OPTIONS: Mapping[str, Any] = {"worlds": [], "user": SCRIPTED, "facts": BY_VALUE, **_FLAGS}


class DatabaseEnvironment(SessionEnvironment):
    """Conversations in worlds of folders.

    Attributes:
        unusable: id of each task that is left out -> why.
    """

    def __init__(self, cfg: WorldConfig) -> None:
        if wrong := self.problems(cfg):
            raise ConfigError("\n".join(wrong))
        options = {**_OPTIONS, **cfg.env.options}
        self.unusable = dict[str, str]()
        self._rows = dict[str, TaskRow]()
        folders = open_worlds(cfg)
        try:
            golden = {name: each for folder in folders for name, each in self._usable(folder)}
            if not golden:
                raise ConfigError("No task of env.options.worlds can be used: their reasons are printed above.")
            worlds = [folder.world for folder in folders]
            super().__init__(
                cfg,
                options["user"],
                golden,
                {row.id for row in self._rows.values() if row.split == "eval"},
                worlds,
                rules=options["rules"],
                facts=options["facts"],
            )
        except BaseException:
            close_worlds(folders)
            raise
        self._evaluation = _families_in_turn(self._evaluation)

    def _usable(self, folder: WorldFolder) -> list[tuple[str, GoldenTask]]:
        """Replay the golden calls of a folder's tasks, tell which cannot be used, and return the others by id."""
        after, reasons = solutions(folder.world, [row.goal for row in folder.tasks])
        for name, reason in reasons.items():
            print(f"{name} is left out: {reason}", flush=True)
        self.unusable |= reasons
        rows = {row.id: row for row in folder.tasks if row.id in after}
        self._rows |= rows
        return [(name, _golden_task(row, folder, after[name])) for name, row in rows.items()]

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        options = {**_OPTIONS, **cfg.env.options}
        if unknown := sorted(options.keys() - _OPTIONS.keys()):
            return [f"env.options of database worlds are {', '.join(_OPTIONS)}, not {', '.join(unknown)}."]
        found = [f"env.options.{name} must be true or false." for name in _FLAGS if not isinstance(options[name], bool)]
        found += user_problems(cfg, options["user"])
        found += facts_problems(cfg, options["facts"])
        try:
            for folder, trusted in named_worlds(options):
                read(folder, trusted=trusted)
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

    def demonstrations(self) -> Demonstrations:
        short = [task for task in self._training if demonstrations.told_at_once(self._rows[task.id])]
        gate = short[-max(1, min(GATE_TASKS, len(self._training) // 2)) :]
        left = {task.id for task in self._training} - {task.id for task in gate}
        shown = [task for task in self._training if task.id in left] or self._training
        count = self._cfg.warm_start.demonstrations
        drawn = [self._menus.pose(shown[n % len(shown)], n, "train") for n in range(count)]
        return demonstrations.random_tools(self._rows, drawn, [self._menus.pose(task, 0, "train") for task in gate])


def named_worlds(options: Mapping[str, Any]) -> list[tuple[Path, bool]]:
    """Return the folders of `env.options.worlds`, and whether each may run its tools in this process.

    Raises:
        ConfigError: one of them is no folder of a world.
    """
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
    """Open the worlds of `env.options.worlds`.

    Raises:
        ConfigError: one of them cannot be used, or two have a task of one id.
    """
    found, sandbox = list[WorldFolder](), cfg.tools.sandbox
    try:
        for folder, trusted in named_worlds({**_OPTIONS, **cfg.env.options}):
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
    """Stop the processes that run the tools of these worlds."""
    for each in worlds:
        each.world.close()


def _golden_task(row: TaskRow, folder: WorldFolder, after: Session) -> GoldenTask:
    plan: list[ToolCall | str] = []
    for turn in row.turns:
        plan += [*turn.calls, "; ".join(turn.facts) or DONE]
    return GoldenTask(
        goal=row.goal,
        world=folder.world,
        after=after,
        question=row.turns[0].user,
        family=row.family,
        situation=row.told,
        plan=plan,
        requests=[turn.user for turn in row.turns[1:]],
    )


def _families_in_turn(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks with the families in turn, so that the first few tasks are of all of them."""
    families: dict[str, list[Task]] = {}
    for task in tasks:
        families.setdefault(task.family, []).append(task)
    places = [(place, number, task) for number, some in enumerate(families.values()) for place, task in enumerate(some)]
    return [task for _, _, task in sorted(places, key=lambda item: item[:2])]
