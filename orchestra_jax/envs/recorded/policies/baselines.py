"""Policies by hand on recorded answers; what they know of the models, the training split told them.

Beside those of every environment (`envs.baselines`: each expert, random, cheapest_first). `oracle` is no policy: it
knows who is right.
"""

from collections.abc import Callable, Mapping, Sequence

from orchestra_jax.envs.base import Script
from orchestra_jax.envs.recorded.evidence import Evidence
from orchestra_jax.envs.recorded.policies import router as classical
from orchestra_jax.envs.recorded.policies.cascades import agreeing, trusting
from orchestra_jax.envs.recorded.policies.choices import (
    NEAR,
    AnswerOf,
    Choice,
    Offered,
    Policy,
    ask,
    best,
    code_run,
    near,
    scripted,
)
from orchestra_jax.envs.recorded.table import Recording
from orchestra_jax.types import Task


def baselines(
    offered: Offered,
    said: AnswerOf,
    evidence: Mapping[str, Evidence],
    recording: Recording,
    training: Sequence[str],
) -> dict[str, Script]:
    """The scripts by name.

    `best`: the model that was right most often in training, of equals the cheapest; `best_per_family`: the same on
    questions of this kind (it is told the kind); `cheapest`: the cheapest of the menu; `code_first`: runs the code
    where the question has some, else asks as `best_per_family`.

    `code_cheap`: the code, else the cheapest model within `NEAR` of the best; `code_cheap_strong`: that model only for
    kinds of questions where it is within `NEAR` / 2 of the best of the kind, else that one; `code_then_cheapest_good`:
    the code, else the cheapest model within `NEAR` of the best of the kind. `cascade`: see `cascades.agreeing`.

    With scikit-learn: `router` and `router_code`, which heed the task's wish, and the same for a fixed one as
    `router_right`, `router_cheap` and `router_fast`, `router_code_right` and so on; `cascade_trusted`:
    `cascades.trusting`. `oracle`: the code, else the cheapest that is right.

    Args:
        training: questions of the training split; the classical router reads no other.
    """

    def overall(choices: Sequence[Choice]) -> list[float]:
        return [evidence[choice.name].accuracy for choice in choices]

    def of_kind(choices: Sequence[Choice], task: Task) -> list[float]:
        return [evidence[choice.name].by_family[task.family] for choice in choices]

    def cheap(task: Task) -> Choice:
        return near(offered(task), overall(offered(task)))[0]

    def cheap_or_strong(task: Task) -> Choice:
        shares = of_kind(offered(task), task)
        first, strong = cheap(task), best(offered(task), shares)
        return first if first in near(offered(task), shares, NEAR / 2) else strong

    def right(task: Task) -> Choice:
        rows = [recording.records[choice.name][task.extra["question"]] for choice in offered(task)]
        return best(offered(task), [row.correct for row in rows])

    def one(choose: Callable[[Task], Choice], code: bool = False) -> Policy:
        def asked(task: Task):  # type: ignore[no-untyped-def]
            return ask(choose(task).call)

        return (lambda task: code_run(task, asked)) if code else asked

    def best_of_kind(task: Task) -> Choice:
        return best(offered(task), of_kind(offered(task), task))

    policies: dict[str, Policy] = {
        "best": one(lambda task: best(offered(task), overall(offered(task)))),
        "best_per_family": one(best_of_kind),
        "cheapest": one(lambda task: offered(task)[0]),
        "code_first": one(best_of_kind, code=True),
        "code_cheap": one(cheap, code=True),
        "code_cheap_strong": one(cheap_or_strong, code=True),
        "code_then_cheapest_good": one(lambda task: near(offered(task), of_kind(offered(task), task))[0], code=True),
        "cascade": agreeing(offered, evidence),
    }
    if classical.available():
        router = classical.Router(recording.of(training))
        policies["cascade_trusted"] = trusting(offered, evidence, router)
        for name, wish in (("", None), ("_right", "accuracy"), ("_cheap", "low_cost"), ("_fast", "fast")):
            policies[f"router{name}"] = classical.routed(offered, router, wish)
            policies[f"router_code{name}"] = classical.routed(offered, router, wish, code=True)
    return {name: scripted(policy, said) for name, policy in {**policies, "oracle": one(right, code=True)}.items()}
