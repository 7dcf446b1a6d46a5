"""A dry run: what a step will cost, before a dollar is spent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.money.prices import PriceList


@dataclass(frozen=True)
class StepCost:
    """Dollars of one step for what is called outside.

    Attributes:
        trajectories: of the step.
        experts: for calls of experts at random.
        judge: for one verdict a trajectory.
        dearest: the expert that costs most.
        alone: dollars where all calls are its, and the judge's.
    """

    trajectories: int
    experts: float
    judge: float
    dearest: str
    alone: float

    @property
    def total(self) -> float:
        return self.experts + self.judge


def step_cost(cfg: WorldConfig, prices: PriceList) -> StepCost | None:
    """Dollars of a step, or None where no expert is called.

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


def dry_run(cfg: WorldConfig, prices: PriceList) -> str | None:
    """What a step will cost outside, in a sentence; None where no expert is called."""
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


def evaluation_cost(
    cfg: WorldConfig,
    prices: PriceList,
    tasks: Mapping[str, int],
    *,
    own: bool,
    asked: Sequence[str] | None = None,
    calls: int | None = None,
) -> str | None:
    """What an evaluation will cost outside, in a sentence; None where nothing is paid for.

    Assumes plan.calls calls of an expert at random a question, and for the policy's own tokens a conversation that
    grows evenly to plan.tokens over plan.turns generations, plan.response of it sampled; what was there before a
    generation is read from the provider's cache.

    Args:
        tasks: questions of each benchmark.
        own: whether the policy's own tokens are paid for too, as those of an endpoint are.
        asked: the only experts that are called; None: all of the menu. calls: a question, in the place of plan.calls;
            who makes none has no answer that a judge could be asked about.
    """
    plan, settings = cfg.plan, cfg.evaluation
    if calls == 0:
        return None
    calls = plan.calls if calls is None else calls
    count = sum(tasks.values()) * (settings.samples + (1 if settings.greedy and settings.temperature else 0))
    offer = cfg.tools.evaluated
    models = sorted({model for models in offer.experts.values() for model in models if asked is None or model in asked})
    judge = 0.0 if cfg.tools.judge == "match" else _call(cfg, prices, cfg.tools.judge)
    experts = calls * sum(_call(cfg, prices, model) for model in models) / max(1, len(models))
    turns, tokens = plan.turns or plan.calls + 1, plan.tokens or cfg.rollout.limits.max_length
    sampled = round(plan.response * tokens)
    read = sum(round(tokens * turn / turns) for turn in range(1, turns + 1)) - sampled
    policy = 0.0
    if own:
        policy = prices.cost(
            "orchestrator", prompt_tokens=read, cached_tokens=max(0, read - tokens), completion_tokens=sampled
        )
    if not (experts or judge or policy):
        return None
    named = ", ".join(f"{name} ({number})" for name, number in tasks.items())
    if cfg.replay.mode == "replay":
        return f"{count} trajectories of {named}: all outside calls are replayed and cost nothing."
    limit = cfg.budget.run_usd
    end = "no budget.run_usd is set" if limit is None else f"budget.run_usd={limit:g} ends it"
    told = {
        f"experts ${count * experts:.2f} ({calls} calls of {plan.call_input} + {plan.call_output} tokens each)":
            experts,
        f"the judge ${count * judge:.2f} (one verdict each)": judge,
        f"the policy itself ${count * policy:.2f} ({turns} turns up to {tokens} tokens)": policy,
    }  # fmt: skip
    parts = ", ".join(text for text, usd in told.items() if usd)
    return f"{count} trajectories of {named} cost about ${count * (experts + judge + policy):.2f}: {parts}; {end}."


def _call(cfg: WorldConfig, prices: PriceList, model: str) -> float:
    return prices.cost(model, prompt_tokens=cfg.plan.call_input, completion_tokens=cfg.plan.call_output)
