"""A policy on held-out tasks: at temperature 1 and greedy, under swapped preferences, and beside baselines."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestra_jax.config.schema import EvaluationConfig
from orchestra_jax.engines.base import Engine
from orchestra_jax.evaluation.metrics import preference_swap, preference_utility, summarize, tool_shares
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rl.rewards import ToolFeature
from orchestra_jax.rollout.collector import Collector, Script
from orchestra_jax.types import Task, Trajectory

_SEED = 7  # evaluations sample alike, before and after


class Evaluator:
    """Measures whatever policy the engine holds, on fixed tasks.

    Args:
        cfg: temperatures and sizes.
        tasks: held-out tasks.
        swap: the same held-out questions under each kind of preference; may be empty.
        baselines: scripts to compare with, by name; may be empty.
        collector: runs the episodes.
        engine: the policy.
        tool_feature: m_t of the preference utility, the same as in training.
        budget: of the run: pays for the evaluations.
    """

    def __init__(
        self,
        cfg: EvaluationConfig,
        tasks: Sequence[Task],
        swap: Mapping[str, Sequence[Task]],
        baselines: Mapping[str, Script],
        collector: Collector,
        engine: Engine,
        tool_feature: ToolFeature,
        budget: Budget,
    ) -> None:
        self.cfg, self.tasks, self.swap, self.scripts = cfg, list(tasks), swap, baselines
        self.collector, self.engine, self.tool_feature = collector, engine, tool_feature
        self._budget = budget
        self._baseline_runs: dict[str, list[Trajectory]] | None = None

    async def evaluate(self) -> dict[str, Any]:
        """Figures of the policy now: `summarize`'s, `tool_shares`, `utility`; `greedy` and `swap` where configured."""
        figures = await self._figures(self.cfg.temperature)
        if self.cfg.greedy and self.cfg.temperature:
            figures["greedy"] = await self._figures(0.0)
        if self.swap:
            figures["swap"] = preference_swap(
                {kind: await self._collect(tasks, self.cfg.temperature) for kind, tasks in self.swap.items()}
            )
        return figures

    async def baselines(self) -> dict[str, dict[str, float]]:
        """Figures of every baseline on the same tasks."""
        runs = await self._runs()
        return {name: summarize(run) | self._utility(run, runs) for name, run in runs.items()}

    async def _figures(self, temperature: float) -> dict[str, Any]:
        run = await self._collect(self.tasks, temperature)
        runs = await self._runs()
        return summarize(run) | self._utility(run, runs) | {"tool_shares": tool_shares(run)}

    async def _collect(self, tasks: Sequence[Task], temperature: float) -> list[Trajectory]:
        return await self.collector.collect(
            self.engine, tasks, budget=self._budget, temperature=temperature, seed=(_SEED,)
        )

    async def _runs(self) -> dict[str, list[Trajectory]]:
        """The baselines' trajectories; they depend on nothing that is trained and are played once."""
        if self._baseline_runs is None:
            self._baseline_runs = {
                name: await self.collector.play(script, self.tasks, budget=self._budget)
                for name, script in self.scripts.items()
            }
        return self._baseline_runs

    def _utility(self, run: list[Trajectory], baselines: Mapping[str, list[Trajectory]]) -> dict[str, float]:
        if not baselines:
            return {}
        utility = preference_utility([run], list(baselines.values()), self.tool_feature)
        return {"utility": float(np.mean(utility))}
