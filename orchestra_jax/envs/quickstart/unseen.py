"""Benchmarks of the quickstart world beyond its own: every preference, and tools and prices that no training sees.

Each asks the same evaluation.swap_questions questions with full menus; the name of a part ends in the kind of
preference.
"""

from collections.abc import Mapping, Sequence

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.envs.base import Environment
from orchestra_jax.envs.quickstart.environment import PAIRED_KINDS, QuickstartEnvironment, ordered_tools
from orchestra_jax.envs.quickstart.facts import TOOL_NAMES
from orchestra_jax.envs.quickstart.preferences import PREFERENCE_SHARES
from orchestra_jax.envs.quickstart.world import PriceOffers, QuickstartWorld
from orchestra_jax.types import Task

Parts = Mapping[str, Sequence[Task]]
# Price lists that no training sees: dearer by this factor, or with the offers of rivals swapped.
DEARER = 3
SWAPPED: Mapping[str, str] = {
    "local_search": "web_search",
    "web_search": "local_search",
    "expert_small": "expert_large",
    "expert_large": "expert_small",
}


def every_preference(environment: Environment, cfg: WorldConfig) -> Parts:
    """Pose every kind of preference."""
    return _posed(_world(environment), cfg, "", tuple(PREFERENCE_SHARES), ordered_tools(cfg.tools.evaluated.names))


def unseen_prices(environment: Environment, cfg: WorldConfig) -> Parts:
    """Pose price lists as in training, prices three times as high, and rivals' offers swapped (`SWAPPED`)."""
    world, tools = _world(environment), ordered_tools(cfg.tools.evaluated.names)
    usual = world.price_lists["eval"]
    lists: dict[str, list[PriceOffers]] = {
        "usual": usual,
        "dearer": [tuple((DEARER * cents, seconds) for cents, seconds in prices) for prices in usual],
        "swapped": [
            tuple(prices[TOOL_NAMES.index(SWAPPED.get(name, name))] for name in TOOL_NAMES) for prices in usual
        ],
    }
    parts = [_posed(world, cfg, f"{name}_", PAIRED_KINDS, tools, prices) for name, prices in lists.items()]
    return {part: tasks for found in parts for part, tasks in found.items()}


def unseen_tools(environment: Environment, cfg: WorldConfig) -> Parts:
    """Pose menus of tools.names, and menus of every tool of the world, some of which no policy step has seen."""
    world = _world(environment)
    seen = _posed(world, cfg, "seen_", PAIRED_KINDS, ordered_tools(cfg.tools.names))
    return {**seen, **_posed(world, cfg, "every_", PAIRED_KINDS, TOOL_NAMES)}


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
    price_lists: Sequence[PriceOffers] = (),
) -> Parts:
    posed = [world.swap_tasks(index, kinds, tools, price_lists) for index in range(cfg.evaluation.swap_questions)]
    return {f"{prefix}{kind}": [tasks[k] for tasks in posed] for k, kind in enumerate(kinds)}
