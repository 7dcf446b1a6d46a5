"""The tables of a report that compare runs question by question: pairs, unseen tools and prices, and preferences."""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from orchestra_jax.evaluation.figures import number
from orchestra_jax.evaluation.intervals import bootstrap
from orchestra_jax.evaluation.results import published
from orchestra_jax.evaluation.results.measured import Measured, MeasuredSample, cost, question_mean, solved
from orchestra_jax.evaluation.results.offering import UNSEEN_PRICES, UNSEEN_TOOLS
from orchestra_jax.evaluation.results.text_table import TextTable, span
from orchestra_jax.rl.rewards import feature_matrix, preference_score

FLIPS = 9999
_SEED = 0
_CUT = re.compile(r"-\d+-turns$")  # of folders that evaluation.turn_caps leaves


def differences(first: Measured, second: Measured, figure: Callable[[MeasuredSample], float]) -> list[float]:
    """Return by how much the second's mean is higher, for every question that both answered, sorted by name."""
    both = sorted(first.items.keys() & second.items.keys())
    return [question_mean(second.items[name], figure) - question_mean(first.items[name], figure) for name in both]


def _changes(first: Measured, second: Measured) -> list[str]:
    """Return cells: points of accuracy and cents a question that the second has more, each with its paired interval."""
    gained, dearer = differences(first, second, solved), differences(first, second, cost)
    points = [f"{100 * float(np.mean(gained)):+.1f}", span(bootstrap(gained), 100, 1)]
    return [*points, f"{100 * float(np.mean(dearer)):+.3f}", span(bootstrap(dearer), 100, 3)]


def pairs(label: str, found: Sequence[Measured]) -> TextTable:
    """Return every two policies on the questions that both answered; one cut to fewer turns is no policy of its own."""
    rows = []
    whole = [one for one in found if not _CUT.search(one.phase)]
    for first, second in itertools.combinations(whole, 2):
        gained = differences(first, second, solved)
        if not gained:
            continue
        wins, losses = sum(gain > 0 for gain in gained), sum(gain < 0 for gain in gained)
        p = sign_flip_test(gained) if max(first.samples, second.samples) > 1 else mcnemar(wins, losses)
        points, interval, *money = _changes(first, second)
        names = f"{second.run} against {first.run}"
        rows.append([names, str(len(gained)), f"{wins} : {losses}", points, interval, f"{p:.3g}", *money])
    columns = ["policies", "questions", "won : lost", "points of accuracy", "95 %", "p", "cents a question", "95 %"]
    note = "On the questions that both answered: bootstrap over the pairs, p of McNemar's exact test."
    if any(one.samples > 1 for one in found):
        note += (
            " A question's samples are one mean: it is won where that is higher, and p is the share of the ways to "
            f"flip the differences' signs, {FLIPS} at random, whose mean is as far from 0."
        )
    return TextTable(f"{label}: question by question", columns, rows, note)


def mcnemar(wins: int, losses: int) -> float:
    """Return the two-sided p of McNemar's exact test, for questions that only one of two policies solved."""
    differing = wins + losses
    tail = sum(math.comb(differing, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**differing)


def sign_flip_test(gained: Sequence[float]) -> float:
    """Return the two-sided p of a mean difference by random flips of the signs, for means of several samples.

    A count of who is ahead in how many questions would not do: of two policies that are equally often right, the one
    with more samples has more means above 0, and fewer that are 1.
    """
    found = np.asarray(gained, np.float64)
    rng, far = np.random.default_rng([_SEED, len(found)]), abs(found.sum()) - 1e-9
    signs = (rng.integers(2, size=(FLIPS // 9, len(found))) * 2 - 1 for _ in range(9))
    as_far = sum(int((np.abs(some @ found) >= far).sum()) for some in signs)
    return (1 + as_far) / (1 + FLIPS)


def unseen(found: Sequence[Measured]) -> list[TextTable]:
    """Return a table for each benchmark that a policy was asked both as in training and otherwise (Tables 2 and 4)."""
    made = []
    for asked in dict.fromkeys(one.asked for one in found):
        same = [one for one in found if one.asked == asked]
        rows = []
        for policy in dict.fromkeys(one.policy for one in same):
            own = sorted((one for one in same if one.policy == policy), key=lambda one: one.offer.unseen)
            seen, new = [one for one in own if not one.offer.unseen], [one for one in own if one.offer.unseen]
            if seen and new:
                usual = max(seen, key=lambda one: len(one.offer.tools or ()))  # not the one without models
                rows += [_unseen_row(usual, None), *(_unseen_row(one, usual) for one in new)]
        made.append(_unseen_table(asked, rows, same[0]))
    return made


def _unseen_table(asked: str, rows: list[list[str]], first: Measured) -> TextTable:
    note = (
        "Differences are from the policy as in training, on the questions that both answered, with paired bootstrap "
        "intervals. Unseen tools: one on offer was on no menu of training; unseen prices: something that was costs "
        "what it never cost there; of a policy without a record of training, by the paper's."
    )
    if rows and first.whole and published.is_published(first.source):
        for new in ((), (UNSEEN_TOOLS,), (UNSEEN_PRICES,)):
            _, theirs = published.rows(first.source, new)
            row, costs = theirs[-1], theirs[-1].costs(first.source)
            cents = f"{costs[0]:.1f}" if costs else ""
            rows.append([f"published: {row.name}", "", "", f"{row.accuracy(first.source):.1f}", "", cents, *[""] * 5])
        note += f" Published rows: {published.SOURCE}, Tables 1, 2 and 4."
    columns = ["policy", "tools and prices", "answered", "accuracy %", "95 %", "cents a question", "questions of both"]
    columns += ["points of accuracy", "95 %", "cents more", "95 %"]
    return TextTable(f"{asked}: tools and prices never seen", columns, rows, note)


def _unseen_row(one: Measured, seen: Measured | None) -> list[str]:
    own = [one.run, " and ".join(one.offer.unseen) or "as in training", str(len(one.items))]
    own += [number(one.mean(solved), 100, 1), span(one.accuracy_interval(), 100, 1), number(one.mean(cost), 100, 3)]
    both = len(differences(seen, one, solved)) if seen else 0
    return [*own, str(both), *_changes(seen, one)] if seen and both else [*own, *[""] * 5]


def preferences(label: str, found: Sequence[Measured], bases: Mapping[str, Measured]) -> TextTable:
    """Return the preference scores (Eq. 5-6, Table 3) of the runs that have a base.

    Args:
        bases: by `Measured.key` of a run, its base on the same questions.
    """
    rows = []
    for one in found:
        base = bases.get(one.key)
        if base is None:
            continue
        values = list(question_scores(one, base).values())
        total, mean = (sum(values), float(np.mean(values))) if values else (None, None)
        cells = [number(total, 1, 2), number(mean, 1, 4), span(bootstrap(values), 1, 4)]
        rows.append([one.run, base.run, str(len(values)), *cells])
    theirs = published.preference_score(found[0].source) if found[0].whole else None
    columns = ["policy", "base", "questions", "sum", "mean", "95 %"]
    note = (
        "Eq. 5-6: calls of each tool and the outcome over those of the base, the base's dollars and seconds over one's "
        "own, no denominator below 1, weighed by the question's preference; 0 where it is not solved. "
        "Over the questions that both answered with the same menu and preference; bootstrap over questions."
    )
    if rows and theirs is not None:
        columns.append("as published")
        rows = [*([*row, ""] for row in rows), ["published: Orchestrator-8B", *[""] * 5, f"{theirs:.1f}"]]
        note += f" Published: {published.SOURCE}, Table 3, of preferences and a scale of its own."
    return TextTable(f"{label}: preferences", columns, rows, note)


def question_scores(one: Measured, base: Measured) -> dict[str, float]:
    """Return the score of every question that both answered with the same menu and preference.

    It is the mean of the question's samples, each against the base's same one.
    """
    starts_by = {(name, start.member): start for name, own in base.items.items() for start in own}
    samples = [
        (name, item, starts_by[name, item.member])
        for name in sorted(one.items.keys() & base.items.keys())
        for item in one.items[name]
        if (name, item.member) in starts_by
    ]
    alike = [each for each in samples if (each[1].tools, each[1].weights) == (each[2].tools, each[2].weights)]
    if not alike:
        return {}
    names, items, starts = zip(*alike, strict=True)
    width = max(len(item.tools) for item in items)
    columns = (
        _features(items, width),
        _features(starts, width),
        np.stack([_weights(item, width) for item in items]),
        np.array([item.solved for item in items]),
    )
    scores = np.asarray(preference_score(*map(jnp.asarray, columns)), np.float64)
    found: dict[str, list[float]] = {}
    for name, score in zip(names, scores, strict=True):
        found.setdefault(name, []).append(float(score))
    return {name: float(np.mean(some)) for name, some in found.items()}


def _features(items: Sequence[MeasuredSample], width: int) -> Float[np.ndarray, "E F"]:
    """Return M of each, tools in the order of its menu; nothing is normalised, and counts are counts as in Eq. 5."""
    counts = np.zeros((len(items), 1, width), np.float32)
    for row, item in enumerate(items):
        counts[row, 0, : len(item.tools)] = [item.named[name] for name in item.tools]
    right = np.array([[item.solved] for item in items])
    spent, seconds = (np.array([[getattr(item, name)] for item in items], np.float32) for name in ("cost", "seconds"))
    return np.asarray(feature_matrix(*map(jnp.asarray, (counts, right, spent, seconds))))[:, 0]


def _weights(item: MeasuredSample, width: int) -> Float[np.ndarray, " F"]:
    """Return P with 0 for the tools that a menu lacks."""
    own = item.weights
    return np.array([*own[:-3], *[0.0] * (width + 3 - len(own)), *own[-3:]], np.float32)
