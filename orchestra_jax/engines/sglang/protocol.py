"""Requests to SGLang's /generate, and checks of its answers: nothing becomes a sample unless everything is right."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestra_jax.engines.base import SamplingParams

# Measured: of a context of C tokens, SGLang takes prompts of up to C - 7 tokens and samples up to C - 2 in all.
CONTEXT_SPARE = 6
_ABOVE_ZERO = 1e-5  # how far rounding may lift a log-prob above 0


@dataclass(frozen=True, slots=True)
class Piece:
    """The sample of one request.

    Attributes:
        token_ids, logprobs: sampled ids and their log-probs at the sampling temperature.
        finish: "stop" (the last id is one of ours), "length", "abort", or "foreign": the server ended at an id that
            ends a text for its model but not for us, and the generation has to go on.
        spans: (version, number of tokens) in order; together they cover all tokens.
        cached_tokens: prompt tokens whose keys and values were there.
        queue_s: seconds that the request waited in the server's queue; 0 where the server does not say: SGLang does
            with --enable-metrics.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    spans: tuple[tuple[int, int], ...]
    cached_tokens: int
    queue_s: float = 0.0


def request_body(rid: str, ids: Sequence[int], params: SamplingParams, count: int) -> dict[str, Any]:
    """Return the JSON that asks for `count` tokens after `ids`.

    `ignore_eos` makes SGLang ignore our stop ids too, so it is set only where there are none. Temperature 0 is greedy
    with log-probs at temperature 1. The seed counts only where the server runs --enable-deterministic-inference.
    """
    sampling = {
        "temperature": params.temperature,
        "max_new_tokens": count,
        "stop_token_ids": list(params.stop_ids),
        "ignore_eos": not params.stop_ids,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "sampling_seed": params.seed % 2**63,
    }
    return {
        "rid": rid,
        "input_ids": list(ids),
        "sampling_params": sampling,
        "return_logprob": True,
        "logprob_start_len": -1,
        "return_text_in_logprobs": False,
        "stream": False,
    }


def read_answer(
    answer: Any,
    *,
    rid: str,
    prompt_length: int,
    count: int,
    stop_ids: Sequence[int],
    vocab_size: int,
    versions: Mapping[str, int],
) -> Piece:
    """Check and read an answer of /generate that weights of these `versions`, by the server's labels, can have sampled.

    Raises:
        ValueError: anything is not as it must be; the message is the reason, as a clause.
    """
    meta = answer.get("meta_info") if isinstance(answer, Mapping) else None
    if not isinstance(meta, Mapping):
        raise ValueError("it has no meta_info")
    if meta.get("id") != rid:
        raise ValueError(f"it belongs to the request {meta.get('id')!r}, not to {rid!r}")
    if meta.get("prompt_tokens", prompt_length) != prompt_length:
        raise ValueError(f"its prompt has {meta['prompt_tokens']} tokens instead of {prompt_length}")
    ids, logprobs = _tokens(answer, meta, vocab_size)
    if len(ids) > count:
        raise ValueError(f"it has {len(ids)} tokens, but at most {count} were asked for")
    finish = _finish(meta.get("finish_reason"), ids, count, stop_ids)
    if not ids and finish != "abort":
        raise ValueError("it has no token")
    if any(token in stop_ids for token in ids[:-1]):
        raise ValueError("it goes on after a stop id")
    cached = meta.get("cached_tokens", 0)
    cached = min(cached, prompt_length) if type(cached) is int and cached > 0 else 0
    queue_s = meta.get("queue_time")
    waited = isinstance(queue_s, int | float) and math.isfinite(queue_s)
    return Piece(
        token_ids=ids,
        logprobs=logprobs,
        finish=finish,
        spans=_spans(meta, len(ids), versions),
        cached_tokens=cached,
        queue_s=max(float(queue_s or 0), 0.0) if waited else 0.0,
    )


def _tokens(
    answer: Mapping[str, Any], meta: Mapping[str, Any], vocab_size: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the sampled ids and their log-probs."""
    rows = meta.get("output_token_logprobs")
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) >= 2 for row in rows):
        raise ValueError("its output_token_logprobs are no list of [log-prob, id, text]")
    ids = tuple(row[1] for row in rows)
    if not all(type(token) is int and 0 <= token < vocab_size for token in ids):
        raise ValueError(f"it has an id outside of the vocabulary of {vocab_size}")
    for name, found, expected in (
        ("output_ids", answer.get("output_ids", list(ids)), list(ids)),
        ("completion_tokens", meta.get("completion_tokens", len(ids)), len(ids)),
    ):
        if found != expected:
            raise ValueError(f"its {name} and its {len(ids)} log-probs are not of the same tokens")
    logprobs = [row[0] for row in rows]
    if not all(type(value) in (int, float) and math.isfinite(value) and value <= _ABOVE_ZERO for value in logprobs):
        raise ValueError("it has a log-prob that is not finite or above 0")
    return ids, tuple(min(float(value), 0.0) for value in logprobs)


def _finish(reason: Any, ids: Sequence[int], count: int, stop_ids: Sequence[int]) -> str:
    kind = reason.get("type") if isinstance(reason, Mapping) else None
    if kind == "abort":
        return "abort"
    if kind == "length":
        # A server whose context or memory is smaller than ours would cut every long sample without a word.
        if len(ids) != count:
            raise ValueError(f"it ended for its length after {len(ids)} tokens, but {count} were asked for")
        return "stop" if ids and ids[-1] in stop_ids else "length"
    if kind == "stop":
        # SGLang says "NaN happened" here, as the matched text, and replaces the token.
        if not ids or reason.get("matched") != ids[-1]:
            raise ValueError(f"it stopped at {reason.get('matched')!r}, which is not its last token")
        return "stop" if ids[-1] in stop_ids else "foreign"
    raise ValueError(f"its finish reason {reason!r} is unknown")


def _spans(meta: Mapping[str, Any], count: int, versions: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """(version, number of tokens) in order, from the list of spans or else from the one version."""
    spans = meta.get("weight_versions") or [{"version": meta.get("weight_version"), "start": 0, "end": count}]
    found, end = list[tuple[int, int]](), 0
    for span in spans:
        label, start, until = (span.get(key) for key in ("version", "start", "end"))
        if str(label) not in versions:
            shown = " or ".join(sorted(versions))
            raise ValueError(f"it was sampled by weight version {label!r}, but the server has {shown}")
        if type(until) is not int or start != end or until < start:
            raise ValueError("its weight_versions do not follow each other")
        if until > start or not count:
            found.append((versions[str(label)], until - start))
        end = until
    if end != count:
        raise ValueError(f"its weight_versions cover {end} of {count} tokens")
    return tuple(found)
