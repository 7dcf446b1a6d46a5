"""How well policies follow preferences: the score of Eq. 5-6 against a base policy's run (Table 3)."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from orchestra_jax.evaluation.intervals import bootstrap
from orchestra_jax.evaluation.results import published
from orchestra_jax.evaluation.results.measured import Item, Measured
from orchestra_jax.evaluation.results.table import Table, number, span
from orchestra_jax.rl.rewards import feature_matrix, preference_score


def preferences(label: str, found: Sequence[Measured], bases: Mapping[str, Measured]) -> Table:
    """Scores of those that have a base.

    Args:
        bases: by `key` of a run, its base on the same questions.
    """
    rows, lacking = [], 0
    for one in found:
        base = bases.get(key(one))
        if base is None:
            continue
        scores = question_scores(one, base)
        if scores is None:
            lacking += 1
            continue
        values = list(scores.values())
        mean = float(np.mean(values)) if values else None
        rows.append([
            one.run, base.run, str(len(values)), number(sum(values) if values else None, 1, 2),
            number(mean, 1, 4), span(bootstrap(values), 1, 4),
        ])  # fmt: skip
    theirs = published.preference_score(found[0].source) if found[0].whole else None
    columns = ["policy", "base", "questions", "sum", "mean", "95 %"]
    if rows and theirs is not None:
        columns.append("as published")
        rows = [*([*row, ""] for row in rows), ["published: Orchestrator-8B", *[""] * 5, f"{theirs:.1f}"]]
    note = (
        "Eq. 5-6: calls of each tool and the outcome over those of the base, the base's dollars and seconds over one's "
        "own, no denominator below 1, weighed by the question's preference; 0 where it is not solved. "
        "Over the questions that both answered with the same menu and preference; bootstrap over questions."
    )
    if rows and rows[-1][0].startswith("published"):
        note += f" Published: {published.SOURCE}, Table 3, of preferences and a scale of its own."
    if lacking and not rows:
        return Table(f"{label}: preferences", [], [], LACKING)
    return Table(f"{label}: preferences", columns, rows, note + (f" {LACKING}" if lacking else ""))


LACKING = (
    "Trajectories that were kept without the weights of their preferences have no score: evaluate again to have it."
)


def key(one: Measured) -> str:
    """Tells the runs of a report from each other, on each benchmark."""
    return f"{one.folder.resolve()}, {one.phase}, {one.benchmark}"


def question_scores(one: Measured, base: Measured) -> dict[str, float] | None:
    """The score of every question that both answered, the mean of its samples, each against the base's same one.

    None: the weights of preferences were not kept.
    """
    pairs = [
        (name, item, start)
        for name in sorted(one.items.keys() & base.items.keys())
        for item, start in zip(one.items[name], base.items[name], strict=False)
    ]
    if not all(item.weights is not None and start.weights is not None for _, item, start in pairs):
        return None
    pairs = [pair for pair in pairs if (pair[1].tools, pair[1].weights) == (pair[2].tools, pair[2].weights)]
    if not pairs:
        return {}
    width = max(len(item.tools or ()) for _, item, _ in pairs)
    preference = np.stack([_weights(item, width) for _, item, _ in pairs])
    solved = np.array([item.solved for _, item, _ in pairs])
    ours, theirs = (_features([pair[place] for pair in pairs], width) for place in (1, 2))  # type: ignore[misc]
    scores = np.asarray(preference_score(*map(jnp.asarray, (ours, theirs, preference, solved))), np.float64)
    found: dict[str, list[float]] = {}
    for (name, _, _), score in zip(pairs, scores, strict=True):
        found.setdefault(name, []).append(float(score))
    return {name: float(np.mean(some)) for name, some in found.items()}


def _features(items: Sequence[Item], width: int) -> Float[np.ndarray, "E F"]:
    """M of each, tools in the order of its menu; nothing is normalised, and counts are counts as in Eq. 5."""
    counts = np.zeros((len(items), 1, width), np.float32)
    for row, item in enumerate(items):
        tools = item.tools or ()
        counts[row, 0, : len(tools)] = [item.named[name] for name in tools]

    def column(values: Sequence[float]) -> np.ndarray:
        return np.array(values, np.float32)[:, None]

    solved = np.array([[item.solved] for item in items])
    matrix = feature_matrix(
        jnp.asarray(counts), jnp.asarray(solved), jnp.asarray(column([item.cost for item in items])),
        jnp.asarray(column([item.seconds for item in items])),
    )  # fmt: skip
    return np.asarray(matrix)[:, 0]


def _weights(item: Item, width: int) -> Float[np.ndarray, " F"]:
    """P with 0 for tools that fill the row up."""
    own = item.weights or ()
    return np.array([*own[:-3], *[0.0] * (width + 3 - len(own)), *own[-3:]], np.float32)
