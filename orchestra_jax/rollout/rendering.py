"""Prompts of every history but "keep": the template renders the whole conversation again at each turn."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestra_jax.config.choices import History
from orchestra_jax.rollout.parsing import END_THINK

Ids = tuple[int, ...]
Messages = Sequence[Mapping[str, Any]]


def kept_messages(messages: Messages, history: History) -> Messages:
    """Return the messages as the history keeps them: with drop_thinking an assistant's have no thinking."""
    return [_without_thinking(message) for message in messages] if history is History.drop_thinking else messages


def continued(
    old_ids: Sequence[int],
    new_ids: Ids,
    stop_id: int,
    spelled: Callable[[Sequence[int]], str],
    encode: Callable[[str], Ids],
) -> tuple[Ids, bool]:
    """Return what `ChatFormat.next_prompt` does, where `new_ids` are the conversation, rendered again.

    It appends if they start with `old_ids`, or if only the tokenization differs (the policy may sample another split of
    the same text): then the sampled ids stay.

    Args:
        stop_id: the template's end of a turn.
        spelled, encode: of the chat format.
    """
    if new_ids[: len(old_ids)] == tuple(old_ids):
        return new_ids[len(old_ids) :], True
    if old_ids and old_ids[-1] == stop_id:
        old_text, new_text = spelled(old_ids), spelled(new_ids)
        if new_text.startswith(old_text):
            return encode(new_text[len(old_text) :]), True
    return new_ids, False


def _without_thinking(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an assistant's message as Qwen3's template shows those before the last user message."""
    if message["role"] != "assistant":
        return message
    return {**message, "content": message["content"].rpartition(END_THINK)[2].lstrip("\n")}
