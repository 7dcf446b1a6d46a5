"""Warm start: supervised fine-tuning on scripted demonstrations, gated on measured copy accuracy, not on loss."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from orchestra_jax.rl.batching import MicroBatch, TokenSequence, sequences
from orchestra_jax.rl.packing import PackShapes, pack
from orchestra_jax.types import Task, ToolCall, ToolResult, Trajectory


def demonstration_rows(demonstrations: Sequence[Trajectory]) -> list[TokenSequence]:
    """The demonstrations as rows; the script's tokens carry loss, prompts and observations do not.

    Raises:
        ValueError: a demonstration did not end with an answer.
    """
    for demonstration in demonstrations:
        if not demonstration.valid:
            raise ValueError(
                f"The demonstration of task {demonstration.task.id} ended as {demonstration.status} "
                f"({demonstration.reason}): raise rollout.limits.max_length if it is too long."
            )
    return [row for demonstration in demonstrations for row in sequences(demonstration, 1.0)]


# Tokens that a batch's rows hold beyond its mean number: for batches that are longer, and what packing wastes.
_SPARE = 1.08


def demonstration_shapes(
    rows: Sequence[TokenSequence],
    batch_size: int,
    micro_tokens: int,
    response_fractions: tuple[float, ...],
    shards: int = 1,
) -> PackShapes:
    """Packed rows of twice the longest demonstration, of which a batch of mean length fills whole micro-batches.

    Args:
        micro_tokens: tokens of a micro-batch on one batch shard, at most, as far as a demonstration fits.
        shards: batch shards of the mesh.
    """
    lengths = [len(row.tokens) for row in rows]
    row_length = max(max(lengths), min(2 * max(lengths), micro_tokens))
    needed = _SPARE * batch_size * float(np.mean(lengths)) / shards
    micro = max(1, math.ceil(needed / max(micro_tokens, row_length)))
    count = min(math.ceil(needed / micro / row_length), max(1, micro_tokens // row_length))
    return PackShapes(row_length, count, max(count, batch_size), response_fractions)


def supervised_batches(
    rows: Sequence[TokenSequence], batch_size: int, shapes: PackShapes, seed: int, start: int, shards: int = 1
) -> Iterator[list[MicroBatch]]:
    """Endless shuffled batches from step `start` on; step n is the same wherever the iterator began.

    Args:
        shards: batch shards of the mesh.
    """
    per_epoch = max(1, len(rows) // batch_size)
    step = start
    while True:
        order = np.random.default_rng([seed, step // per_epoch]).permutation(len(rows))
        first = step % per_epoch * batch_size
        yield pack([rows[i] for i in order[first : first + batch_size]], shapes, shards)
        step += 1


def copy_accuracy(
    trajectories: Sequence[Trajectory],
    reference_call: Callable[[Task, str], ToolCall],
    answer_from: Callable[[Sequence[ToolResult]], str],
) -> float:
    """Share of calls with arguments, and of final answers, that are copied exactly.

    Args:
        trajectories: sampled by the policy.
        reference_call: the call of a tool with well-copied arguments.
        answer_from: the well-copied answer after these results.

    A malformed trajectory counts as one failed copy, so a policy that breaks the format cannot pass the gate.
    """
    copied: list[bool] = []
    for trajectory in trajectories:
        offered = {spec.name for spec in trajectory.task.tools}
        for turn in trajectory.turns:
            for call in turn.calls:
                if call.name not in offered:
                    copied.append(False)
                elif call.arguments:
                    copied.append(dict(call.arguments) == dict(reference_call(trajectory.task, call.name).arguments))
        results = [result for turn in trajectory.turns for result in turn.results]
        copied.append(trajectory.answer == answer_from(results) if trajectory.valid else False)
    return float(np.mean(copied)) if copied else 0.0
