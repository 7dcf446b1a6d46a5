"""Trajectories into arrays: the [G, N] arrays of the reward and the padded micro-batches of the update.

A row is one sequence without the prefix it shares with its group: the prefix is run once per group and its keys and
values serve every member (`share_prefix`), so a prompt costs one forward and backward pass however many members the
group has. Rows are sorted by width into a few fixed shapes, so nothing recompiles after the first steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from orchestra_jax.types import Status, Trajectory


@dataclass(frozen=True)
class GroupArrays:
    """What the reward needs of G groups of N members; K is the largest menu, F = K + 3.

    Attributes:
        tool_counts: calls of each tool of the instance's menu, menu order.
        solved, completed, failed: r_outcome; the trajectory gave an answer; infrastructure failure.
        cost_usd, latency_s: sums over the trajectory's ledger.
        preference: P in the feature order of `rewards.feature_matrix`.
        tool_mask: features that exist for the instance.
    """

    tool_counts: Float[np.ndarray, "G N K"]
    solved: Bool[np.ndarray, "G N"]
    completed: Bool[np.ndarray, "G N"]
    failed: Bool[np.ndarray, "G N"]
    cost_usd: Float[np.ndarray, "G N"]
    latency_s: Float[np.ndarray, "G N"]
    preference: Float[np.ndarray, "G F"]
    tool_mask: Bool[np.ndarray, "G F"]


def group_arrays(trajectories: Sequence[Trajectory], group_size: int, max_tools: int | None = None) -> GroupArrays:
    """Arrays of trajectories that are ordered by group, then member (as `Collector.collect` returns them).

    Args:
        max_tools: K; the largest menu among the trajectories when None.

    Raises:
        ValueError: the number of trajectories is no multiple of `group_size`.
    """
    if len(trajectories) % group_size:
        raise ValueError(f"{len(trajectories)} trajectories do not divide into groups of {group_size}.")
    groups = [trajectories[i : i + group_size] for i in range(0, len(trajectories), group_size)]
    tools = max_tools or max(len(t.task.tools) for t in trajectories)
    counts = np.zeros((len(groups), group_size, tools), np.float32)
    preference = np.zeros((len(groups), tools + 3), np.float32)
    tool_mask = np.zeros((len(groups), tools + 3), bool)
    for g, members in enumerate(groups):
        task = members[0].task
        names = [spec.name for spec in task.tools]
        wish = task.preference
        preference[g, : len(names)] = [wish.tools.get(name, 0.0) for name in names]
        preference[g, tools:] = wish.outcome, wish.compute, wish.latency
        tool_mask[g, : len(names)] = tool_mask[g, tools:] = True
        for n, member in enumerate(members):
            called = member.tool_names
            counts[g, n, : len(names)] = [called.count(name) for name in names]

    def column(values: Sequence[float | bool], dtype: type) -> np.ndarray:
        return np.array(values, dtype).reshape(len(groups), group_size)

    return GroupArrays(
        counts,
        column([t.solved for t in trajectories], bool),
        column([t.valid for t in trajectories], bool),
        column([t.status is Status.FAILED for t in trajectories], bool),
        column([t.cost_usd for t in trajectories], np.float32),
        column([t.latency_s for t in trajectories], np.float32),
        preference,
        tool_mask,
    )


@dataclass(frozen=True)
class TokenSequence:
    """One token sequence to train on.

    Attributes:
        tokens: all ids.
        sampled: True where the id was sampled by the policy and so carries loss.
        logprobs: behaviour log-probs where sampled, 0 elsewhere.
        prefix: how many leading ids may be shared with other rows.
        advantage: one number for the whole sequence.
    """

    tokens: tuple[int, ...]
    sampled: tuple[bool, ...]
    logprobs: tuple[float, ...]
    prefix: int
    advantage: float


def sequences(trajectory: Trajectory, advantage: float) -> list[TokenSequence]:
    """The trajectory's sequences; a trajectory that forked has several, all with its advantage."""
    found = []
    for turns in trajectory.sequences:
        tokens: list[int] = []
        sampled: list[bool] = []
        logprobs: list[float] = []
        for turn in turns:
            tokens += [*turn.prompt_ids, *turn.sampled_ids]
            sampled += [False] * len(turn.prompt_ids) + [True] * len(turn.sampled_ids)
            logprobs += [0.0] * len(turn.prompt_ids) + list(turn.logprobs)
        if turns:
            # The last prompt token stays in the row: its hidden state predicts the first sampled one.
            found.append(
                TokenSequence(tuple(tokens), tuple(sampled), tuple(logprobs), len(turns[0].prompt_ids) - 1, advantage)
            )
    return found


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MicroBatch:
    """One fixed-shape piece of a batch: B rows of T tokens over G shared prefixes of at most P tokens.

    Attributes:
        prefix, prefix_lengths: shared prefixes, padded; P is 0 when nothing is shared.
        prefix_row: which prefix each row continues.
        tokens: the rows, padded with 0.
        mask: 1.0 where the token was sampled and carries loss.
        rollout_logprobs: the engine's log-probs where sampled.
        old_logprobs: log-probs at the start of the step; the engine's unless the learner scored the rows itself.
        advantages: per row.
        select: flat index b * T + t of every position whose next token carries loss, padded with B * T - 1.
    """

    prefix: Int[Array, "G P"]
    prefix_lengths: Int[Array, " G"]
    prefix_row: Int[Array, " B"]
    tokens: Int[Array, "B T"]
    mask: Float[Array, "B T"]
    rollout_logprobs: Float[Array, "B T"]
    old_logprobs: Float[Array, "B T"]
    advantages: Float[Array, " B"]
    select: Int[Array, " R"]

    @property
    def num_tokens(self) -> float:
        return float(self.mask.sum())


@dataclass(frozen=True)
class MicroShapes:
    """The shapes that get compiled.

    Attributes:
        tokens: tokens of a micro-batch: a width w gives tokens // w rows.
        widths: row widths, ascending; the last must hold the longest row.
        prefix_widths: widths of the shared prefix; empty switches sharing off.
        rows_per_prefix: at least one prefix slot for so many rows.
        response_fractions: shares of a micro-batch's tokens that may be sampled ones, ascending; only so many positions
            are projected onto the vocabulary, and each share is compiled when it is first needed.
    """

    tokens: int = 4096
    widths: tuple[int, ...] = (40, 64, 128)
    prefix_widths: tuple[int, ...] = (80,)
    rows_per_prefix: int = 8
    response_fractions: tuple[float, ...] = (0.5,)


def micro_batches(rows: Sequence[TokenSequence], shapes: MicroShapes) -> list[MicroBatch]:
    """Splits rows into micro-batches of few shapes; every row lands in exactly one.

    Raises:
        ValueError: a row or prefix is longer than the widest shape.
    """
    share = bool(shapes.prefix_widths)
    by_width: dict[int, list[TokenSequence]] = {}
    for row in rows:
        length = len(row.tokens) - (row.prefix if share else 0)
        width = next((w for w in shapes.widths if w >= length), None)
        if width is None:
            raise ValueError(f"A row of {length} tokens exceeds the widest shape {shapes.widths[-1]}; widen it.")
        by_width.setdefault(width, []).append(row)
    batches = []
    for width, members in sorted(by_width.items()):
        most_rows = max(1, shapes.tokens // width)
        most_prefixes = max(1, most_rows // shapes.rows_per_prefix) if share else 1
        part: list[TokenSequence] = []
        prefixes: dict[tuple[int, ...], int] = {}
        for row in members:
            prefix = row.tokens[: row.prefix] if share else ()
            if len(part) == most_rows or (prefix not in prefixes and len(prefixes) == most_prefixes):
                batches.append(_micro_batch(part, prefixes, width, most_rows, most_prefixes, shapes))
                part, prefixes = [], {}
            prefixes.setdefault(prefix, len(prefixes))
            part.append(row)
        batches.append(_micro_batch(part, prefixes, width, most_rows, most_prefixes, shapes))
    return batches


def _micro_batch(
    part: Sequence[TokenSequence],
    prefixes: dict[tuple[int, ...], int],
    width: int,
    most_rows: int,
    most_prefixes: int,
    shapes: MicroShapes,
) -> MicroBatch:
    longest = max(len(prefix) for prefix in prefixes)
    prefix_width = next((w for w in (0, *shapes.prefix_widths) if w >= longest), None)
    if prefix_width is None:
        raise ValueError(f"A prefix of {longest} tokens exceeds the widest {shapes.prefix_widths[-1]}; widen it.")
    prefix = np.zeros((most_prefixes, prefix_width), np.int32)
    prefix_lengths = np.zeros(most_prefixes, np.int32)
    for ids, index in prefixes.items():
        prefix[index, : len(ids)] = ids
        prefix_lengths[index] = len(ids)
    tokens = np.zeros((most_rows, width), np.int32)
    mask, logprobs = np.zeros((most_rows, width), np.float32), np.zeros((most_rows, width), np.float32)
    prefix_row, advantages = np.zeros(most_rows, np.int32), np.zeros(most_rows, np.float32)
    for b, row in enumerate(part):
        start = row.prefix if shapes.prefix_widths else 0
        length = len(row.tokens) - start
        tokens[b, :length] = row.tokens[start:]
        mask[b, :length] = row.sampled[start:]
        logprobs[b, :length] = row.logprobs[start:]
        prefix_row[b] = prefixes[row.tokens[:start]]
        advantages[b] = row.advantage
    found = np.flatnonzero(mask) - 1
    sizes = (int(most_rows * width * fraction) for fraction in (*shapes.response_fractions, 1.0))
    select = np.full(next(size for size in sizes if size >= len(found)), most_rows * width - 1, np.int32)
    select[: len(found)] = found
    return MicroBatch(prefix, prefix_lengths, prefix_row, tokens, mask, logprobs, logprobs, advantages, select)  # type: ignore[arg-type]
