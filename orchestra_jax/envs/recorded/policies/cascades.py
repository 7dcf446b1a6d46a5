"""Cascades: a cheap model is asked first, and a strong one only where a check of its answer fails.

The check is self-consistency (a second cheap model says the same), or a classifier of answers (`router.Router.trust`).
Each runs the code first where the question has some.
"""

from collections.abc import Mapping

from orchestra_jax.envs.recorded.evidence import Evidence
from orchestra_jax.envs.recorded.policies.choices import Asking, Choice, Offered, Policy, best, code_run, near
from orchestra_jax.envs.recorded.policies.router import Router
from orchestra_jax.envs.recorded.table import same_answer
from orchestra_jax.types import Task

Known = Mapping[str, Evidence]
CHEAP = 0.2  # accuracy that a first model may lack
TRUSTED = 0.75  # an answer that is right with this probability is not checked


def _ladder(offered: Offered, evidence: Known, task: Task) -> tuple[list[Choice], Choice]:
    """The models that are good enough to be asked before the best and cheaper, the cheapest first; and the best."""
    choices = offered(task)
    shares = [evidence[choice.name].by_family[task.family] for choice in choices]
    strong = best(choices, shares)
    return [choice for choice in near(choices, shares, CHEAP) if choice.usd < strong.usd], strong


def agreeing(offered: Offered, evidence: Known) -> Policy:
    """Asks the two cheapest good models; the best one where they differ."""

    def asked(task: Task) -> Asking:
        cheap, strong = _ladder(offered, evidence, task)
        found = list[str]()
        for choice in cheap[:2] if len(cheap) > 1 else []:  # one alone cannot be checked
            if (text := (yield choice.call)) is not None:
                found.append(text)
        if len(found) == 2 and (same_answer(found[0], [found[1]]) or same_answer(found[1], [found[0]])):
            return found[0]
        return (yield strong.call) or (found or [""])[0]

    return lambda task: code_run(task, asked)


def trusting(offered: Offered, evidence: Known, router: Router) -> Policy:
    """Asks the cheapest good model; the best one where a classifier does not trust the answer."""

    def asked(task: Task) -> Asking:
        cheap, strong = _ladder(offered, evidence, task)
        text: str | None = None
        for first in cheap[:1]:
            text = yield first.call
            if text and router.trust(first.name, task.question, text) >= TRUSTED:
                return text
        return (yield strong.call) or text or ""

    return lambda task: code_run(task, asked)
