"""The benchmark of recorded answers beyond the held-out questions: models and prices that no training sees."""

from collections.abc import Mapping, Sequence

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.envs.base import Environment
from orchestra_jax.envs.recorded.environment import EVAL, PRICES, UNSEEN, RecordedEnvironment
from orchestra_jax.types import Task


def unseen_recorded(environment: Environment, cfg: WorldConfig) -> Mapping[str, Sequence[Task]]:
    """The same held-out questions with menus of training's models, of unseen ones alone, and at unseen prices."""
    if not isinstance(environment, RecordedEnvironment):
        raise ConfigError("The benchmark unseen_recorded asks recorded models: add env=recorded.")
    offers = {"seen": EVAL, "unseen_models": UNSEEN, "unseen_prices": PRICES}
    return {part: environment.posed(offer, cfg.evaluation.questions) for part, offer in offers.items()}
