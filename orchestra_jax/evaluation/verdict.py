"""A run's verdict for managers: the policy beside one baseline on the same questions, in sentences with an interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestra_jax.evaluation.calls import called_tools
from orchestra_jax.evaluation.intervals import bootstrap, wilson
from orchestra_jax.evaluation.measures import questions
from orchestra_jax.types import Trajectory

# Share of the questions, and of the rival's cost: an interval that reaches further does not tell whether two policies
# are equally right, or cost the same.
TOLERATED = 0.05
_FEWEST = 10  # questions: with fewer, resampling says "cheaper" or "more often right" of what is chance
_ENOUGH = 75  # questions: Wilson's interval of 0 of 75 ends below TOLERATED
_CENTS = "cents"
_ALL_KNOWING = "oracle"  # in the name of a baseline that is no policy


@dataclass(frozen=True)
class AnsweredQuestion:
    """Share of right samples of one question, and their mean cents."""

    right: float
    cents: float


def verdict(
    run: Sequence[Trajectory], baselines: Mapping[str, Sequence[Trajectory]], rival: str, last: str, samples: int
) -> str:
    """Return sentences on a policy's trajectories beside those of a baseline; "" if no question counts in both.

    A question counts where both have a trajectory that did not fail for infrastructure reasons.

    Args:
        run: of the policy, the samples of each question side by side.
        baselines: one trajectory of each question, in the same order.
        rival: name of the baseline, which always asks one model.
        last: a line below the sentences, or "".
    """
    asked = list(zip(questions(run, samples), questions(baselines[rival], 1), strict=True))
    pairs = [pair for pair in asked if all(pair)]
    if not pairs:
        return ""
    policy, other = ([_outcome(pair[side]) for pair in pairs] for side in (0, 1))
    called = {tool for _, some in pairs for trajectory in some for tool in called_tools(trajectory)}
    models = {tool.partition("/")[2] or tool for tool in called}
    wished = any(trajectory.task.preference.instruction for trajectory in run)
    told = sentences(policy, other, models.pop() if len(models) == 1 else "the best of each menu", wished)
    rules = {
        name: [
            (_outcome(pair[0]), _outcome(some))
            for pair, some in zip(asked, questions(trajectories, 1), strict=True)
            if all(pair) and some
        ]
        for name, trajectories in baselines.items()
        if _ALL_KNOWING not in name and name != rival
    }
    if len(pairs) >= _FEWEST:
        told = " ".join([told, *_better_rule(rules)])
    return f"{told}\n{last}".strip()


def sentences(
    policy: Sequence[AnsweredQuestion], rival: Sequence[AnsweredQuestion], model: str, wished: bool = False
) -> str:
    """Return the figures of both on the same questions, and what they mean.

    Args:
        wished: whether users said what they want beside being right, such as a low cost.
    """
    (right, cents), (other_right, other_cents) = _means(policy), _means(rival)
    difference = [mine.right - its.right for mine, its in zip(policy, rival, strict=True)]
    low, high = bootstrap(difference) or (math.nan, math.nan)
    if low <= 0 <= high and policy != rival:
        _, unseen = wilson(0, len(policy)) or (0.0, 1.0)  # resampling loses none of what was never lost
        low, high = (low if min(difference) < 0 else -unseen), (high if max(difference) > 0 else unseen)
    paid, wishes = _beside(policy, rival), ", with their users' wishes" if wished else ""
    told, least, most = (f"{round(100 * share, 1) + 0.0:.1f}" for share in (right - other_right, low, high))
    interval = f"(difference {told} points, 95 % interval {least} to {most})"
    cheaper, dearer = paid.endswith(("cheaper", "no cost")), paid.endswith(("dearer", "as dear"))
    if low > 0:
        judged = f"More often right {interval}{', but' if dearer else ' and'} {paid}."
    elif high < 0:
        judged = f"Less often right {interval}{', but' if cheaper else ' and'} {paid}."
    elif low < -TOLERATED:
        judged = f"Too few questions to tell which is more often right {interval}; {paid}."
    else:
        judged = f"As often right, within chance {interval}{', but' if dearer else ' and'} {paid}."
    if dearer and low <= 0:
        judged += " Your best model alone is the better choice."
    if len(policy) < _FEWEST:
        judged = (
            f"So few questions do not tell which is more often right or cheaper: {_ENOUGH} would, which a log of "
            "190 questions leaves +experiment=my_logs."
        )
    unit, (price, other_price) = _prices(cents, other_cents)
    return (
        f"On {len(policy)} question{'s' * (len(policy) > 1)} that training has not seen{wishes}: {100 * right:.1f} % "
        f"right at {price} {unit}; your best model alone ({model}): {100 * other_right:.1f} % at {other_price}. "
        f"{judged}"
    )


def _better_rule(rules: Mapping[str, Sequence[tuple[AnsweredQuestion, AnsweredQuestion]]]) -> list[str]:
    """Return a sentence on the best rule by hand that is at least as often right for no more, if there is one.

    A thousandth of the cost counts as nothing: a sandbox is paid by the second that it took, and never takes the same.

    Args:
        rules: the outcomes of the policy and of each rule on the questions that count for both.
    """
    means = {name: [_means(side) for side in zip(*both, strict=True)] for name, both in rules.items() if both}
    better = {
        name: its
        for name, (mine, its) in means.items()
        if its != mine and its[0] >= mine[0] and its[1] <= 1.001 * mine[1]
    }
    if not better:
        return []
    name = max(better, key=lambda name: (better[name][0], -better[name][1]))
    unit, (_, price) = _prices(means[name][0][1], better[name][1])
    price += "" if unit == _CENTS else f" {unit}"
    return [f"The baseline {name} does no worse for no more: {100 * better[name][0]:.1f} % at {price}."]


def _beside(policy: Sequence[AnsweredQuestion], rival: Sequence[AnsweredQuestion]) -> str:
    """Return how much cheaper or dearer the policy is, in a few words."""
    (_, mine), (_, its) = _means(policy), _means(rival)
    low, high = bootstrap([one.cents - other.cents for one, other in zip(policy, rival, strict=True)]) or (0.0, 0.0)
    if low <= 0 <= high:
        same = max(-low, high) <= TOLERATED * its
        return "for the same money, within chance" if same else "the questions are too few to tell which is cheaper"
    if mine < its:
        return "at no cost" if mine == 0 else f"{100 * (1 - mine / its):.0f} % cheaper"
    if its == 0:
        return "dearer"
    return f"{100 * (mine / its - 1):.0f} % dearer" if mine < 2 * its else f"{mine / its:.1f} times as dear"


def _outcome(some: Sequence[Trajectory]) -> AnsweredQuestion:
    return AnsweredQuestion(float(np.mean([t.solved for t in some])), 100 * float(np.mean([t.cost_usd for t in some])))


def _means(outcomes: Sequence[AnsweredQuestion]) -> tuple[float, float]:
    return float(np.mean([each.right for each in outcomes])), float(np.mean([each.cents for each in outcomes]))


def _prices(*cents: float) -> tuple[str, list[str]]:
    """Return the unit of costs of a question, and each with three digits, such as .0549 or 12.3.

    If one would begin with .00, all are those of 1,000 questions.
    """
    tiny = any(0 < each < 0.00995 for each in cents)
    return f"{_CENTS} per 1,000 questions" if tiny else _CENTS, [
        _digits(1000 * each if tiny else each) for each in cents
    ]


def _digits(figure: float) -> str:
    if figure <= 0:
        return "0"
    text = f"{figure:.{max(0, 2 - math.floor(math.log10(figure)))}f}"
    return text.removeprefix("0")
