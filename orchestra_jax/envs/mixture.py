"""Several environments in one run: each task comes from one of them, by weight, and is played and scored there.

Settings (`env.options`): `parts`, environment -> weight; and for each of them its own options under its name. The paper
trains on GeneralThought and ToolScale in equal shares: `{parts: {qa: 0.5, toolscale: 0.5}, toolscale: {repo: ...}}`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.data.pipeline import TaskIterator
from orchestra_jax.envs.base import Demonstrations, Environment, Episode, OfferedExpert, Script
from orchestra_jax.envs.registry import environment_class, make_environment
from orchestra_jax.money.budgets import Budget
from orchestra_jax.types import Task, ToolCall, ToolResult

_PART = "part"  # key of a task's extra: the part that it came from
_OPTIONS = "env.options."


class MixedTasks:
    """An endless stream that draws every task from one of several streams; see `data.pipeline.TaskIterator`.

    The draw depends on the seed and the place in the stream alone, so the state is that place and the parts' states.

    Args:
        streams: streams by part, each giving `unit` tasks at a time, which stay together.
        weights: weights of the parts, up to a factor.
        batch_size: tasks of a batch, a multiple of `unit`.
    """

    def __init__(
        self,
        streams: Mapping[str, TaskIterator],
        weights: Mapping[str, float],
        *,
        seed: int,
        batch_size: int,
        unit: int,
    ) -> None:
        self._streams, self._names, self._seed = streams, list(streams), seed
        self._edges = np.cumsum([weights[name] for name in self._names]) / sum(weights.values())
        self._units, self._place = batch_size // unit, 0

    def __iter__(self) -> "MixedTasks":
        return self

    def __next__(self) -> list[Task]:
        batch = list[Task]()
        for _ in range(self._units):
            drawn = np.random.default_rng([self._seed, self._place]).random()
            name = self._names[int(np.searchsorted(self._edges[:-1], drawn, side="right"))]
            self._place += 1
            batch += (with_part(task, name) for task in next(self._streams[name]))
        return batch

    def get_state(self) -> dict[str, Any]:
        """Return the position, as JSON."""
        return {"place": self._place, "parts": {name: stream.get_state() for name, stream in self._streams.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a position of `get_state`."""
        self._place = state["place"]
        for name, stream in self._streams.items():
            stream.set_state(state["parts"][name])


class MixtureEnvironment(Environment):
    """Several environments as one."""

    def __init__(self, cfg: WorldConfig) -> None:
        if wrong := self.problems(cfg):
            raise ConfigError("\n".join(wrong))
        self._cfg, self._weights = cfg, _weights(cfg)
        self._parts = dict[str, Environment]()
        for name in self._weights:
            try:
                self._parts[name] = make_environment(part_of(cfg, name))
            except ConfigError as error:
                raise ConfigError(_named(name, str(error))) from error
        self.silent_baselines = all(part.silent_baselines for part in self._parts.values())

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        try:
            weights = _weights(cfg)
        except ConfigError as error:
            return [str(error)]
        found = list[str]()
        for name in weights:
            try:
                wrong = environment_class(part_of(cfg, name)).problems(part_of(cfg, name))
            except ConfigError as error:
                return [str(error)]
            others = " or ".join(f"env={other}" for other in weights if other != name)
            hint = f" Without {name}: {others}." if others else ""
            # The other parts need shared things too, such as a tool's server.
            found += [_named(name, each) + hint if _OPTIONS in each else each for each in wrong]
        return list(dict.fromkeys(found))

    @classmethod
    def forecast(cls, cfg: WorldConfig) -> str | None:
        weights = _weights(cfg)
        shares = ", ".join(f"{weight / sum(weights.values()):.0%} {name}" for name, weight in weights.items())
        told = [environment_class(part_of(cfg, name)).forecast(part_of(cfg, name)) for name in weights]
        return "\n".join([f"Tasks: {shares}.", *filter(None, told)])

    def train_tasks(self, batch_size: int) -> MixedTasks:
        unit = self._cfg.data.preferences_per_question
        streams = {name: part.train_tasks(unit) for name, part in self._parts.items()}
        return MixedTasks(streams, self._weights, seed=self._cfg.seed, batch_size=batch_size, unit=unit)

    def held_out(self, count: int) -> Sequence[Task]:
        """Return tasks of each part by its weight; if one has too few, the others give more."""
        found = {name: part.held_out(count) for name, part in self._parts.items()}
        return [with_part(task, name) for name, task in _by_weight(found, self._weights, count)]

    def reset(self, task: Task, budget: Budget) -> Episode:
        return self._of(task).reset(task, budget)

    def largest_menu(self) -> int | None:
        sizes = [part.largest_menu() for part in self._parts.values()]
        return None if None in sizes else max(size for size in sizes if size is not None)

    def demonstrations(self) -> Demonstrations | None:
        """Return the demonstrations of the first part that has any."""
        for name, part in self._parts.items():
            if (found := part.demonstrations()) is not None:
                tasks, gate = ([with_part(task, name) for task in some] for some in (found.tasks, found.gate))
                return replace(found, tasks=tasks, gate=gate)
        return None

    def paired_preferences(self, count: int) -> Mapping[str, Sequence[Task]]:
        """Return questions of the parts that have any, by weight, under the kinds that all of these have."""
        pairs = {name: found for name, part in self._parts.items() if (found := part.paired_preferences(count))}
        kinds = [kind for kind in next(iter(pairs.values()), {}) if all(kind in found for found in pairs.values())]
        posed = {kind: {name: found[kind] for name, found in pairs.items()} for kind in kinds}
        return {
            kind: [with_part(task, name) for name, task in _by_weight(tasks, self._weights, count)]
            for kind, tasks in posed.items()
        }

    def baselines(self) -> Mapping[str, Script]:
        """Return the baselines that every part has."""
        scripts = {name: part.baselines() for name, part in self._parts.items()}
        common = set.intersection(*(set(each) for each in scripts.values()))
        return {script: _routed({name: each[script] for name, each in scripts.items()}) for script in sorted(common)}

    def experts(self, task: Task) -> Sequence[OfferedExpert]:
        return self._of(task).experts(task)

    def copied_call(self, task: Task, tool: str) -> ToolCall:
        return self._of(task).copied_call(task, tool)

    def said(self, task: Task, result: ToolResult) -> str | None:
        return self._of(task).said(task, result)

    async def close(self) -> None:
        for part in self._parts.values():
            await part.close()

    def _of(self, task: Task) -> Environment:
        return self._parts[task.extra[_PART]]


def part_of(cfg: WorldConfig, name: str) -> WorldConfig:
    """Return the settings that a part of the mixture sees: its environment and its own options."""
    env = replace(cfg.env, name=name, options=dict(cfg.env.options.get(name) or {}))
    return replace(cfg, env=env)


def with_part(task: Task, part: str) -> Task:
    """Return the task with the name of its part."""
    return replace(task, extra={**task.extra, _PART: part})


def _weights(cfg: WorldConfig) -> dict[str, float]:
    """Return the weight of each part.

    Raises:
        ConfigError: the parts or their options are wrong.
    """
    parts = cfg.env.options.get("parts") or {}
    given = list(parts.values()) if isinstance(parts, Mapping) else []
    if not given or not all(isinstance(each, int | float) and each > 0 for each in given):
        raise ConfigError(
            "env.options.parts must give every part of the mixture a weight above 0, such as {qa: 0.5, toolscale: 0.5}."
        )
    if "mixture" in parts:
        raise ConfigError("env.options.parts: a mixture cannot be a part of a mixture.")
    if unknown := [name for name in cfg.env.options if name != "parts" and name not in parts]:
        raise ConfigError(f"env.options.{unknown[0]} is of no part of the mixture: {', '.join(parts)}.")
    return {str(name): float(weight) for name, weight in parts.items()}


def _named(part: str, sentence: str) -> str:
    """Return a part's sentence with the names that its options have here."""
    return sentence.replace(_OPTIONS, f"{_OPTIONS}{part}.")


def _by_weight(
    found: Mapping[str, Sequence[Task]], weights: Mapping[str, float], count: int
) -> Iterator[tuple[str, Task]]:
    """Yield up to `count` tasks, at every place as near to the weights as whole numbers can be."""
    taken = dict.fromkeys(found, 0)
    for _ in range(count):
        left = [name for name in found if taken[name] < len(found[name])]
        if not left:
            return
        name = min(left, key=lambda each: (taken[each] + 1) / weights[each])
        yield name, found[name][taken[name]]
        taken[name] += 1


def _routed(scripts: Mapping[str, Script]) -> Script:
    def script(task: Task, observed: Sequence[ToolResult]) -> ToolCall | str:
        return scripts[task.extra[_PART]](task, observed)

    return script
