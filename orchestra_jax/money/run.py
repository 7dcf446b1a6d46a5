"""The money of a run: its budgets, what is kept of them across restarts, and a dry run of a step's cost."""

import json
import os
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import BudgetConfig, RunConfig
from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.money.forecast import predict
from orchestra_jax.money.prices import PriceList
from orchestra_jax.types import Usage

FILE_NAME = "spent.json"


class Halted(Exception):  # noqa: N818  an event, no error
    """A budget or the record does not let the run go on; everything is saved."""


def limits(budget: BudgetConfig, level: str) -> Limits:
    """The limits of the level "run", "step" or "trajectory"."""
    return Limits(*(getattr(budget, f"{level}_{unit}") for unit in ("usd", "tokens", "calls")))


class RunMoney:
    """The budget of the run, kept in a file of its own: a run that goes back to a checkpoint has spent it all the same.

    Attributes:
        run: the budget of the whole run, what was spent before a restart included.
    """

    def __init__(self, budget: BudgetConfig, directory: Path) -> None:
        self._config, self._file = budget, directory / FILE_NAME
        self.run = Budget(limits(budget, "run"), name="run")
        if self._file.exists():
            self.run.set_state(json.loads(self._file.read_text()))

    def step(self) -> Budget:
        """The budget of a new step."""
        return Budget(limits(self._config, "step"), name="step", parent=self.run)

    def save(self) -> None:
        """Writes what was spent until now; calls in flight count with their worst case."""
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(self.run.get_state()) + "\n")
        os.replace(part, self._file)

    def summary(self) -> dict[str, Any]:
        """Dollars, tokens and calls, in all and by model or tool, dearest first."""
        spent = self.run.spent
        names = sorted(self.run.by_name().items(), key=lambda item: -item[1].usd)
        by_name = {name: {"usd": s.usd, "tokens": s.tokens, "calls": s.calls} for name, s in names}
        return {"usd": spent.usd, "tokens": spent.tokens, "calls": spent.calls, "by_name": by_name}


def dry_run(cfg: RunConfig, prices: PriceList) -> str | None:
    """What a step will cost outside, before anything is spent; None where no expert is called.

    Made-up trajectories make plan.calls calls of one expert each, and one of the judge.
    """
    models = sorted({model for models in cfg.tools.experts.values() for model in models})
    if not models:
        return None
    plan, trajectories = cfg.plan, cfg.algorithm.tasks_per_step * cfg.algorithm.group_size

    def call(model: str, role: str) -> Usage:
        row = Usage(model, role, prompt_tokens=plan.call_input, completion_tokens=plan.call_output)
        return prices.charge(row)

    judge = [] if cfg.tools.judge == "match" else [call(cfg.tools.judge, "judge")]
    ledgers = {model: [*[call(model, "tool")] * plan.calls, *judge] for model in models}
    total = predict(ledgers.values(), trajectories)[-1]
    dearest = max(ledgers, key=lambda model: sum(row.cost_usd for row in ledgers[model]))
    if cfg.replay.mode == "replay":
        return "Dry run: all outside calls are replayed and cost nothing."
    limit = cfg.budget.run_usd
    end = "no budget.run_usd is set" if limit is None else f"budget.run_usd={limit:g} ends the run"
    return (
        f"Dry run: with {plan.calls} calls of {plan.call_input} + {plan.call_output} tokens per trajectory a step of "
        f"{trajectories} trajectories costs about ${total.usd:.2f} with experts at random, ${total.worst_usd:.2f} with "
        f"{dearest} alone, and {cfg.steps} steps ${total.usd * cfg.steps:.2f}; {end}."
    )
