"""Loggers of a run: `logger.names` chooses them, and each gets the figures of every step."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import Any, Protocol

from orchestra_jax.config.registry import Registry
from orchestra_jax.config.schema import RunConfig


class Logger(Protocol):
    """A place that figures are written to."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the figures of a step. They may be NaN or infinite."""

    def close(self) -> None:
        """Write what is not written yet. Closing twice is harmless."""


# A factory gets the run and the first step that will be logged. In a resumed run this is the step after its
# checkpoint: figures that were logged for it or a later step, before the run was killed, will be logged again.
LoggerFactory = Callable[[RunConfig, int], Logger]

LOGGERS: Registry[LoggerFactory] = Registry(
    "logger",
    "logger.names",
    group="orchestra_jax.loggers",
    kind=Logger,
    builtin={
        "jsonl": "orchestra_jax.training.loggers.jsonl:JsonlLogger",
        "tensorboard": "orchestra_jax.training.loggers.tensorboard:TensorBoardLogger",
        "wandb": "orchestra_jax.training.loggers.wandb:WandbLogger",
    },
)


def chosen(cfg: RunConfig) -> list[LoggerFactory]:
    """Return the run's loggers. metrics.jsonl is always among them because the report reads it.

    Raises:
        ConfigError: there is no logger of a name, or it needs a package that is not installed.
    """
    return [LOGGERS.get(name) for name in dict.fromkeys(["jsonl", *cfg.logger.names])]


class RunLog(ExitStack):
    """All loggers of a run as one; a context manager that closes them. Only the first process of a run `writes`."""

    def __init__(self, cfg: RunConfig, first_step: int, *, writes: bool = True) -> None:
        super().__init__()
        factories = chosen(cfg) if writes else []
        with ExitStack() as opened:
            self._loggers = [opened.enter_context(closing(make(cfg, first_step))) for make in factories]
            self.push(opened.pop_all())

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Give the figures of a step, numbers or anything that `float()` takes, to every logger.

        Raises:
            ValueError: a value is not a single number, or a metric is called "step".
        """
        if "step" in metrics:
            raise ValueError('"step" is the key of the step itself: give that metric another name.')
        row = {name: _number(name, value) for name, value in metrics.items()}
        for logger in self._loggers:
            logger.log(int(step), row)


def _number(name: str, value: Any) -> float | int:
    try:
        return int(value) if isinstance(value, int) else float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Metric {name!r} is not a single number ({value!r}): reduce it before logging.") from error
