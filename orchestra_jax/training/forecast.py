"""A dry run: the cost of a training step, told before a dollar is spent."""

from dataclasses import dataclass

from orchestra_jax.config.schema import RunConfig
from orchestra_jax.envs.registry import environment_class
from orchestra_jax.money.price_book import price_book
from orchestra_jax.money.prices import PriceList


@dataclass(frozen=True)
class StepCost:
    """Dollars of one step for calls outside.

    Attributes:
        trajectories: number of trajectories of the step.
        experts: dollars for calls of experts at random.
        judge: dollars for one verdict a trajectory.
        dearest: name of the expert that costs most.
        alone: dollars if all calls are its, and the judge's.
    """

    trajectories: int
    experts: float
    judge: float
    dearest: str
    alone: float

    @property
    def total(self) -> float:
        """Dollars for experts at random and the judge."""
        return self.experts + self.judge


def step_cost(cfg: RunConfig, prices: PriceList) -> StepCost | None:
    """Return the dollars of a step, or None if no expert is called.

    Assumes that each trajectory makes plan.calls calls of one expert, and one of the judge.
    """
    models = sorted({model for models in cfg.tools.experts.values() for model in models})
    if not models:
        return None
    plan, trajectories = cfg.plan, cfg.algorithm.tasks_per_step * cfg.algorithm.group_size

    def dollars(model: str) -> float:
        return trajectories * prices.cost(model, prompt_tokens=plan.call_input, completion_tokens=plan.call_output)

    judge = 0.0 if cfg.tools.judge == "match" else dollars(cfg.tools.judge)
    cost = {model: plan.calls * dollars(model) for model in models}
    dearest = max(cost, key=cost.__getitem__)
    return StepCost(trajectories, sum(cost.values()) / len(cost), judge, dearest, cost[dearest] + judge)


def dry_run(cfg: RunConfig, prices: PriceList) -> str | None:
    """Return a sentence about what a step will cost outside, or None if no expert is called."""
    cost = step_cost(cfg, prices)
    if cost is None:
        return None
    if cfg.replay.mode == "replay":
        return "Dry run: all outside calls are replayed and cost nothing."
    plan, limit = cfg.plan, cfg.budget.run_usd
    more = f" (with algorithm.refill up to {cfg.algorithm.refill + 1} times that)" if cfg.algorithm.refill else ""
    end = "no budget.run_usd is set" if limit is None else f"budget.run_usd={limit:g} ends the run"
    return (
        f"Dry run: with {plan.calls} calls of {plan.call_input} + {plan.call_output} tokens per trajectory a step of "
        f"{cost.trajectories} trajectories costs about ${cost.total:.2f} with experts at random, ${cost.alone:.2f} "
        f"with {cost.dearest} alone, and {cfg.steps} steps ${cost.total * cfg.steps:.2f}{more}; {end}."
    )


def forecast(cfg: RunConfig) -> str | None:
    """Return what is told before a run begins: the environment's own sentences, and what a step will cost."""
    told = environment_class(cfg).forecast(cfg), dry_run(cfg, price_book(cfg).base)
    return "\n".join(filter(None, told)) or None
