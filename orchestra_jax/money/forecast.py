"""The cost of an evaluation, told before a dollar is spent; that of a training step is in training/forecast.py."""

from collections.abc import Mapping, Sequence

from orchestra_jax.config.roles import Role
from orchestra_jax.config.schema import ToolsConfig, WorldConfig
from orchestra_jax.money.prices import POLICY, PriceList

USER_TURNS = 10  # turns of a conversation with a user whom a model plays


def evaluation_cost(
    cfg: WorldConfig,
    prices: PriceList,
    tasks: Mapping[str, int],
    *,
    paid_policy: bool,
    asked: Sequence[str] | None,
    calls: int | None,
    users: Mapping[str, int],
) -> str | None:
    """Return a sentence about what an evaluation will cost outside, or None if nothing is paid for.

    Assumes plan.calls calls of a paid tool at random a question, and for the policy's own tokens a conversation that
    grows evenly to plan.tokens over plan.turns generations, plan.response of it sampled; what was there before a
    generation is read from the provider's cache. A user whom a model plays says USER_TURNS things in a conversation.

    Args:
        cfg: settings of the run.
        prices: price list that is paid.
        tasks: number of questions of each benchmark.
        paid_policy: True if the policy's own tokens are paid for too, as those of an endpoint are.
        asked: the only experts that are called; None: all of the menu.
        calls: calls for a question, instead of plan.calls; with 0 there is no answer that a judge could be asked about.
        users: number of conversations, those of baselines included, by the model that plays their user.
    """
    plan, settings = cfg.plan, cfg.evaluation
    answers = calls != 0
    calls = plan.calls if calls is None else calls
    count = sum(tasks.values()) * (settings.samples + (1 if settings.greedy and settings.temperature else 0))
    offered = call_costs(cfg, cfg.tools.evaluated, prices)
    each_call = [usd for (name, _), usd in offered.items() if asked is None or name in asked]
    judge = verdict_usd(cfg, prices) if answers else 0.0
    experts = calls * sum(each_call) / max(1, len(each_call))
    talks = {name: number * USER_TURNS * call_usd(cfg, prices, name) for name, number in users.items()}
    turns, tokens = plan.turns or plan.calls + 1, plan.tokens or cfg.rollout.limits.max_length
    policy = _conversation_usd(prices, turns, tokens, plan.response) if paid_policy and answers else 0.0
    if not (experts or judge or policy or any(talks.values())):
        return None
    named = ", ".join(f"{name} ({number})" for name, number in tasks.items())
    if cfg.replay.mode == "replay":
        return f"{count} trajectories of {named}: all outside calls are replayed and cost nothing."
    limit = cfg.budget.run_usd
    end = "no budget.run_usd is set" if limit is None else f"budget.run_usd={limit:g} ends it"
    each = f"{plan.call_input} + {plan.call_output} tokens each"
    who = "experts" if all(role for _, role in offered) else "experts and tools"
    told = {
        f"{who} ${count * experts:.2f} ({calls} call{'s' * (calls != 1)} of {each})": experts,
        f"the judge ${count * judge:.2f} (one verdict each)": judge,
        f"the policy itself ${count * policy:.2f} ({turns} turns up to {tokens} tokens)": policy,
    }
    told |= {
        f"the user {name} ${usd:.2f} ({users[name]} conversations of {USER_TURNS} turns of {each}, those of "
        "baselines included)": usd
        for name, usd in talks.items()
    }
    parts, total = ", ".join(text for text, usd in told.items() if usd), count * (experts + judge + policy)
    return f"{count} trajectories of {named} cost about ${total + sum(talks.values()):.2f}: {parts}; {end}."


def _conversation_usd(prices: PriceList, turns: int, tokens: int, response: float) -> float:
    """Return the dollars of the policy's tokens in one conversation that grows evenly to `tokens`."""
    sampled = round(response * tokens)
    read = sum(round(tokens * turn / turns) for turn in range(1, turns + 1)) - sampled
    new = tokens - round(sampled / turns)  # nobody reads the last response
    return prices.cost(POLICY, prompt_tokens=read, cached_tokens=max(0, read - new), completion_tokens=sampled)


def call_costs(cfg: WorldConfig, tools: ToolsConfig, prices: PriceList) -> dict[tuple[str, str], float]:
    """Return the dollars of a call of each paid tool: of an expert by model and role, of others by name and "".

    A query writer also searches, on the web where that is offered.
    """
    fixed = {name: prices.entries[name].call for name in tools.names if name in prices.entries}
    paid = {(name, ""): usd for name, usd in fixed.items() if usd}
    for role, models in tools.experts.items():
        search = fixed.get("web_search", 0.0) if role == Role.query_writer else 0.0
        paid |= {(model, role): call_usd(cfg, prices, model) + search for model in models}
    return paid


def verdict_usd(cfg: WorldConfig, prices: PriceList) -> float:
    """Return the dollars of one verdict of the judge."""
    return 0.0 if cfg.tools.judge == "match" else call_usd(cfg, prices, cfg.tools.judge)


def call_usd(cfg: WorldConfig, prices: PriceList, model: str) -> float:
    """Return the dollars of one call as plan.call_input and plan.call_output assume it."""
    return prices.cost(model, prompt_tokens=cfg.plan.call_input, completion_tokens=cfg.plan.call_output)
