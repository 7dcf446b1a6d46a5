"""The contract of an engine: token ids in, sampled ids and their log-probs out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The settings of one generation."""

    max_new_tokens: int  # upper bound on sampled tokens, stop id included
    temperature: float = 1.0  # divisor of the logits; 0 is greedy, with log-probs at temperature 1
    stop_ids: tuple[int, ...] = ()  # ids that end the generation; the one sampled is part of the result
    seed: int = 0  # 64 bits; the same seed, prompt and weights give the same ids


@dataclass(frozen=True, slots=True)
class Generation:
    """Sampled ids with their log-probs at the sampling temperature."""

    token_ids: tuple[int, ...]  # stop id included
    logprobs: tuple[float, ...]  # log softmax(logits / temperature) of each sampled id, fp32
    finish_reason: str  # "stop", "length" or "abort"
    weight_version: int  # oldest version of the weights that sampled a token
    cached_tokens: int = 0  # prompt tokens whose keys and values were in the cache already
    version_spans: tuple[tuple[int, int], ...] = ()  # (version, tokens) in order if the weights changed meanwhile


def generation(
    ids: Sequence[int], logprobs: Sequence[float], reason: str, spans: Sequence[tuple[int, int]], cached: int
) -> Generation:
    """Return a generation whose tokens were sampled under the weight versions of `spans`."""
    changed = tuple(spans) if len(spans) > 1 else ()
    return Generation(tuple(ids), tuple(logprobs), reason, spans[0][0], cached, changed)


def check_request(prompt: Sequence[int], params: SamplingParams, max_length: int) -> None:
    """Check that something can be sampled; raise a ValueError of one sentence otherwise."""
    if not prompt:
        raise ValueError("The prompt is empty; give at least one token.")
    if len(prompt) + 1 > max_length:
        raise ValueError(
            f"A prompt of {len(prompt)} tokens leaves no room to sample in rollout.limits.max_length={max_length}: "
            "raise rollout.limits.max_length."
        )
    if params.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {params.max_new_tokens}.")


class Engine(Protocol):
    """A sampler as the collector uses it."""

    def open_session(self) -> int:
        """Announce a trajectory: its generations share a growing prefix whose keys and values are kept."""

    def close_session(self, session: int) -> None:
        """Free what the trajectory held. Closing twice is harmless."""

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Generation:
        """Sample a continuation of `prompt_ids`, which is the whole sequence so far.

        Raises:
            ValueError: the prompt is empty or too long, no new token is allowed, or the session is closed.
            RuntimeError: the engine is closed.
        """

    async def update_weights(self, params: Any, version: int) -> None:
        """Replace the weights.

        A generation under way ends under the old weights, or continues under the new ones and says so in
        `version_spans`.

        Raises:
            RuntimeError: the new weights are not in force everywhere, and nothing samples any more.
        """

    async def close(self) -> None:
        """End the engine: generations under way and later ones fail. Closing twice is harmless."""


class RunEngine:
    """The engine of a run together with what was started for it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def free_gpus(self) -> None:
        """Free GPU memory that servers share with the learner. Called before an update, when nothing generates.

        Raises:
            RuntimeError: a server keeps its memory.
        """

    async def close(self) -> None:
        """End the engine, then what was started for it."""
        await self.engine.close()
