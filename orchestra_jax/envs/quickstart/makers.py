"""The quickstart's world with tools of many makers: a line of the menu says what its tool does, and its name nothing.

Some tools stand on training menus under the names of makers, drawn anew for each menu. Demonstrations read lines of the
menu aloud, with the word for what the tool does. It is for policies that shall use tools that no training menu had.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.envs.base import Demonstrations, Environment
from orchestra_jax.envs.quickstart.demonstrations import MORE, WORDS, considered, figure, next_step
from orchestra_jax.envs.quickstart.environment import PAIRED_KINDS, QuickstartEnvironment, ordered_tools
from orchestra_jax.envs.quickstart.facts import CATALOGUE, LAST_NAMES, RIVALS, TOOL_NAMES
from orchestra_jax.envs.quickstart.plans import best_plan, expected_utility
from orchestra_jax.envs.quickstart.world import QuickstartWorld
from orchestra_jax.tools.executor import ToolHandler
from orchestra_jax.types import Task, ToolResult, ToolSpec

Menu = tuple[ToolSpec, ...]

MADE = ("calculator", "web_search", "expert_medium")  # may stand on a menu under a maker's name
MAKERS: Mapping[str, Sequence[str]] = {
    "train": [name for place, name in enumerate(LAST_NAMES) if place % 4 != 3],
    "eval": LAST_NAMES[3::4],
}
DOES = {name: WORDS.get(kind, kind) for kind, names in RIVALS.items() for name in names}  # as thoughts say it


def original(spec: ToolSpec) -> str:
    """Return the catalogue's name of a tool that may stand under a maker's; its description is the same."""
    return next(name for name, known in CATALOGUE.items() if known.description == spec.description)


def with_makers(menu: Menu, split: str, rng: np.random.Generator) -> Menu:
    """Give each tool of MADE at even odds the name of a maker of the split."""
    makers = iter(rng.permutation(MAKERS[split]).tolist())
    made = [spec.name in MADE and rng.random() < 0.5 for spec in menu]
    return tuple(replace(spec, name=next(makers)) if new else spec for spec, new in zip(menu, made, strict=True))


class MakersWorld(QuickstartWorld):
    """Shows what each tool does; held-out questions have the tools of the catalogue under their own names."""

    def menu(self, *drawn: object, **options: object) -> Menu:
        return tuple(replace(spec, traits=(DOES[spec.name],)) for spec in super().menu(*drawn, **options))  # type: ignore[arg-type]

    def shown(self, menu: Menu, split: str, rng: np.random.Generator) -> Menu:
        return with_makers(menu, split, rng) if split == "train" else menu


class MakersQuickstart(QuickstartEnvironment):
    """Plays the tools of makers as those of the catalogue that they are."""

    world_class = MakersWorld

    def demonstrations(self) -> Demonstrations:
        return replace(super().demonstrations(), think=partial(think_aloud, self._cfg.seed))

    def handlers(self, task: Task) -> dict[str, ToolHandler]:
        known = super().handlers(task)
        return {spec.name: known[original(spec)] for spec in task.tools}


def think_aloud(seed: int, task: Task, results: Sequence[ToolResult]) -> str:
    """Return the demonstrator's thoughts: whether more steps follow, the next one, the wish, and lines of the menu.

    It says both lines that it compares, with the figure that the wish is about; else the line that it takes.
    """
    if (step := next_step(task, results)) is None:
        return ""
    said = [MORE] if len(results) + 1 < len(task.extra["steps"]) else []
    pair = considered(seed, task, results)
    if not figure(task, pair[0]):
        pair = [min(pair, key=lambda spec: task.preference.name == "local" and not spec.local)]
    lines = [f"{spec.traits[0]} {spec.name} {figure(task, spec) or ''}".rstrip() for spec in pair]
    return " ".join([*(WORDS.get(name, name) for name in (*said, step[0], task.preference.name)), *lines])


def unseen_makers(environment: Environment, cfg: WorldConfig) -> Mapping[str, Sequence[Task]]:
    """Pose menus with tools of makers that no training menu had; evaluation.swap_questions of them under each wish."""
    if not isinstance(environment, MakersQuickstart):
        raise ConfigError("Tools of unseen makers are for policies that read what a tool does: add +experiment=makers.")
    world, tools = environment.world, ordered_tools(cfg.tools.evaluated.names)
    found: dict[str, list[Task]] = {kind: [] for kind in PAIRED_KINDS}
    for index in range(cfg.evaluation.swap_questions):
        for kind, task in zip(PAIRED_KINDS, world.swap_tasks(index, PAIRED_KINDS, tools), strict=True):
            rng = np.random.default_rng([world.seed, 5, index])  # the same menu under every wish
            found[kind].append(replace(task, tools=with_makers(task.tools, "eval", rng)))
    return {f"makers_{kind}": tasks for kind, tasks in found.items()}


def under_own_names(task: Task, called: Sequence[str]) -> tuple[Task, list[str]]:
    """Return the task, and the names of called tools, as if no maker's name were on the menu."""
    names = {spec.name: original(spec) for spec in task.tools}
    tools = tuple(replace(spec, name=names[spec.name]) for spec in task.tools)
    return replace(task, tools=tools), [names.get(name, name) for name in called]


def used_where_best(task: Task, called: Sequence[str]) -> bool | None:
    """Return whether a maker's tools were called in each step where they are best; None: known ones do as well."""
    known, plain = under_own_names(task, called)
    made = {original(spec) for spec in task.tools if spec.name not in TOOL_NAMES}
    worths, best = expected_utility(known), best_plan(known)
    if worths[best] <= max(worth for plan, worth in worths.items() if not made & {*plan}):
        return None
    return all([*plain[step : step + 1]] == [tool] for step, tool in enumerate(best) if tool in made)
