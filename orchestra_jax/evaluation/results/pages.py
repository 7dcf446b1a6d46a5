"""Pages of a run's rollouts that open in a browser without a server: an index, and a page for each group."""

import base64
import itertools
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import RewardConfig
from orchestra_jax.evaluation.group_files import StoredGroup
from orchestra_jax.evaluation.pictures import LEARNING_CURVES, draw
from orchestra_jax.evaluation.results.group_page import Decode, view
from orchestra_jax.evaluation.results.rendering import templates

COLUMNS = "step group member page task family preference status solved reward advantage cost seconds tools".split()


def write_pages(
    groups: Iterable[StoredGroup],
    out: Path,
    *,
    name: str,
    reward: RewardConfig,
    decode: Decode | None = None,
    metrics: Sequence[Mapping[str, float]] = (),
) -> Path:
    """Write the pages, with two groups in memory at a time.

    Args:
        groups: in the order of step and group.
        out: the folder; earlier pages in it are deleted.
        reward: how the run weighs the terms of Eq. 2.
        metrics: rows of metrics.jsonl, for the learning curves and the table of seconds.

    Returns:
        The index.

    Raises:
        ValueError: there is no group.
    """
    folder, rows, older = out / "groups", [], None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = templates()
    page = made.get_template("group.html.jinja")
    for group, newer in itertools.pairwise(itertools.chain(groups, [None])):
        assert group is not None  # only the last one is
        beside = {"older": older, "newer": newer and _file(newer)}
        _write(folder / _file(group), page.render(**view(group, reward, decode), **beside, run=name))
        rows += _rows(group)
        older = _file(group)
    if not rows:
        raise ValueError("There is no group of trajectories to show.")
    _write(out / "rows.js", made.get_template("rows.js.jinja").render(columns=COLUMNS, rows=rows))
    index = made.get_template("index.html.jinja")
    curves, speed = _learning_curves(metrics), _speed(metrics)
    _write(out / "index.html", index.render(run=name, count=len(rows), picture=curves, speed=speed))
    return out / "index.html"


def _write(file: Path, text: str) -> None:
    # A policy's broken bytes may leave half of a surrogate pair in its text.
    file.write_text(text, encoding="utf-8", errors="replace")


def _learning_curves(metrics: Sequence[Mapping[str, float]]) -> str:
    """Return the picture in base64 for the index, "" if there is nothing to draw."""
    with tempfile.TemporaryDirectory() as folder:
        curves = [file for file in draw({}, metrics, Path(folder)) if file.name == LEARNING_CURVES]
        return base64.b64encode(curves[0].read_bytes()).decode() if curves else ""


def _speed(metrics: Sequence[Mapping[str, float]]) -> list[list[str]]:
    """Return the table of each step's seconds, the headings first; nothing of a run that did not log its speed."""
    timed = [row for row in metrics if "time/step" in row]
    if not timed:
        return []
    names = dict.fromkeys(name for row in timed for name in row)
    phases = [name for name in names if name.startswith("share/")]
    rates = [name for name in ("tokens/sampled_per_s", "tokens/trained_per_s", "mfu") if name in names]
    table = [["step", "seconds", *(f"{name.removeprefix('share/')} %" for name in phases), "sum %", *rates]]
    for row in timed:
        shares = [100 * row.get(name, 0.0) for name in phases]
        percents = [f"{share:.1f}" for share in (*shares, sum(shares))]
        rest = [f"{row[name]:.4g}" if name in row else "" for name in rates]
        table.append([str(int(row["step"])), f"{row['time/step']:.2f}", *percents, *rest])
    return table


def _file(group: StoredGroup) -> str:
    return f"{group.step:06d}-{group.group:04d}.html"


def _rows(group: StoredGroup) -> list[list[Any]]:
    """Return the index's row of each member, in the order of COLUMNS."""
    task, found = group.task, []
    for n, member in enumerate(group.members):
        place = [group.step, group.group, n, _file(group), task.id, task.family, task.preference.name]
        score = [str(member.status), bool(member.solved), round(group.rewards[n], 4), round(group.advantages[n], 4)]
        used = [round(member.cost_usd, 8), round(member.latency_s, 3), sorted(set(member.tool_names))]
        found.append(place + score + used)
    return found
