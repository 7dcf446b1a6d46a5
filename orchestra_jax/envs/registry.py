"""The environments by name."""

from collections.abc import Callable

from orchestra_jax.config.registry import Registry
from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.envs.base import Environment

# A subclass of `Environment`, or a function that makes one; only a class has checks, a chat and a forecast.
ENVIRONMENTS: Registry[Callable[[WorldConfig], Environment]] = Registry(
    "environment",
    "env.name",
    group="orchestra_jax.environments",
    kind=Environment,
    builtin={
        "quickstart": "orchestra_jax.envs.quickstart.environment:QuickstartEnvironment",
        "qa": "orchestra_jax.envs.qa.environment:QAEnvironment",
        "tau2": "orchestra_jax.envs.tau2.environment:Tau2Environment",
        "bfcl": "orchestra_jax.envs.bfcl.environment:BFCLEnvironment",
        "mixture": "orchestra_jax.envs.mixture:MixtureEnvironment",
        "toolscale": "orchestra_jax.envs.toolscale.environment:ToolScaleEnvironment",
        "recorded": "orchestra_jax.envs.recorded.environment:RecordedEnvironment",
        "database": "orchestra_jax.envs.database.environment:DatabaseEnvironment",
    },
)


def make_environment(cfg: WorldConfig) -> Environment:
    """Make the environment of the run.

    Raises:
        ConfigError: there is none of this name, or something that it needs cannot be used.
    """
    return ENVIRONMENTS.get(cfg.env.name)(cfg)


def environment_class(cfg: WorldConfig) -> type[Environment]:
    """Return the class to ask for `problems`, `chat` and `forecast`; `Environment` if a function makes the run's.

    Raises:
        ConfigError: there is no environment of this name.
    """
    made_by = ENVIRONMENTS.get(cfg.env.name)
    return made_by if isinstance(made_by, type) and issubclass(made_by, Environment) else Environment
