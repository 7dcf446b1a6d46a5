"""A dry run: what a step will cost, before a dollar is spent."""

from orchestra_jax.config.schema import RunConfig
from orchestra_jax.money.prices import PriceList


def dry_run(cfg: RunConfig, prices: PriceList) -> str | None:
    """What a step will cost outside, in a sentence; None where no expert is called.

    Assumes that each trajectory makes plan.calls calls of one expert, and one of the judge.
    """
    models = sorted({model for models in cfg.tools.experts.values() for model in models})
    if not models:
        return None
    if cfg.replay.mode == "replay":
        return "Dry run: all outside calls are replayed and cost nothing."
    plan, trajectories = cfg.plan, cfg.algorithm.tasks_per_step * cfg.algorithm.group_size

    def dollars(model: str) -> float:
        return prices.cost(model, prompt_tokens=plan.call_input, completion_tokens=plan.call_output)

    judge = 0.0 if cfg.tools.judge == "match" else dollars(cfg.tools.judge)
    cost = {model: trajectories * (plan.calls * dollars(model) + judge) for model in models}
    mean, dearest = sum(cost.values()) / len(cost), max(cost, key=cost.__getitem__)
    limit = cfg.budget.run_usd
    more = f" (with algorithm.refill up to {cfg.algorithm.refill + 1} times that)" if cfg.algorithm.refill else ""
    end = "no budget.run_usd is set" if limit is None else f"budget.run_usd={limit:g} ends the run"
    return (
        f"Dry run: with {plan.calls} calls of {plan.call_input} + {plan.call_output} tokens per trajectory a step of "
        f"{trajectories} trajectories costs about ${mean:.2f} with experts at random, ${cost[dearest]:.2f} with "
        f"{dearest} alone, and {cfg.steps} steps ${mean * cfg.steps:.2f}{more}; {end}."
    )
