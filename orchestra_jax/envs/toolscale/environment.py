"""The tasks of ToolScale (§3.3) as conversations: a user asks, the domain's tools change a database, experts can help.

Settings (`env.options`): `repo`, a clone of the authors' repository, whose code runs in the sandbox; `rows`, a file or
folder of tasks, or a data set's id on the hub; `data`, the folder of databases and policies, by default the clone's,
else toolscale_domains in ORCHESTRA_DATA; `domains`, some of the ten, all by default; `user`, "scripted" or the model
that plays the user, which is not the policy; `evaluate`, "held_out" (a tenth of the tasks, which no training sees) or
"all"; `facts`, found by "value" or by the "judge" of `tools.judge`; `workers`, processes of each domain.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.envs.database.conversations import BY_VALUE, SessionEnvironment, facts_problems
from orchestra_jax.envs.database.remote import RemoteWorld
from orchestra_jax.envs.database.workers.pool import WorldError
from orchestra_jax.envs.menus import WorldMenus
from orchestra_jax.envs.toolscale import domains, tasks
from orchestra_jax.envs.users import GREETING, SCRIPTED, user_problems
from orchestra_jax.io import hub
from orchestra_jax.tools.python.isolation import IsolationError
from orchestra_jax.types import InfrastructureError

OPTIONS: Mapping[str, Any] = {
    "repo": None,
    "rows": tasks.ROWS,
    "data": None,
    "domains": [],
    "user": SCRIPTED,
    "evaluate": "held_out",
    "facts": BY_VALUE,
    "workers": 1,
}
_STARTS = 2  # workers that load their domain at the same time


class ToolScaleEnvironment(SessionEnvironment):
    """Conversations of ToolScale's tasks.

    Attributes:
        sifted: the tasks that can be used, and why each of the others cannot.
    """

    def __init__(self, cfg: WorldConfig) -> None:
        if wrong := self.problems(cfg):
            raise ConfigError("\n".join(wrong))
        options = {**OPTIONS, **cfg.env.options}
        found, broken = tasks.read_all(options["rows"], options["domains"])
        worlds = open_worlds(options, sorted({user.domain for user, _ in found.values()}), cfg.tools.sandbox.isolation)
        try:
            self.sifted = tasks.sift(found, worlds, broken)
            print("\n".join(tasks.report(self.sifted, found)), flush=True)
            golden = self.sifted.usable
            if not golden:
                raise ConfigError(f"None of the {len(found)} tasks of {options['rows']} can be used.")
            if options["user"] != SCRIPTED:
                golden = {name: replace(each, question=GREETING) for name, each in golden.items()}
            super().__init__(
                cfg,
                options["user"],
                golden,
                set(filter(tasks.held_out, golden)),
                list(worlds.values()),
                evaluate_all=options["evaluate"] == "all",
                facts=options["facts"],
            )
        except BaseException:
            for world in worlds.values():
                world.close()
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
        found += user_problems(cfg, options["user"])
        found += facts_problems(cfg, options["facts"])
        found += WorldMenus.problems(cfg)
        if not found and (wrong := _rows_problem(str(options["rows"]))):  # last, as it may fetch them
            found.append(wrong)
        return found


def open_worlds(options: Mapping[str, Any], names: Sequence[str], isolation: str) -> dict[str, RemoteWorld]:
    """Return the domains of these names that exist, each with a worker that has loaded it.

    Raises:
        ConfigError: one cannot be loaded, or the sandbox does not work here.
    """
    code = domains.code_folder(options["repo"])
    data = domains.data_folders(options["data"], options["repo"])
    there = [name for name in names if (code / name / "tools.py").is_file() and domains.data_of(name, data)]

    def opened(name: str) -> RemoteWorld | Exception:
        try:
            return domains.world(name, code, data, count=options["workers"], isolation=isolation)
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
    """Return a sentence why the rows cannot be had, or None; fetches those of an id on the hub."""
    if hub.is_id(rows):
        return hub.problem("env.options.rows", rows, "dataset")
    there = Path(rows).expanduser().exists()
    return None if there else f"env.options.rows={rows} is not there: name ToolScale's tasks (or TOOLSCALE_PATH)."
