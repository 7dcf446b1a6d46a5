"""Accuracy and cost that a table of recorded answers allows: every model alone, the best, bounds, policies by hand.

Everything is counted from the table; nothing is called. A figure is (accuracy, cents a question).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from orchestra_jax.envs.recorded.table import Recording
from orchestra_jax.money.prices import PriceList

CENTS = 100.0


@dataclass(frozen=True, slots=True)
class Figure:
    """Accuracy of a policy, from 0 to 1, and its cents for a question."""

    accuracy: float
    cents: float


def figures(recording: Recording, prices: PriceList, chosen_on: Recording | None = None) -> dict[str, Figure]:
    """Return figures by name: each "expert/MODEL" alone, "best", "best_per_family", "cheapest", "random", "oracle".

    Args:
        chosen_on: table on which the best are chosen by accuracy, such as the training split; None: the table itself.
    """
    basis, cost = chosen_on or recording, recording.cost(prices)
    models, right = recording.models, recording.correct
    found = {f"expert/{model}": _figure(right[:, k], cost[:, k]) for k, model in enumerate(models)}
    found["best"] = found[f"expert/{best_model(basis, prices)}"]
    found["best_per_family"] = by_family(recording, prices, best_per_family(basis, prices))
    found["cheapest"] = found[f"expert/{models[int(np.argmin(np.mean(basis.cost(prices), axis=0)))]}"]
    found["random"] = _figure(np.mean(right, axis=1), np.mean(cost, axis=1))
    # Where nobody is right the oracle takes the cheapest.
    pick = np.argmin(np.where(right | ~np.any(right, axis=1, keepdims=True), cost, np.inf), axis=1)
    rows = np.arange(len(pick))
    found["oracle"] = _figure(right[rows, pick], cost[rows, pick])
    return found


def best_model(recording: Recording, prices: PriceList) -> str:
    """Return the model that is right most often; of equals the cheapest."""
    share, cost = np.mean(recording.correct, axis=0), np.mean(recording.cost(prices), axis=0)
    return min(zip(-share, cost, recording.models, strict=True))[2]


def best_per_family(recording: Recording, prices: PriceList) -> dict[str, str]:
    """Return the best model for each kind of question."""
    families: dict[str, list[str]] = {}
    for name, asked in recording.questions.items():
        families.setdefault(asked.family, []).append(name)
    return {family: best_model(recording.of(names), prices) for family, names in families.items()}


def by_family(
    recording: Recording, prices: PriceList, models: Mapping[str, str], executed: float | None = None, family: str = ""
) -> Figure:
    """Return the figure of a policy that asks one model for each kind of question.

    Args:
        executed: share of the questions of `family` that running their code answers, for nothing; None: nothing runs.
    """
    place = {model: k for k, model in enumerate(recording.models)}
    right, cost = recording.correct, recording.cost(prices)
    found = list[tuple[float, float]]()
    for row, asked in enumerate(recording.questions.values()):
        if executed is not None and asked.family == family:
            found.append((executed, 0.0))
        else:
            column = place[models[asked.family]]
            found.append((float(right[row, column]), float(cost[row, column])))
    return _figure(*np.array(found).T)


def _figure(right: np.ndarray, dollars: np.ndarray) -> Figure:
    return Figure(float(np.mean(right)), CENTS * float(np.mean(dollars)))
