"""Warm start: supervised fine-tuning on scripted demonstrations, gated on measured copy accuracy, not on loss."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from orchestra_jax.rl.batching import MicroBatch, MicroShapes, TokenSequence, micro_batches, sequences
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
                f"({demonstration.reason}): raise rollout.max_length if it is too long."
            )
    return [row for demonstration in demonstrations for row in sequences(demonstration, 1.0)]


def supervised_batches(
    rows: Sequence[TokenSequence], batch_size: int, shapes: MicroShapes, seed: int, start: int, shards: int = 1
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
        yield micro_batches([rows[i] for i in order[first : first + batch_size]], shapes, shards)
        step += 1


def copy_accuracy(
    trajectories: Sequence[Trajectory],
    good_call: Callable[[Task, str], ToolCall],
    answer_from: Callable[[Sequence[ToolResult]], str],
) -> float:
    """Share of calls with arguments, and of final answers, that are copied exactly as a good player would.

    Args:
        trajectories: sampled by the policy.
        good_call: the call of a tool with well-copied arguments.
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
                    copied.append(dict(call.arguments) == dict(good_call(trajectory.task, call.name).arguments))
        results = [result for turn in trajectory.turns for result in turn.results]
        copied.append(trajectory.answer == answer_from(results) if trajectory.valid else False)
    return float(np.mean(copied)) if copied else 0.0
