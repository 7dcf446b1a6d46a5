"""Benchmarks of the quickstart world beyond its own: every preference, and tools and prices that no training sees.

Each asks the same questions with full menus, as many as evaluation.swap_questions. The name of a part ends in the kind
of preference.
"""

from collections.abc import Callable, Mapping, Sequence

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.envs.base import Environment
from orchestra_jax.envs.quickstart.environment import PAIRED_KINDS, QuickstartEnvironment, ordered_tools
from orchestra_jax.envs.quickstart.facts import RIVALS
from orchestra_jax.envs.quickstart.plans import best_plan, expected_utility
from orchestra_jax.envs.quickstart.preferences import PREFERENCE_SHARES
from orchestra_jax.envs.quickstart.renamed import UNSEEN, RenamedQuickstart, renamed
from orchestra_jax.envs.quickstart.world import OFFER_UNITS, PriceOffers, QuickstartWorld
from orchestra_jax.types import Task

Parts = Mapping[str, Sequence[Task]]
Repricing = Callable[[PriceOffers], PriceOffers]


def swapped(offers: PriceOffers) -> PriceOffers:
    """Exchange the offers of rivals: the first of each kind has the last one's."""
    return {
        name: offers[other] for rivals in RIVALS.values() for name, other in zip(rivals, reversed(rivals), strict=True)
    }


def close(offers: PriceOffers) -> PriceOffers:
    """Return prices in the same order, each one unit above the next lower one, as in one training list of 60,000."""
    found: dict[str, tuple[int, int]] = {}
    for rivals in RIVALS.values():
        columns = list(zip(*(offers[name] for name in rivals), strict=True))
        nearer = [
            [unit * (min(min(column) // unit, 10 - len(rivals)) + sorted(column).index(value)) for value in column]
            for unit, column in zip(OFFER_UNITS, columns, strict=True)
        ]
        found |= zip(rivals, zip(*nearer, strict=True), strict=True)
    return found


def worth(task: Task, called: Sequence[str]) -> float:
    """Return what the called tools are worth to the user, as a share of the best plan's worth."""
    known = expected_utility(task)
    return known.get(tuple(called), 0.0) / max(known.values())


def followed(usual: Task, other: Task, called: Sequence[str]) -> list[bool]:
    """Return, for each step whose best tool has another name on the other menu, whether it was called there."""
    plans = enumerate(zip(best_plan(usual), best_plan(other), strict=True))
    return [list(called[step : step + 1]) == [new] for step, (old, new) in plans if old != new]


def every_preference(environment: Environment, cfg: WorldConfig) -> Parts:
    """Pose every kind of preference."""
    return _posed(_world(environment), cfg, "", tuple(PREFERENCE_SHARES), ordered_tools(cfg.tools.evaluated.names))


def unseen_prices(environment: Environment, cfg: WorldConfig) -> Parts:
    """Pose prices as in training, rivals' offers swapped, and prices closer to each other than in training."""
    world, tools = _world(environment), ordered_tools(cfg.tools.evaluated.names)
    lists: dict[str, Repricing] = {"usual": dict, "swapped": swapped, "close": close}
    parts = [_posed(world, cfg, f"{name}_", PAIRED_KINDS, tools, reprice) for name, reprice in lists.items()]
    return {part: tasks for found in parts for part, tasks in found.items()}


def unseen_tools(environment: Environment, cfg: WorldConfig) -> Parts:
    """Pose the usual prices with some tools under names that no training menu has.

    Raises:
        ConfigError: the menus of this environment do not say what a tool can do.
    """
    if not isinstance(environment, RenamedQuickstart):
        raise ConfigError(
            "The benchmark unseen_tools asks policies of +experiment=new_tools: set +benchmark=new_tools."
        )
    usual = _posed(environment.world, cfg, "renamed_", PAIRED_KINDS, ordered_tools(cfg.tools.evaluated.names))
    return {part: [renamed(task, "eval", UNSEEN) for task in tasks] for part, tasks in usual.items()}


def _world(environment: Environment) -> QuickstartWorld:
    if not isinstance(environment, QuickstartEnvironment):
        raise ConfigError(
            "The benchmarks of envs.quickstart.unseen ask the quickstart's questions: add env=quickstart."
        )
    return environment.world


def _posed(
    world: QuickstartWorld,
    cfg: WorldConfig,
    prefix: str,
    kinds: Sequence[str],
    tools: Sequence[str],
    reprice: Repricing = dict,
) -> Parts:
    posed = [world.swap_tasks(index, kinds, tools, reprice) for index in range(cfg.evaluation.swap_questions)]
    return {f"{prefix}{kind}": [tasks[k] for tasks in posed] for k, kind in enumerate(kinds)}
