"""Rows of a warm start whose demonstrations give shares of first calls (`Demonstrations.beginnings`)."""

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
    """Return a row for every first call that a demonstration may have, and one for what follows its own.

    The weight of a first call says how often it should come. What follows is learned from the demonstration's own
    first call alone, and counts as a whole.

    Args:
        demonstrations: rows of each; only the first is kept.
        beginnings: first calls of each, its own among them, and how often each should come first.
    """
    calls = zip(demonstrations, beginnings, strict=True)
    return [_rows(whole, {_ids(call, chat): share for call, share in given}) for (whole, *_), given in calls]


def _ids(call: ToolCall, chat: ChatFormat) -> tuple[int, ...]:
    return (*chat.encode(render_call(call)), chat.stop_ids[0])


def _rows(whole: TokenSequence, beginnings: Mapping[tuple[int, ...], float]) -> list[TokenSequence]:
    begin = whole.sampled.index(True)

    def first(ids: tuple[int, ...], share: float) -> TokenSequence:
        sampled, logprobs = (False,) * begin + (True,) * len(ids), (0.0,) * (begin + len(ids))
        return TokenSequence((*whole.tokens[:begin], *ids), sampled, logprobs, whole.prefix, share)

    own = next(len(ids) for ids in beginnings if whole.tokens[begin : begin + len(ids)] == ids)
    following = (False,) * (begin + own) + whole.sampled[begin + own :]
    return [replace(whole, sampled=following), *(first(ids, share) for ids, share in beginnings.items())]
