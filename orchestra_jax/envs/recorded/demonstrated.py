"""Tools of a demonstration of the warm start: those that serve the wish, the better the more often."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.envs.recorded.choices import PricedExpert
from orchestra_jax.envs.recorded.offer import PYTHON, code_of
from orchestra_jax.envs.recorded.table import Evidence
from orchestra_jax.envs.recorded.wishes import FAST, NONE
from orchestra_jax.types import Task, ToolCall

_FIRST_CALLS = 4  # most calls that a demonstration may begin with; those of the other tools are rarely worth a row
# Share of right answers that the usual price of a call counts for; others count by the root of their price, as in the
# reward (reward.cost_power): dear models are far from the best then, and none is so near that luck decides.
_RIGHT, _CHEAP = "accuracy", "low_cost"
_USUAL_PRICE = {_RIGHT: 0.004, NONE: 0.055, _CHEAP: 0.27}
_SLOW = 0.2  # share of right answers that ten times the seconds count for, where users are in a hurry
_EVEN = 0.006  # share of right answers by which a model that comes first e times as often is better
_SANDBOX_FIRST = 0.9
_SPREAD = 0.3  # standard deviation of the log-odds of drawn shares, of a model and of each kind of question
_LEAST_SECONDS = 0.1
_LEAST_SHARE = 0.01  # a call that should come first less often has no row


def most_asked(cfg: WorldConfig) -> int:
    """Return how many models a demonstration may ask; the answer is a turn of its own, and a relay is a call too."""
    limits = cfg.rollout.limits
    return min(3, limits.max_calls - int(cfg.tools.relay), limits.max_turns - 1)


def drawn(evidence: Mapping[str, Evidence], seed: int) -> dict[str, Evidence]:
    """Return evidence with other shares of right answers, drawn around the true ones.

    Menus of demonstrations show it. With a few models whose figures never change, a policy would learn which figures
    belong to the best models; it would not learn to read those of other models.
    """
    shares = np.array([[known.accuracy, *known.by_family.values()] for known in evidence.values()])
    by = _SPREAD * np.random.default_rng(seed).normal(size=shares.shape)
    by[:, 1:] += by[:, :1]  # of a model as a whole, and of each kind of question beside that
    inside = np.clip(shares, 0.02, 0.98)
    moved = 1 / (1 + (1 / inside - 1) * np.exp(-by))
    return {
        model: replace(known, accuracy=whole, by_family=dict(zip(known.by_family, kinds, strict=True)))
        for (model, known), (whole, *kinds) in zip(evidence.items(), moved.tolist(), strict=True)
    }


def tools_shown(
    task: Task,
    experts: Sequence[PricedExpert],
    evidence: Mapping[str, Evidence],
    usual_usd: float,
    most: int,
) -> dict[str, float]:
    """Return the tools in the order in which a demonstration calls them, and how often each should be called first.

    A model is worth its share of right answers for this kind of question, less what its price (`_USUAL_PRICE`), or for
    users in a hurry its seconds (`_SLOW`), count for under the wish. A model's own line tells that, so that a small
    policy can find the best line without comparing one with another. Shares are the softmax of that worth: a policy
    learns more from how good the near rivals of the best model are than from the best one alone. Under other wishes all
    models are equal.

    Who wants it right has the models asked first that serve users without a wish: `next_model` goes on from there.
    Where there is no room for three models, one is asked: that which is worth most under this wish.

    If there is code to run, the sandbox comes first in a share of `_SANDBOX_FIRST`.

    Args:
        evidence: what the menu shows.
        usual_usd: mean dollars of a call of the middle one of all models; 0 where all are free.
        most: number of models that a demonstration may ask.
    """
    wish = NONE if _asks_several(task, experts, most) else task.preference.name
    worths = _worths(wish, task, experts, evidence, usual_usd)
    first = np.exp((worths - worths.max()) / _EVEN)
    shares = dict(zip((model.call.name for model in experts), (first / first.sum()).tolist(), strict=True))
    if any(spec.name == PYTHON for spec in task.tools) and code_of(task.question) is not None:
        shares = {name: (1 - _SANDBOX_FIRST) * share for name, share in shares.items()} | {PYTHON: _SANDBOX_FIRST}
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def next_model(
    task: Task,
    experts: Sequence[PricedExpert],
    evidence: Mapping[str, Evidence],
    usual_usd: float,
    most: int,
    asked: Sequence[str],
    agreed: bool,
) -> str | None:
    """Return the tool that a demonstration calls after answers of models; None: it hands over the last answer.

    Who wants it right has the model asked that serves users without a wish best, then the one that serves those best
    who want it cheap, and where these differ the one that is worth most under that wish; each of them once. It goes on
    even where the first is the most right one: of two menus in five that is so, and a small policy cannot tell.

    Args:
        asked: names of the models' tools so far.
        agreed: whether the last answer is one that was given before.
    """
    if agreed or not _asks_several(task, experts, most):
        return None
    worths = _worths(_CHEAP if len(asked) == 1 else _RIGHT, task, experts, evidence, usual_usd)
    names = [model.call.name for model in experts]
    left = [pair for pair in zip(worths, names, strict=True) if pair[1] not in asked]
    return max(left)[1] if left else None


def _asks_several(task: Task, experts: Sequence[PricedExpert], most: int) -> bool:
    return task.preference.name == _RIGHT and min(len(experts), most) > 2  # the third where two differ


def _worths(
    wish: str, task: Task, experts: Sequence[PricedExpert], evidence: Mapping[str, Evidence], usual_usd: float
) -> np.ndarray:
    def worth(model: PricedExpert) -> float:
        if wish == FAST:
            return evidence[model.name].share(task.family) - _SLOW * math.log10(max(model.seconds, _LEAST_SECONDS))
        if wish in _USUAL_PRICE:
            price = math.sqrt(model.usd / usual_usd) if usual_usd else 0.0
            return evidence[model.name].share(task.family) - _USUAL_PRICE[wish] * price
        return 0.0

    return np.array([worth(model) for model in experts])


def first_calls(shares: Mapping[str, float]) -> list[tuple[ToolCall, float]]:
    """Return the likeliest calls of `tools_shown`, with shares that add up to one."""
    likeliest = [(name, share) for name, share in shares.items() if share > _LEAST_SHARE][:_FIRST_CALLS]
    whole = sum(share for _, share in likeliest)
    return [(ToolCall(name, {}), share / whole) for name, share in likeliest]
