"""Reports of evaluations side by side, as Markdown, CSV and one HTML page, from the kept trajectories alone.

The same files give the same bytes. The paper's figures have rows of their own, marked as published.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.evaluation.results import published
from orchestra_jax.evaluation.results.front import on_front
from orchestra_jax.evaluation.results.measured import AFTER, BEFORE, POLICY, Measured, cost, measured, solved
from orchestra_jax.evaluation.results.rendering import templates
from orchestra_jax.evaluation.results.text_table import to_csv, to_markdown


def write_report(folders: Sequence[Path], out: Path, base: Path | None = None) -> list[Path]:
    """Write report.md, report.csv and report.html, which needs no other file.

    Args:
        folders: of the evaluations, or of training runs that evaluated.
        base: folder of the policy whose run preferences are scored against; None: of a training run its policy before.

    Returns:
        The three files.

    Raises:
        ConfigError: a folder has no evaluation, or `base` none of the questions.
        ValueError: a file is damaged.
    """
    found = list[Measured]()
    for folder in folders:
        alike = sum(folder.name == other.name for other in folders) > 1
        name = str(folder) if alike else folder.name
        found += [replace(one, run=one.run.replace(folder.name, name, 1)) for one in measured(folder)]
    from orchestra_jax.evaluation.results.tables import side_by_side, tables  # only now: a wrong folder needs no JAX

    made = tables(found, _policies_before(found) if base is None else _named_base(found, base))
    title = f"Evaluations of {', '.join(folder.name for folder in folders)}"
    labels = dict.fromkeys(one.label for one in found)
    pictures = {label: _picture(label, side_by_side([one for one in found if one.label == label])) for label in labels}
    page: Any = templates().get_template("report.html.jinja")
    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.md": to_markdown(title, made),
        "report.csv": to_csv(made),
        "report.html": page.render(title=title, tables=made, pictures=pictures),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8", errors="replace")
    return [out / name for name in texts]


def _policies_before(found: Sequence[Measured]) -> Mapping[str, Measured]:
    """Return the base of each policy after training: the same run's policy before."""
    before = {(one.folder, one.benchmark): one for one in found if one.phase == BEFORE}
    after = [one for one in found if one.phase == AFTER]
    return {one.key: before[one.folder, one.benchmark] for one in after if (one.folder, one.benchmark) in before}


def _named_base(found: Sequence[Measured], folder: Path) -> Mapping[str, Measured]:
    """Return the base of each policy but the base itself: the policy of `folder`, of a training run the one before."""
    theirs: dict[tuple[str, str], Measured] = {}
    for phase in (BEFORE, POLICY):  # the latter is taken where there are both
        theirs |= {(one.source, one.benchmark): one for one in measured(folder) if one.phase == phase}
    bases = {one.key: theirs.get((one.source, one.benchmark)) for one in found}
    known = {own: start for own, start in bases.items() if start is not None and own != start.key}
    if not any(start.items.keys() & one.items.keys() for one in found if (start := known.get(one.key))):
        raise ConfigError(f"--base {str(folder)!r} was asked none of the same questions: evaluate it on them first.")
    return known


def _picture(label: str, found: Sequence[Measured]) -> str:
    """Return accuracy against cost of the policies on one benchmark as SVG, "" if none of them costs anything.

    The paper's figures are hollow marks.

    The dotted line is the front of ours: below and to the right of it somebody is as right for less.
    """
    import matplotlib  # it takes a second

    from orchestra_jax.evaluation.against_cost import FAINT, Mark, draw_marks
    from orchestra_jax.evaluation.canvas import COLOURS

    source, marks = found[0].source, []
    for number, one in enumerate(one for one in found if one.items):
        accuracy, (low, high) = 100 * (one.mean(solved) or 0.0), one.accuracy_interval() or (0.0, 1.0)
        # A bootstrap interval may miss its own mean by a rounding.
        ends = min(100 * low, accuracy), max(100 * high, accuracy)
        colour = COLOURS[number % len(COLOURS)]
        marks.append(Mark(100 * (one.mean(cost) or 0.0), accuracy, one.run, colour, interval=ends))
    if not any(mark.x > 0 for mark in marks):
        return ""
    points = [(mark.x, mark.y) for mark in marks]
    best = sorted(point for point, on in zip(points, on_front(points), strict=True) if on)
    front = [(best[0][0], 0.0), *best, (max(points)[0], best[-1][1])] if len(points) > 1 else []
    for row in published.rows(source, found[0].offer.unseen)[1] if found[0].whole else []:
        if (costs := row.costs(source)) and (their_accuracy := row.accuracy(source)) is not None:
            marks.append(Mark(costs[0], their_accuracy, f"{row.name} (published)", FAINT, hollow=True, faint=True))
    text = io.StringIO()
    figure = draw_marks(marks, label, front=front)
    with matplotlib.rc_context({"svg.hashsalt": "orchestra_jax", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
