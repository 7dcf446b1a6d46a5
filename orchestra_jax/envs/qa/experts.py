"""The models that a menu of the catalogue offers to answer a question, for baselines."""

from orchestra_jax.envs.base import OfferedExpert
from orchestra_jax.money.price_book import PriceDraw
from orchestra_jax.tools.catalogue import Catalogue
from orchestra_jax.tools.experts.roles import ROLES
from orchestra_jax.types import Task, ToolCall


def offered_experts(
    catalogue: Catalogue, task: Task, prompt_tokens: int, completion_tokens: int
) -> list[OfferedExpert]:
    """Return generalists, mathematicians and simulated experts, the cheapest first; each is asked the whole question.

    Args:
        prompt_tokens, completion_tokens: tokens of a call, which order them by the prices of the task's own menu.
    """
    record = task.extra["instance"]
    prices = catalogue.book.prices(PriceDraw(**record["prices"]))
    found = list[tuple[float, OfferedExpert]]()
    for name, key in record["tools"].items():
        entry = catalogue.entries[key]
        if entry.for_task is not None:
            found.append((entry.spec.price_usd or 0.0, OfferedExpert(key, ToolCall(name, {"question": task.question}))))
        elif entry.role and ROLES[entry.role].use == "answer":
            dollars = prices.cost(entry.model, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
            argument = ROLES[entry.role].argument
            released = catalogue.rule.form == "released"
            call = ToolCall("answer", {"model": name}) if released else ToolCall(name, {argument: task.question})
            found.append((dollars, OfferedExpert(entry.model, call)))
    # By name where the price is one: menus are in random order.
    return [expert for _, expert in sorted(found, key=lambda pair: (pair[0], pair[1].name, pair[1].call.name))]
