"""A live table of families of questions and of the tools called for them, below a run's bar; loaded on a terminal."""

from collections import Counter, deque
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape

from orchestra_jax.evaluation.calls import called_tools, counted
from orchestra_jax.evaluation.figures import NOTHING, number
from orchestra_jax.evaluation.terminal import FINE_USD, table
from orchestra_jax.types import Trajectory

LATEST = 3  # batches of rollouts, such as steps, that the figures are means of
_ALL, _NO_CALL, _OTHERS = "all", "(no call)", "(other tools)"
_LABELS = ("right %", "valid %", "calls", "cents", "first call, %")
_STYLES = {"right %": "bold green", "first call, %": "dim"}
_LINES = 14  # of a terminal that are no tool's row: two printed lines, bar, title, headings, labels, other tools
_NARROW, _WIDE = 6, 14  # characters of a column of figures


class Rollout(NamedTuple):
    """Figures of one rollout that the table adds up."""

    family: str
    first: str  # tool of the first call
    solved: bool
    valid: bool
    calls: int
    usd: float


class FamilyTable:
    """Figures of the latest rollouts by family of questions: accuracy, cost, and the tools of the first calls.

    It fits the terminal: where there is no room, rare families are in the column of all alone, and rare tools share a
    row.
    """

    def __init__(self) -> None:
        self._latest: deque[list[Rollout]] = deque(maxlen=LATEST)
        self._families, self._tools = Counter[str](), Counter[str]()  # of all rollouts, so that none comes and goes
        self._drawn = list[Rollout](), list[str](), list[str]()  # replaced as a whole: another thread draws

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Take a batch of rollouts in; the earliest of the latest batches goes."""
        self._latest.append([_rollout(each) for each in counted(trajectories)])
        self._families.update(each.family for each in self._latest[-1])
        self._tools.update(each.first for each in self._latest[-1])
        families, tools = ([name for name, _ in each.most_common()] for each in (self._families, self._tools))
        self._drawn = [*chain(*self._latest)], families, tools

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it for the terminal's size; nothing before the first rollout, or where even the means do not fit."""
        rollouts, families, tools = self._drawn
        room = console.height - _LINES
        if not rollouts or room < 0:
            return
        shown, others = sorted(tools[:room]), tools[room:]
        labels = [*_LABELS, *map(escape, shown), *([_OTHERS] if others else [])]
        widest = min(max(map(len, labels)), options.max_width // 2)
        named = _fitting(families, options.max_width - widest - _NARROW - 3)
        parts = [[each for each in rollouts if each.family == family] for family in named]
        columns = [[*_means(some), "", *_shares(some, shown, others)] for some in (*parts, rollouts)]
        lines = [(_STYLES.get(row[0], ""), row) for row in zip(labels, *columns, strict=True)]
        title = f"the latest {len(rollouts):,} rollouts"
        yield table(title, ["", *map(_heading, named), _ALL], lines, no_wrap=True, max_width=widest)


def _rollout(trajectory: Trajectory) -> Rollout:
    called, family = called_tools(trajectory), trajectory.task.family
    first = called[0] if called else _NO_CALL
    return Rollout(family, first, trajectory.solved, trajectory.completed, len(called), trajectory.cost_usd)


def _heading(family: str) -> str:
    return escape(family if len(family) <= _WIDE else f"{family[: _WIDE - 1]}…")


def _fitting(families: Sequence[str], width: int) -> list[str]:
    """Return the first families whose columns fit, in the order of their names; none where there is but one."""
    ends = accumulate(max(min(len(family), _WIDE), _NARROW) + 1 for family in families)
    fitting = [family for family, end in zip(families, ends, strict=True) if family and end <= width]
    return sorted(fitting) if len(families) > 1 else []


def _means(rollouts: Sequence[Rollout]) -> list[str]:
    if not rollouts:
        return [NOTHING] * (len(_LABELS) - 1)
    solved, valid, calls, usd = np.mean([each[2:] for each in rollouts], axis=0)
    cents = number(usd, 100, 4 if 0 < usd < FINE_USD else 2)
    return [f"{100 * solved:.0f}", f"{100 * valid:.0f}", f"{calls:.2f}", cents]


def _shares(rollouts: Sequence[Rollout], shown: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the shares of first calls, in percent, the largest one bold; empty cells for tools without any."""
    first = Counter(each.first for each in rollouts)
    counts = [*(first[tool] for tool in shown), *([sum(first[tool] for tool in others)] if others else [])]
    cells = [f"{100 * count / len(rollouts):.0f}" if count else "" for count in counts]
    return [f"[bold]{cell}[/]" if cell and n == max(counts) else cell for cell, n in zip(cells, counts, strict=True)]
