"""Policies by hand on recorded answers; what they know of the models, the training split told them.

Beside these there are the baselines of every environment (`envs.baselines`: each expert, random, cheapest_first).
`oracle` is no policy: it knows who is right.

A cascade asks a cheap model first, and a strong one only if a check of the answer fails. The check is self-consistency
(a second cheap model says the same), or a classifier of answers (`router.Router.trust`). Each runs the code first if
the question has some.
"""

from collections.abc import Callable, Mapping, Sequence

from orchestra_jax.envs.base import Script
from orchestra_jax.envs.recorded import knn, router
from orchestra_jax.envs.recorded.choices import (
    NEAR,
    AnswerOf,
    Asking,
    Offered,
    Policy,
    PricedExpert,
    ask,
    best,
    code_run,
    near,
    scripted,
)
from orchestra_jax.envs.recorded.table import Evidence, Recording, same_answer
from orchestra_jax.types import Task

CHEAP = 0.2  # accuracy that a first model may lack
TRUSTED = 0.75  # an answer that is right with this probability is not checked


def baselines(
    offered: Offered,
    said: AnswerOf,
    evidence: Mapping[str, Evidence],
    recording: Recording,
    training: Sequence[str],
) -> dict[str, Script]:
    """Return the scripts by name.

    `best`: the model that was right most often in training, of equals the cheapest; `best_per_family`: the same on
    questions of this kind (it is told the kind); `cheapest`: the cheapest of the menu; `code_first`: runs the code
    where the question has some, else asks as `best_per_family`.

    `code_cheap`: the code, else the cheapest model within `NEAR` of the best; `code_cheap_strong`: that model only for
    kinds of questions where it is within `NEAR` / 2 of the best of the kind, else that one; `code_then_cheapest_good`:
    the code, else the cheapest model within `NEAR` of the best of the kind. `cascade`: asks two cheap models, and
    a strong one if they differ.

    With scikit-learn: `router` and `router_code`, which heed the task's wish, and the same for a fixed one as
    `router_right`, `router_cheap` and `router_fast`, `router_code_right` and so on; `cascade_trusted`: asks a cheap
    model, and a strong one if a classifier distrusts its answer; `knn` and `knn_code` and the same for accuracy as
    `knn_right` and `knn_code_right`: one model, and another where similar questions prove it better (`knn.guarded`).

    `oracle`: the code, else the cheapest that is right.

    Args:
        training: ids of the training split's questions; the router and the neighbours are of no other.
    """

    def overall(choices: Sequence[PricedExpert]) -> list[float]:
        return [evidence[choice.name].accuracy for choice in choices]

    def of_kind(choices: Sequence[PricedExpert], task: Task) -> list[float]:
        return [evidence[choice.name].share(task.family) for choice in choices]

    def cheap(task: Task) -> PricedExpert:
        return near(offered(task), overall(offered(task)))[0]

    def cheap_or_strong(task: Task) -> PricedExpert:
        shares = of_kind(offered(task), task)
        first, strong = cheap(task), best(offered(task), shares)
        return first if first in near(offered(task), shares, NEAR / 2) else strong

    def right(task: Task) -> PricedExpert:
        rows = [recording.answer(choice.name, task.extra["question"]) for choice in offered(task)]
        return best(offered(task), [row.correct for row in rows])

    def one(choose: Callable[[Task], PricedExpert], code: bool = False) -> Policy:
        def asked(task: Task) -> Asking:
            return ask(choose(task).call)

        return (lambda task: code_run(task, asked)) if code else asked

    def best_of_kind(task: Task) -> PricedExpert:
        return best(offered(task), of_kind(offered(task), task))

    policies: dict[str, Policy] = {
        "best": one(lambda task: best(offered(task), overall(offered(task)))),
        "best_per_family": one(best_of_kind),
        "cheapest": one(lambda task: offered(task)[0]),
        "code_first": one(best_of_kind, code=True),
        "code_cheap": one(cheap, code=True),
        "code_cheap_strong": one(cheap_or_strong, code=True),
        "code_then_cheapest_good": one(lambda task: near(offered(task), of_kind(offered(task), task))[0], code=True),
        "cascade": _agreeing(offered, evidence),
    }
    if router.available():
        fitted = router.Router(recording.of(training))
        policies["cascade_trusted"] = _trusting(offered, evidence, fitted)
        for name, wish in (("", None), ("_right", "accuracy"), ("_cheap", "low_cost"), ("_fast", "fast")):
            policies[f"router{name}"] = router.routed(offered, fitted, wish)
            policies[f"router_code{name}"] = router.routed(offered, fitted, wish, code=True)
        neighbours = knn.Neighbours(recording.of(training))
        for name, wish in (("", None), ("_right", "accuracy")):
            policies[f"knn{name}"] = knn.guarded(offered, evidence, neighbours, wish)
            policies[f"knn_code{name}"] = knn.guarded(offered, evidence, neighbours, wish, code=True)
    return {name: scripted(policy, said) for name, policy in {**policies, "oracle": one(right, code=True)}.items()}


def _ladder(offered: Offered, evidence: Mapping[str, Evidence], task: Task) -> tuple[list[PricedExpert], PricedExpert]:
    """Return the models that are cheaper than the best and good enough to ask before it, and the best."""
    choices = offered(task)
    shares = [evidence[choice.name].share(task.family) for choice in choices]
    strong = best(choices, shares)
    return [choice for choice in near(choices, shares, CHEAP) if choice.usd < strong.usd], strong


def _agreeing(offered: Offered, evidence: Mapping[str, Evidence]) -> Policy:
    """Return a policy that asks the two cheapest good models, and the best one if they differ."""

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


def _trusting(offered: Offered, evidence: Mapping[str, Evidence], trusted: router.Router) -> Policy:
    """Return a policy that asks the cheapest good model, and the best one if a classifier distrusts the answer."""

    def asked(task: Task) -> Asking:
        cheap, strong = _ladder(offered, evidence, task)
        text: str | None = None
        for first in cheap[:1]:
            text = yield first.call
            if text and trusted.trust(first.name, task.question, text) >= TRUSTED:
                return text
        return (yield strong.call) or text or ""

    return lambda task: code_run(task, asked)
