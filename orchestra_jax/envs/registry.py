"""The environments by name, and what is asked of one before it is made."""

from collections.abc import Callable
from typing import Any

from orchestra_jax.config.registry import Registry
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.envs.base import Environment, OwnChat

# A subclass of `Environment`, or a function that makes one; only a class has checks, a chat and a forecast.
ENVIRONMENTS: Registry[Callable[[RunConfig], Environment]] = Registry(
    "environment",
    "env.name",
    group="orchestra_jax.environments",
    builtin={
        "quickstart": "orchestra_jax.envs.quickstart.environment:QuickstartEnvironment",
        "qa": "orchestra_jax.envs.qa.environment:QAEnvironment",
    },
)


def make_environment(cfg: RunConfig) -> Environment:
    """The environment of the run.

    Raises:
        ConfigError: there is none of this name, or something that it needs cannot be used.
    """
    return ENVIRONMENTS.get(cfg.env.name)(cfg)


def problems(cfg: RunConfig) -> list[str]:
    """See `Environment.problems`."""
    found: list[str] = _asked(cfg, "problems")
    return found


def own_chat(cfg: RunConfig) -> OwnChat | None:
    """See `Environment.chat`."""
    found: OwnChat | None = _asked(cfg, "chat")
    return found


def forecast(cfg: RunConfig) -> str | None:
    """See `Environment.forecast`."""
    found: str | None = _asked(cfg, "forecast")
    return found


def _asked(cfg: RunConfig, question: str) -> Any:
    made_by = ENVIRONMENTS.get(cfg.env.name)
    return getattr(made_by, question, getattr(Environment, question))(cfg)
