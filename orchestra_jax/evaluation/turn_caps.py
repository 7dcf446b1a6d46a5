"""A trajectory under a smaller cap of turns: what it would have been, without sampling it again (Fig. 6).

A turn is one generation of the policy with what its calls gave, the answer's included (rollout.limits.max_turns). No
policy is shown its limits and every turn has a seed of its own, so a trajectory under a smaller cap is the beginning of
the same one under a larger cap: all but the calls of its last turn, which nobody would have made. A user hears it.
"""

from collections.abc import Sequence
from dataclasses import replace

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.types import USER_ROLE, Status, Trajectory, Turn, Usage


def capped(limits: RolloutLimits, caps: Sequence[int]) -> dict[int, RolloutLimits]:
    """The limits under each cap, ascending; calls are at least as many as the largest has turns."""
    most = max([limits.max_calls, *caps])
    return {cap: replace(limits, max_turns=cap, max_calls=most) for cap in sorted(set(caps))}


def widest(limits: RolloutLimits, caps: Sequence[int]) -> RolloutLimits:
    """The limits under which a trajectory holds those under every cap, and under `limits`, as beginnings."""
    return replace(limits, max_turns=max([limits.max_turns, *caps]), max_calls=max([limits.max_calls, *caps]))


def cut(trajectory: Trajectory, limits: RolloutLimits) -> Trajectory:
    """The trajectory as it had ended under `limits`, which differ in turns and calls only; itself where they allow it.

    What failed for infrastructure reasons failed under any cap that lets it come to that turn.
    """
    terminal = {spec.name for spec in trajectory.task.tools if spec.terminal}
    called, number = 0, 0
    for number, turn in enumerate(trajectory.turns, 1):
        called += len(turn.calls)
        if called > limits.max_calls:
            return _ended(trajectory, number, replace(turn, calls=(), results=()), limits.calls_used_up)
        if number == limits.max_turns and turn.calls and not terminal & {call.name for call in turn.calls}:
            return _ended(trajectory, number, replace(turn, results=()), limits.turns_used_up)
        over = trajectory.valid and number == len(trajectory.turns)
        if number == limits.max_turns and turn.heard is not None and not over:
            return _ended(trajectory, number, turn, limits.turns_used_up)
    return trajectory


def ended_by(trajectory: Trajectory, limits: RolloutLimits) -> bool:
    """Whether it might have gone on, had `limits`, under which it was made, allowed more turns and calls."""
    return trajectory.reason in (limits.turns_used_up, limits.calls_used_up)


def _ended(trajectory: Trajectory, number: int, last: Turn, reason: str) -> Trajectory:
    """The first `number` turns with the `last` of them as given, and the ledger until then."""
    left, sequences = number, []
    for turns in trajectory.sequences:
        kept = turns[:left]
        left -= len(kept)
        if kept:
            sequences.append(kept)
    sequences[-1] = (*sequences[-1][:-1], last)
    return replace(
        trajectory, sequences=tuple(sequences), status=Status.NO_ANSWER, reason=reason, answer=None, solved=False,
        ledger=_rows_until(trajectory, number), criteria={},
    )  # fmt: skip


def _rows_until(trajectory: Trajectory, number: int) -> tuple[Usage, ...]:
    """The ledger up to the last of so many generations and what the user said to it, without its calls.

    Its order: a generation, then what its calls cost, or the user's turn.
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
    """Where the rows of a generation end: requests that were billed and lost, at their worst case, then its own."""
    written = sum(count for _, count in turn.spans)
    while place < len(rows) and rows[place].role == "orchestrator":  # a script's words are none
        place += 1
        if not rows[place - 1].estimated or rows[place - 1].completion_tokens == written:
            break
    return place
