"""Give the learner's own log-probs of sampled tokens back to the trajectories that its micro-batches came from."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from orchestra_jax.evaluation.group_files import Scores
from orchestra_jax.rl.batching import MicroBatch
from orchestra_jax.training.update import first_number
from orchestra_jax.types import Trajectory

Row = tuple[np.ndarray, np.ndarray, np.ndarray]  # of the sampled tokens: ids, and log-probs of engine and learner


def own_logprobs(trajectories: Sequence[Trajectory], scored: Sequence[MicroBatch]) -> dict[int, Scores]:
    """Return the learner's log-probs of the sampled ids, by index of the trajectory.

    A trajectory without rows, or with rows of other tokens, is left out: pages show it as not scored.

    Args:
        trajectories: all trajectories that the step trains on, as `update` got them.
        scored: micro-batches that `update` collected.
    """
    rows: dict[int, list[Row]] = {}
    first = first_number() if scored else 0
    for batch in scored:
        masks, numbers, engine, learner = map(
            _of_this_process, (batch.mask, batch.trajectory, batch.rollout_logprobs, batch.old_logprobs)
        )
        ids = _sampled(batch, masks.shape)
        for n in np.flatnonzero(masks.any(1)):
            carries = masks[n] > 0
            row = (ids[n][carries], engine[n][carries], learner[n][carries])
            rows.setdefault(int(numbers[n]) - first, []).append(row)
    told = {index: _by_sequence(trajectories[index], found) for index, found in rows.items()}
    return {index: scores for index, scores in told.items() if scores is not None}


def _by_sequence(trajectory: Trajectory, rows: Sequence[Row]) -> Scores | None:
    """Put the rows in the order of the trajectory's sequences, matched by ids and the engine's log-probs."""
    left, found = list(rows), list[tuple[float, ...]]()
    for turns in trajectory.sequences:
        ids = np.array([token for turn in turns for token in turn.sampled_ids], np.int32)
        engine = np.array([logprob for turn in turns for logprob in turn.logprobs], np.float32)
        if not len(ids):
            found.append(())
            continue
        same = [np.array_equal(a, ids) and np.array_equal(b, engine, equal_nan=True) for a, b, _ in left]
        if True not in same:
            return None
        found.append(tuple(left.pop(same.index(True))[2].tolist()))
    return tuple(found)


def _sampled(batch: MicroBatch, shape: tuple[int, int]) -> np.ndarray:
    """Return the ids that carry loss, in the layout of the loss. Indices count within a part."""
    tokens, select, place = map(_of_this_process, (batch.tokens, batch.select, batch.place))
    parts = np.arange(len(select))[:, None]
    flat = tokens.reshape(len(select), -1)
    size = shape[0] // len(select) * shape[1] if batch.row_of is None else flat.shape[1]
    found = np.zeros((len(select), size + 1), np.int32)  # padding goes to the last place
    found[parts, place] = flat[parts, np.minimum(select + 1, flat.shape[1] - 1)]
    ids = found[:, :-1].reshape(len(select), -1, shape[1])
    if batch.row_of is not None:
        ids = ids[parts, _of_this_process(batch.row_of).reshape(len(select), -1)]
    return ids.reshape(shape)


def _of_this_process(array: Any) -> np.ndarray:
    """Return the part of an array, split by rows over the mesh, that this process fed."""
    if not isinstance(array, jax.Array):
        return np.asarray(array)
    parts = {shard.index[0].start or 0: shard.data for shard in array.addressable_shards}
    return np.concatenate([np.asarray(jax.device_get(parts[start])) for start in sorted(parts)])
