"""Figures of a step's speed: tokens and FLOPs a second, and where its seconds went (docs/metrics.md)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.choices import EngineName, FilteredRows
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.flops import forward_flops
from orchestra_jax.models.gpus import GPUS, Gpu
from orchestra_jax.models.sizes import num_params
from orchestra_jax.processes import Processes
from orchestra_jax.types import USER_ROLE, Status, Trajectory

ROLLOUT = "time/rollout"
# The kinds of work of a rollout: the role of the ledger's rows, and the name of the figures.
_WORK = {"orchestrator": "generate", "tool": "tools", "judge": "judge", USER_ROLE: "user"}
_PERCENTILES = (10, 50, 90, 99, 100)
_SMALLEST_BIN = 256  # tokens of a trajectory


def speed_metrics(
    algorithm: AlgorithmConfig,
    rollout: RolloutConfig,
    model: DecoderConfig,
    processes: Processes,
    trajectories: Sequence[Trajectory],
    members: Sequence[Trajectory],
    advantages: Iterable[float],
    updates: Sequence[Mapping[str, float]],
    times: Mapping[str, float],
    *,
    adapted: bool,
) -> dict[str, float]:
    """Return the figures of one step; all processes call it together.

    Args:
        model: the policy's architecture.
        trajectories: of the whole step.
        members, advantages: what the update of this process was given.
        updates: metrics of the optimizer steps.
        times: seconds of the step's phases by "time/NAME", one after the other.
        adapted: adapters of a frozen base are trained.
    """
    # As in `update`: rows without an advantage are run for the KL or the entropy bonus, unless they are dropped.
    regularised = bool(updates) and ("kl_ref" in updates[0] or algorithm.entropy_coef > 0)
    rest = regularised and algorithm.filtered_rows is not FilteredRows.drop
    pairs = zip(members, advantages, strict=True)
    own = _trained([t for t, a in pairs if a or (rest and t.status is not Status.FAILED)])
    tokens, sampled, squares = np.sum(processes.gather(own), axis=0) if processes.count > 1 else own
    run = tokens - (updates[0]["shared"] if updates else 0.0)
    passes = algorithm.epochs * (2.0 if adapted else 3.0) if updates else 0.0
    flops = passes * forward_flops(model, run, sampled, squares)
    figures = {
        "tokens/sampled_per_s": sum(_sampled(t) for t in trajectories) / times[ROLLOUT],
        "tokens/trained": float(tokens),
        "tokens/trained_per_s": algorithm.epochs * tokens / times["time/update"],
        "flops/update": flops,
        "flops/per_s": flops / times["time/update"],
        **shares(trajectories, times),
        **lengths(trajectories),
    }
    if updates:
        figures["tokens/padding_share"] = max(0.0, 1.0 - run / updates[0]["positions"])
    if (gpu := gpu_of(jax.devices()[0])) is not None:
        figures["mfu"] = flops / times["time/update"] / (jax.device_count() * gpu.tflops * 1e12)
    if rollout.engine is EngineName.sglang:
        width = jax.numpy.dtype(rollout.serving_dtype).itemsize
        figures["sync/bytes_per_s"] = num_params(model) * width / times["time/sync"]
    return figures


def shares(trajectories: Sequence[Trajectory], times: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each phase in the step's wall time, and the seconds of each kind of work in the rollout.

    The shares add up to 1. The rollout's wall time is divided among generation, tools, judge and user by the seconds
    that all trajectories spent in each, as the ledgers say. Where no trajectory worked, all of it is generation's.
    """
    work = defaultdict[str, float](float)
    for trajectory in trajectories:
        for row in trajectory.ledger:
            work[_WORK[row.role]] += row.seconds
    busy, wall = sum(work.values()), times[ROLLOUT]
    parts = {name: wall * (seconds / busy) for name, seconds in work.items()} if busy else {"generate": wall}
    spent = {f"time/{name}": seconds for name, seconds in parts.items()}
    total = sum(times.values())
    phases = {name: seconds for name, seconds in times.items() if name != ROLLOUT} | spent
    prompt, cached = (
        sum(getattr(row, field) for t in trajectories for row in t.ledger if row.role == "orchestrator")
        for field in ("prompt_tokens", "cached_tokens")
    )
    found = {f"share/{name.removeprefix('time/')}": seconds / total for name, seconds in phases.items()}
    found |= {**spent, "time/step": total}
    found["idle/rollout"] = max(0.0, 1.0 - busy / (wall * len(trajectories))) if trajectories and wall else 0.0
    if prompt:
        found["cache/hit_rate"] = cached / prompt
    return found


def lengths(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return percentiles of the turns and tokens of a trajectory, and the share of trajectories in each power of two.

    The tokens are those that the policy read and sampled last: the context of its longest generation.
    """
    turns = [len(t.turns) for t in trajectories]
    tokens = [_longest(t) for t in trajectories]
    found = dict[str, float]()
    for name, values, smallest in (("turns", turns, 1), ("length", tokens, _SMALLEST_BIN)):
        for percent, value in zip(_PERCENTILES, np.percentile(values, _PERCENTILES), strict=True):
            found[f"{name}/{'max' if percent == 100 else f'p{percent}'}"] = float(value)
        bins = Counter(_bin(value, smallest) for value in values)
        found |= {f"{name}/to_{top}": count / len(values) for top, count in sorted(bins.items())}
    return found


def gpu_of(device: jax.Device) -> Gpu | None:
    """Return the GPU of `models.gpus` that a device is, or None if it is none of them."""
    kind = device.device_kind.lower()
    known = [gpu for gpu in GPUS.values() if kind in gpu.label.lower() or gpu.label.lower() in kind]
    return known[0] if device.platform == "gpu" and known else None


def _bin(value: int, smallest: int) -> int:
    """Return the power of two times `smallest` that the value does not exceed."""
    top = smallest
    while top < value:
        top *= 2
    return top


def _sampled(trajectory: Trajectory) -> int:
    return sum(count for turn in trajectory.turns for _, count in turn.spans)


def _longest(trajectory: Trajectory) -> int:
    """Return the tokens of the longest generation's context with what was sampled."""
    rows = [row for row in trajectory.ledger if row.role == "orchestrator"]
    return max((row.prompt_tokens + row.completion_tokens for row in rows), default=0)


def _trained(trajectories: Iterable[Trajectory]) -> tuple[int, int, int]:
    """Return tokens, sampled tokens and squares of lengths of all sequences of these trajectories."""
    tokens = sampled = squares = 0
    for trajectory in trajectories:
        for turns in trajectory.sequences:
            length = sum(len(turn.prompt_ids) + len(turn.sampled_ids) for turn in turns)
            tokens, squares = tokens + length, squares + length**2
            sampled += sum(len(turn.sampled_ids) for turn in turns)
    return tokens, sampled, squares
