"""Figures under smaller caps of turns without sampling again (Fig. 6): trajectories cut where a cap had ended them.

A turn is one generation of the policy with the results of its calls, the answer's turn included
(rollout.limits.max_turns). No policy is shown its limits and every turn has a seed of its own, so a trajectory under a
smaller cap is the beginning of the same one under a larger cap, without the calls of its last turn.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.evaluation.figures import Row, value
from orchestra_jax.evaluation.measures import question_intervals, summarize
from orchestra_jax.evaluation.runner import Evaluator, Work
from orchestra_jax.evaluation.trajectory_files import TrajectoryFile
from orchestra_jax.types import USER_ROLE, Status, Trajectory, Turn, Usage


class CappedEvaluator(Evaluator):
    """Has figures under evaluation.turn_caps beside those under rollout.limits.

    Its collector plays a trajectory once, under the widest limits, and each other one is a beginning of it.
    """

    async def figures(self, work: Work, run: Sequence[Trajectory], *, is_part: bool = False) -> dict[str, Any]:
        own, by_cap = self.cfg.rollout.limits, {}
        found = await super().figures(work, [cut(trajectory, own) for trajectory in run], is_part=is_part)
        for cap, limits in capped(own, self.cfg.evaluation.turn_caps).items():
            some = [cut(trajectory, limits) for trajectory in run]
            by_cap[str(cap)] = summarize(some) | {"intervals": question_intervals(some, work.samples)}
        return found | {"turn_caps": by_cap}

    def files(self, work: Work) -> list[TrajectoryFile]:
        if work.engine is not self.engine or self.directory is None:
            return super().files(work)
        return [self.file(replace(work, folder=name), limits) for limits, name in self._folders(work.folder).items()]

    async def played(self, work: Work, files: Sequence[TrajectoryFile]) -> list[Trajectory]:
        if work.engine is not self.engine or self.directory is None:
            return await super().played(work, files)
        shorter = dict(zip(self._folders(work.folder), files, strict=True))
        file = shorter.pop(self.collector.limits)
        for limits, other in shorter.items():
            for place, trajectory in other.found.items():
                if place not in file.found and not ended_by(trajectory, limits):
                    file.found[place] = trajectory
                    file.add(trajectory)
        run = await super().played(work, [file])
        for limits, other in shorter.items():
            for place, trajectory in zip(self.places(work), run, strict=True):
                if place not in other.found:
                    other.add(cut(trajectory, limits))
        return run

    def _folders(self, name: str) -> dict[RolloutLimits, str]:
        """Return the name of the folder of trajectories under each of the limits, the widest included."""
        own, caps = self.cfg.rollout.limits, self.cfg.evaluation.turn_caps
        most = widest(own, caps)
        found = {limits: f"{name}-{cap}-turns" for cap, limits in capped(own, caps).items() if cap < most.max_turns}
        return found | {most: f"{name}-{most.max_turns}-turns"} | {own: name}


def capped(limits: RolloutLimits, caps: Sequence[int]) -> dict[int, RolloutLimits]:
    """Return the limits under each cap, ascending; they allow at least as many calls as the largest cap has turns."""
    most = max([limits.max_calls, *caps])
    return {cap: replace(limits, max_turns=cap, max_calls=most) for cap in sorted(set(caps))}


def widest(limits: RolloutLimits, caps: Sequence[int]) -> RolloutLimits:
    """Return limits under which a trajectory begins with those under every cap and under `limits`."""
    return replace(limits, max_turns=max([limits.max_turns, *caps]), max_calls=max([limits.max_calls, *caps]))


def cut(trajectory: Trajectory, limits: RolloutLimits) -> Trajectory:
    """Return the trajectory as it had ended under `limits`, or itself where they allow all of it.

    A trajectory that failed for infrastructure reasons failed under every cap that lets it come to that turn.

    Args:
        limits: they differ from those in turns and calls only.
    """
    terminal = {spec.name for spec in trajectory.task.tools if spec.terminal}
    called, number = 0, 0
    for number, turn in enumerate(trajectory.turns, 1):
        called += len(turn.calls)
        if called > limits.max_calls:
            return _ended(trajectory, number, replace(turn, calls=(), results=()), limits.calls_used_up)
        if number == limits.max_turns and turn.calls and not terminal & {call.name for call in turn.calls}:
            return _ended(trajectory, number, replace(turn, results=()), limits.turns_used_up)
        over = trajectory.completed and number == len(trajectory.turns)
        if number == limits.max_turns and turn.heard is not None and not over:
            return _ended(trajectory, number, turn, limits.turns_used_up)
    return trajectory


def ended_by(trajectory: Trajectory, limits: RolloutLimits) -> bool:
    """Return whether wider limits than `limits` might have let the trajectory go on."""
    return trajectory.reason in (limits.turns_used_up, limits.calls_used_up)


def _ended(trajectory: Trajectory, number: int, last: Turn, reason: str) -> Trajectory:
    """Return the first `number` turns, the last of them replaced by `last`, with the ledger until then."""
    left, sequences = number, []
    for turns in trajectory.sequences:
        kept = turns[:left]
        left -= len(kept)
        if kept:
            sequences.append(kept)
    sequences[-1] = (*sequences[-1][:-1], last)
    return replace(
        trajectory,
        sequences=tuple(sequences),
        status=Status.NO_ANSWER,
        reason=reason,
        answer=None,
        solved=False,
        ledger=_rows_until(trajectory, number),
        criteria={},
    )


def _rows_until(trajectory: Trajectory, number: int) -> tuple[Usage, ...]:
    """Return the ledger up to the last of `number` generations and the user's turn after it, without its calls.

    The ledger has a generation, then the rows of its calls, or of the user's turn.
    """
    rows, place, end = trajectory.ledger, 0, 0
    for turn in trajectory.turns[:number]:
        end = _spoken(rows, place, turn)
        if turn.heard is not None:
            while end < len(rows) and rows[end].role == USER_ROLE:
                end += 1
        place = end + sum(len(result.usage) for result in turn.results)
    return rows[:end]


def _spoken(rows: Sequence[Usage], place: int, turn: Turn) -> int:
    """Return where the rows of a generation end: first requests that were billed and lost, then its own."""
    written = sum(count for _, count in turn.spans)
    while place < len(rows) and rows[place].role == "orchestrator":  # a script's words are none
        place += 1
        if not rows[place - 1].estimated or rows[place - 1].completion_tokens == written:
            break
    return place


def draw_turn_caps(rows: Sequence[Row], directory: Path) -> Path:
    """Draw turn_caps.png: accuracy against cost by the most turns, a line for each benchmark (Fig. 6).

    Args:
        rows: of `terminal.cap_rows`, labelled "BENCHMARK, N turns".
    """
    from orchestra_jax.evaluation.canvas import COLOURS, DPI, FAINT, blank, headline, panel  # matplotlib takes a second

    lines: dict[str, list[tuple[float, float, str]]] = {}
    for label, figures, _ in rows:
        cost, accuracy = value(figures, "cost"), value(figures, "accuracy")
        name, _, cap = label.rpartition(", ")
        if cost is not None and accuracy is not None:
            lines.setdefault(name, []).append((100 * cost, 100 * accuracy, cap))
    picture = blank(7.2, 4.6)
    axes = panel(picture)
    for (name, points), colour in zip(lines.items(), itertools.cycle(COLOURS), strict=False):
        axes.plot(*zip(*(point[:2] for point in points), strict=True), "o-", color=colour, label=name)
        for (x, y), same in itertools.groupby(points, key=lambda point: point[:2]):
            caps = " and ".join(cap.removesuffix(" turns") for _, _, cap in same)
            axes.annotate(f"{caps} turns", (x, y), xytext=(5, -12), textcoords="offset points", fontsize=8, color=FAINT)
    axes.set(xlabel="cents a question", ylabel="accuracy (%)")
    axes.margins(0.12)
    axes.legend(frameon=False, fontsize=9)
    headline(picture, "Accuracy against cost by the most turns")
    picture.savefig(directory / "turn_caps.png", dpi=DPI, facecolor="white")
    return directory / "turn_caps.png"
