"""The entry point of inspect-ai: the model provider `orchestra` and a task for each benchmark of conf/benchmark."""

import importlib.util
from collections.abc import Callable
from typing import Any

from orchestra_jax.io.shipped import CONF

BENCHMARKS = tuple(sorted(path.stem for path in (CONF / "benchmark").glob("*.yaml")))


def register() -> None:
    """Register provider and tasks with Inspect."""
    from inspect_ai import task
    from inspect_ai.model import modelapi

    modelapi(name="orchestra")(orchestra)
    for name in BENCHMARKS:
        task(name=name)(_maker(name))


def orchestra() -> Any:
    """Return the class of `--model orchestra/FOLDER`."""
    from orchestra_jax.training.inspect.provider import provider

    return provider()


def _maker(name: str) -> Callable[..., Any]:
    def benchmark(settings: str = "") -> Any:
        from orchestra_jax.training.inspect.tasks import benchmark_task

        return benchmark_task(name, settings)

    benchmark.__doc__ = f"The benchmark {name}; settings: beside its own, as on the command line of evaluate.py."
    return benchmark


if importlib.util.find_spec("inspect_ai") is not None:
    register()
