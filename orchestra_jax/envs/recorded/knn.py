"""A guarded nearest-neighbour router: one model by default, another only where similar questions prove it better.

The default is the model that serves the wish by its accuracy on the whole training split. Of the nearest questions of
that split, by TF-IDF, a test of paired answers tells which models may replace it: those whose advantage over it is
greater than the wish asks for, at a level that all models of the menu share. Among these and the default the wish
chooses by the neighbours' answers.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from orchestra_jax.envs.recorded.choices import (
    NEAR,
    WORTH_USD,
    Asking,
    Offered,
    Policy,
    PricedExpert,
    ask,
    chosen,
    code_run,
    wished,
)
from orchestra_jax.envs.recorded.router import vectorizer
from orchestra_jax.envs.recorded.table import Evidence, Recording
from orchestra_jax.types import Task

# Of 10, 20, 40, 80, 160 and 320 on the validation split of the ZeroEval answers, under the wishes for accuracy, for low
# cost and none: all are within .2 points of the default, and 40 is the fewest that leave it in 1 % of the questions.
# Without the guard 10 to 40 neighbours lose 1 to 9 points to the default under each wish.
NEIGHBOURS = 40
LEVEL = 0.05  # of the one-sided test, shared by the models of a menu; one for each of them lost up to 1.2 points


class Neighbours:
    """The questions of the training split that are most similar to a question. Words are read when first asked for.

    Args:
        training: the questions of the training split alone.
        count: neighbours of a question; all, where the split has no more.
    """

    def __init__(self, training: Recording, count: int = NEIGHBOURS) -> None:
        self._training, self._count = training, min(count, len(training.questions))
        self._known: dict[str, Bool[np.ndarray, "K M"]] = {}

    def rights(self, question: str, models: Sequence[str]) -> Bool[np.ndarray, "K N"]:
        """Return whether each of the models was right on each neighbour."""
        if question not in self._known:
            words, questions = self._words
            similar = (questions @ words.transform([question]).T).toarray()[:, 0]
            self._known[question] = self._training.correct[np.argsort(-similar, kind="stable")[: self._count]]
        return self._known[question][:, [self._training.models.index(model) for model in models]]

    @cached_property
    def _words(self) -> tuple[Any, Any]:
        words = vectorizer()
        return words, words.fit_transform([asked.question for asked in self._training.questions.values()])


def paired_z(
    right: Bool[np.ndarray, "K N"], default: Bool[np.ndarray, " K"], margin: Float[np.ndarray, " N"] | float = 0.0
) -> Float[np.ndarray, " N"]:
    """Return how many standard errors the share of right answers exceeds the default's share plus the margin.

    Half an answer is added to each cell of the table of both (Agresti and Min 2005), so that a few agreeing answers
    prove nothing.
    """
    count = len(default) + 2
    wins, losses = (right & ~default[:, None]).sum(0), (~right & default[:, None]).sum(0)
    ahead = (wins - losses) / count
    variance = ((wins + losses + 1) / count - ahead**2) / count
    return np.asarray((ahead - margin) / np.sqrt(variance))


def guarded(
    offered: Offered,
    evidence: Mapping[str, Evidence],
    neighbours: Neighbours,
    wish: str | None = None,
    code: bool = False,
) -> Policy:
    """Return a policy that asks the default model, or one that the neighbours prove better for the wish.

    Args:
        wish: "accuracy", "low_cost", "fast", or "" for none; None: the wish of the task.
        code: whether the code of a question is run first.
    """

    def asked(task: Task) -> Asking:
        choices, wanted = offered(task), wished(task, wish)
        default = chosen(choices, [evidence[choice.name].accuracy for choice in choices], wanted)
        right = neighbours.rights(task.question, [choice.name for choice in choices])
        margins = np.array([_margin(choice, default, wanted) for choice in choices])
        proofs = paired_z(right, right[:, choices.index(default)], margins)
        needed = NormalDist().inv_cdf(1 - LEVEL / max(1, len(choices) - 1))
        left = [k for k, choice in enumerate(choices) if choice is default or proofs[k] > needed]
        return ask(chosen([choices[k] for k in left], right.mean(0)[left].tolist(), wanted).call)

    return (lambda task: code_run(task, asked)) if code else asked


def _margin(rival: PricedExpert, default: PricedExpert, wanted: str) -> float:
    """Return the advantage in accuracy that a rival must exceed to be the better one; < 0: it may lack so much."""
    if wanted == "accuracy":
        return 0.0
    if wanted in ("low_cost", "fast"):
        saves = rival.usd < default.usd if wanted == "low_cost" else rival.seconds < default.seconds
        return -NEAR if saves else NEAR
    return (rival.usd - default.usd) / WORTH_USD
