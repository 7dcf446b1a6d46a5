"""A roofline of a step's rollouts: seconds of decoding, of prefill, and of waiting for experts.

A decoding step reads all weights once (of a mixture's experts those that its tokens are sent to), and the keys and
values of every sequence that it serves; it takes the longer of these bytes at a share of the memory's bandwidth and of
their arithmetic at the stated MFU. Prefill is arithmetic alone: what came before is in the servers' cache, so every
token of a trajectory that was not sampled is prefilled once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestra_jax.config.choices import History
from orchestra_jax.config.rollout import RolloutConfig, RolloutLimits
from orchestra_jax.config.schema import PlanConfig
from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.flops import active_weights
from orchestra_jax.models.gpus import Gpu
from orchestra_jax.models.sizes import num_params
from orchestra_jax.planning.plan import Job

_DTYPE_BYTES = 2  # bfloat16, of weights and of keys and values


@dataclass(frozen=True)
class Servers:
    """The servers that sample.

    Attributes:
        count, gpus: number of servers, and GPUs of each.
        slots: sequences that one of them may have under way.
        room: bytes of each of its GPUs for weights, keys and values.
        waiting: bytes of the trainer on each of these GPUs.
    """

    count: int
    gpus: int
    slots: int
    room: float
    waiting: float = 0.0


@dataclass(frozen=True)
class Assumed:
    """Figures that are assumed, not computed.

    Attributes:
        turns: generations of a trajectory.
        mfu: share of the peak arithmetic that prefill and decoding reach.
        bandwidth: share of the memory's bandwidth that decoding reaches.
        calls: calls of experts of a trajectory, one after the other.
        call_seconds: mean seconds of a call.
        verdict_seconds: seconds of the judge's answer at the end.
    """

    turns: int
    mfu: float
    bandwidth: float
    calls: int
    call_seconds: float
    verdict_seconds: float = 0.0


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of one step.

    Attributes:
        servers: the servers that sample.
        concurrent: sequences that one server decodes side by side; 0: it cannot hold its weights and one sequence.
        wanted: as many as its slots and its share of the trajectories allow.
        weights, cache: bytes of each GPU for weights, and for the keys and values of `concurrent` sequences.
        context: tokens that a sampled token has before it on average.
        sampled: tokens that a trajectory samples.
        token_s: seconds of a decoding step.
        decode_s, prefill_s, calls_s: seconds of the step; trajectories that do not fit side by side follow each other.
    """

    servers: Servers
    concurrent: int
    wanted: int
    weights: float
    cache: float
    context: float
    sampled: float
    token_s: float
    decode_s: float
    prefill_s: float
    calls_s: float

    @property
    def seconds(self) -> float:
        """Seconds of all parts, one after another: an upper bound, as calls overlap with tokens of others."""
        return self.decode_s + self.prefill_s + self.calls_s


def estimate(job: Job, gpu: Gpu, servers: Servers, assumed: Assumed) -> Rollouts:
    """Return the roofline of a step's rollouts on these servers.

    Where the cache does not hold all that the slots allow, fewer sequences run side by side.
    """
    m = job.model
    weights = num_params(m) * _DTYPE_BYTES / servers.gpus
    context = mean_context(job.lengths, job.response, assumed.turns)
    each = context * cache_bytes(m) / servers.gpus  # of a GPU
    share = math.ceil(job.sequences / servers.count)
    wanted = min(servers.slots, share)
    concurrent = max(0, min(wanted, int((servers.room - weights) // each)))
    bandwidth = gpu.bandwidth * assumed.bandwidth
    rate = servers.gpus * gpu.tflops * 1e12 * assumed.mfu
    layers, head = active_weights(m)
    read = weights - m.idle_params(concurrent) * _DTYPE_BYTES / servers.gpus
    attention = 4.0 * m.num_layers * m.num_heads * m.head_dim  # times the tokens that are attended to
    token_s = max(
        (read + concurrent * each) / bandwidth,
        concurrent * (2.0 * (layers + head) + attention * context) / rate,
    )
    sampled = job.response * sum(job.lengths)
    waves = max(1.0, share / concurrent) if concurrent else 0.0
    prefilled = (1 - job.response) * job.tokens
    return Rollouts(
        servers=servers,
        concurrent=concurrent,
        wanted=wanted,
        weights=weights,
        cache=concurrent * each,
        context=context,
        sampled=sampled,
        token_s=token_s,
        decode_s=waves * sampled * token_s,
        prefill_s=share * prefilled * (2.0 * layers + attention * job.tokens / 2) / rate,
        calls_s=waves * (assumed.calls * assumed.call_seconds + assumed.verdict_seconds),
    )


def turns(plan: PlanConfig, limits: RolloutLimits) -> int:
    """Return the generations of a trajectory: a call in each but the last, if nothing else is set."""
    return min(plan.turns or plan.calls + 1, limits.max_turns)


def forks(plan: PlanConfig, rollout: RolloutConfig) -> int:
    """Return the sequences of a trajectory in the update: where reasoning is dropped, a turn that thought ends one.

    `strip_thinking` keeps what was thought since the last user message, so its trajectories stay whole.
    """
    if rollout.history is not History.drop_thinking:
        return 1
    return turns(plan, rollout.limits)


def cache_bytes(model: DecoderConfig) -> int:
    """Return the bytes of the keys and values of one token."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * _DTYPE_BYTES


def mean_context(lengths: Sequence[int], response: float, turns: int) -> float:
    """Return the mean number of tokens before a sampled token of a trajectory.

    A sequence's sampled tokens are at its end where a trajectory has several; one that holds all turns has them at the
    end of each n-th of it.
    """
    if len(lengths) == 1:
        return lengths[0] * (turns + 1 - response) / (2 * turns)
    return (1 - response / 2) * sum(length**2 for length in lengths) / sum(lengths)
