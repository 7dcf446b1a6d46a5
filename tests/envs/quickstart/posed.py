"""Tasks of the quickstart world and what its tools say of them, for its tests."""

import asyncio

import numpy as np

from orchestra_jax.envs.base import Environment
from orchestra_jax.envs.quickstart.demonstrations import read_answer, reference_call
from orchestra_jax.envs.quickstart.facts import CHANCES, FAMILIES, RIVALS
from orchestra_jax.envs.quickstart.preferences import PREFERENCE_SHARES, draw_preference
from orchestra_jax.envs.quickstart.questions import QuickstartQuestion
from orchestra_jax.envs.quickstart.world import QuickstartWorld, draw_offers
from orchestra_jax.money.budgets import Budget
from orchestra_jax.types import Task, ToolResult

SPLITS = ("train", "eval")
KINDS = tuple(PREFERENCE_SHARES)
SAMPLE = 600  # tasks of a split


def success_probability(tool: str, kind: str) -> float:
    """The chance that one good call of the tool does a step of the kind."""
    return CHANCES[tool] if tool in RIVALS.get(kind, ()) else 0.0


def full_menus(world: QuickstartWorld, count: int, split: str = "eval") -> list[Task]:
    """Questions of every family and preferences of every kind under the full menu, in turn."""
    rng = np.random.default_rng(11)
    posed = []
    for index in range(count):
        family, kind = FAMILIES[index % len(FAMILIES)], KINDS[index // len(FAMILIES) % len(KINDS)]
        question = world.question(family, split, rng)
        kinds = [step for step, _ in question.steps]
        menu = world.menu(kinds, draw_offers(split, rng), rng, full=True)
        posed.append(world.pose(f"full-{index}", question, menu, draw_preference(kind, split, kinds, menu, rng)))
    return posed


def use(environment: Environment, pairs: list[tuple[Task, str]]) -> list[ToolResult]:
    """The result of each task's reference call of each tool, through the real environment."""

    async def all_of_them() -> list[ToolResult]:
        return await asyncio.gather(
            *(environment.reset(task, Budget()).step(reference_call(task, tool)) for task, tool in pairs)
        )

    return asyncio.run(all_of_them())


def distinct(world: QuickstartWorld, family: str, count: int) -> list[Task]:
    """So many different questions of the family under the full menu, or as many as 8,000 draws find."""
    rng = np.random.default_rng(2)
    found: dict[str, QuickstartQuestion] = {}
    for _ in range(8000):
        question = world.question(family, "eval", rng)
        found.setdefault(question.text, question)
        if len(found) == count:
            break
    kinds = [kind for kind, _ in next(iter(found.values())).steps]
    menu = world.menu(kinds, draw_offers("eval", rng), rng, full=True)
    preference = draw_preference("accuracy", "eval", kinds, menu, rng)
    return [world.pose(f"{family}-{n}", question, menu, preference) for n, question in enumerate(found.values())]


def right(task: Task, result: ToolResult) -> bool:
    return read_answer(result) in task.answer


def names(task: Task) -> set[str]:
    return {spec.name for spec in task.tools}
