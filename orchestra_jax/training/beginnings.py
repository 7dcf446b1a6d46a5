"""Rows of a warm start whose demonstrations say how often each call should come first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from orchestra_jax.rl.batching import TokenSequence
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.types import ToolCall


def with_beginnings(
    demonstrations: Sequence[Sequence[TokenSequence]],
    beginnings: Iterable[Sequence[tuple[ToolCall, float]]],
    chat: ChatFormat,
) -> list[list[TokenSequence]]:
    """Return each demonstration, and for every other first call that it may have a row that ends with that call.

    A row's weight says how often its call should come first. What follows the first call is learned from whole
    demonstrations alone: it is the same after every call, and costs as much to read.

    Args:
        demonstrations: rows of each; only the first is kept.
        beginnings: first calls of each, its own among them, and how often each should come first.
    """
    calls = zip(demonstrations, beginnings, strict=True)
    return [_rows(whole, {_ids(call, chat): share for call, share in given}) for (whole, *_), given in calls]


def _ids(call: ToolCall, chat: ChatFormat) -> tuple[int, ...]:
    return (*chat.encode(render_call(call)), chat.stop_ids[0])


def _rows(whole: TokenSequence, beginnings: Mapping[tuple[int, ...], float]) -> list[TokenSequence]:
    begin, rows = whole.sampled.index(True), list[TokenSequence]()
    for ids, share in beginnings.items():
        if whole.tokens[begin : begin + len(ids)] == ids:
            rows.insert(0, replace(whole, advantage=share))
        else:
            sampled, logprobs = (False,) * begin + (True,) * len(ids), (0.0,) * (begin + len(ids))
            rows.append(TokenSequence((*whole.tokens[:begin], *ids), sampled, logprobs, whole.prefix, share))
    return rows
