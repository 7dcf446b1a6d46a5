"""The Engine contract: token ids in, sampled ids and their log-probs out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one generation.

    Attributes:
        max_new_tokens: upper bound on sampled tokens, stop id included.
        temperature: softmax(logits / temperature); 0 is greedy, with log-probs reported at temperature 1.
        stop_ids: sampling one of these ends the generation; it is part of the sampled ids.
        seed: 64-bit seed of this generation; the same seed, prompt and weights give the same ids.
    """

    max_new_tokens: int
    temperature: float = 1.0
    stop_ids: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """Sampled ids with the log-probs at the sampling temperature.

    Attributes:
        token_ids: sampled ids, stop id included.
        logprobs: log softmax(logits / temperature) of each sampled id, fp32.
        finish_reason: "stop" | "length" | "abort".
        weight_version: the oldest version of the weights that sampled a token.
        cached_tokens: prompt tokens whose keys and values were already there.
        version_spans: (version, number of tokens) in order, where the weights changed while it was sampled; empty
            where `weight_version` sampled every token.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    weight_version: int
    cached_tokens: int = 0
    version_spans: tuple[tuple[int, int], ...] = ()


def generation(
    ids: Sequence[int], logprobs: Sequence[float], reason: str, spans: Sequence[tuple[int, int]], cached: int
) -> Generation:
    """A generation whose tokens were sampled under the versions of `spans`."""
    return Generation(
        token_ids=tuple(ids),
        logprobs=tuple(logprobs),
        finish_reason=reason,
        weight_version=spans[0][0],
        cached_tokens=cached,
        version_spans=tuple(spans) if len(spans) > 1 else (),
    )


def check_request(prompt: Sequence[int], params: SamplingParams, max_length: int) -> None:
    """Raises ValueError where nothing can be sampled; one sentence."""
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
    """What the collector needs of a sampler; `embedded.EmbeddedEngine` and `sglang.engine.SGLangEngine` have it."""

    def open_session(self) -> int:
        """Announces a trajectory: its generations share a growing prefix whose keys and values are kept."""
        ...

    def close_session(self, session: int) -> None:
        """Frees what the trajectory held; closing twice is harmless."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Generation:
        """Samples a continuation of `prompt_ids` (the whole sequence so far, not only what is new).

        Raises:
            ValueError: nothing can be sampled: an empty or too long prompt, no new tokens, a session that is closed.
            RuntimeError: the engine is closed.
        """
        ...

    async def update_weights(self, params: Any, version: int) -> None:
        """Replaces the weights.

        Generations under way either end under the old ones or go on under the new ones and say so in `version_spans`.

        Raises:
            RuntimeError: the new weights are not in force everywhere, and nothing samples any more.
        """
        ...

    async def close(self) -> None:
        """Ends the engine; generations under way and later ones fail. Closing twice is harmless."""
        ...
