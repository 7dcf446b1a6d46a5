"""Benchmarks by name: tasks that a policy is measured on, made from the environment of the run."""

from collections.abc import Callable, Mapping, Sequence

from orchestra_jax.config.registry import Registry
from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.envs.base import Environment
from orchestra_jax.types import Task

Tasks = Sequence[Task] | Mapping[str, Sequence[Task]]  # by name, where a benchmark has parts
Benchmark = Callable[[Environment, WorldConfig], Tasks]

HELD_OUT, PREFERENCE_SWAP = "held_out", "preference_swap"

BENCHMARKS: Registry[Benchmark] = Registry(
    "benchmark",
    "evaluation.benchmarks",
    group="orchestra_jax.benchmarks",
    builtin={
        HELD_OUT: "orchestra_jax.evaluation.benchmarks:held_out",
        PREFERENCE_SWAP: "orchestra_jax.evaluation.benchmarks:preference_swap",
        "every_preference": "orchestra_jax.envs.quickstart.unseen:every_preference",
        "unseen_prices": "orchestra_jax.envs.quickstart.unseen:unseen_prices",
        "unseen_tools": "orchestra_jax.envs.quickstart.unseen:unseen_tools",
        "unseen_recorded": "orchestra_jax.envs.recorded.environment:unseen_recorded",
    },
)


def held_out(environment: Environment, cfg: WorldConfig) -> Sequence[Task]:
    """Return evaluation.questions of the environment's held-out tasks."""
    return environment.held_out(cfg.evaluation.questions)


def preference_swap(environment: Environment, cfg: WorldConfig) -> Mapping[str, Sequence[Task]]:
    """Return the same evaluation.swap_questions held-out questions by kind of preference, e.g. "cost" or "low_cost"."""
    return environment.paired_preferences(cfg.evaluation.swap_questions)


def chosen_tasks(environment: Environment, cfg: WorldConfig) -> dict[str, Tasks]:
    """Return the tasks of evaluation.benchmarks by name, the first evaluation.limit of each.

    Raises:
        ConfigError: there is no benchmark of a name.
    """
    limit, found = cfg.evaluation.limit, dict[str, Tasks]()
    for name in cfg.evaluation.benchmarks if cfg.evaluation.questions else []:
        tasks = BENCHMARKS.get(name)(environment, cfg)
        if isinstance(tasks, Mapping):
            found[name] = {part: some[:limit] for part, some in tasks.items()}
        elif len(tasks):
            found[name] = tasks[:limit]
    return {name: tasks for name, tasks in found.items() if len(tasks)}


def in_parts(name: str, tasks: Tasks) -> dict[str, Sequence[Task]]:
    """Return the parts of a benchmark by their names in files; one without parts is its only part."""
    return {f"{name}.{part}": some for part, some in tasks.items()} if isinstance(tasks, Mapping) else {name: tasks}
