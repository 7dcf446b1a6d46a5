"""Prompts of conversations that are rendered again as a whole: other histories than "keep", others' messages."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestra_jax.config.choices import History
from orchestra_jax.rollout.parsing import END_THINK
from orchestra_jax.types import ToolSpec

if TYPE_CHECKING:  # it loads this module
    from orchestra_jax.rollout.chat import ChatFormat

Messages = Sequence[Mapping[str, Any]]


def rendered_prompt(
    chat: "ChatFormat", old_ids: Sequence[int], messages: Messages, tools: Sequence[ToolSpec]
) -> tuple[tuple[int, ...], bool]:
    """Return what `ChatFormat.next_prompt` does where the template re-renders every turn.

    It appends if the re-rendered conversation starts with `old_ids`, or if only its tokenization differs (the policy
    may sample another split of the same text): then the sampled ids stay.
    """
    if chat.history is History.drop_thinking:
        messages = [_without_thinking(message) for message in messages]
    new_ids = chat.prompt_ids(messages, tools)
    if new_ids[: len(old_ids)] == tuple(old_ids):
        return new_ids[len(old_ids) :], True
    if old_ids and old_ids[-1] == chat.stop_ids[0]:
        old_text, new_text = chat.spelled(old_ids), chat.spelled(new_ids)
        if new_text.startswith(old_text):
            return chat.encode(new_text[len(old_text) :]), True
    return new_ids, False


def conversation_ids(chat: "ChatFormat", messages: Messages, tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
    """Return the ids of a whole conversation of another program, as if the policy had taken every turn itself.

    With "keep" an order of messages that no episode has, such as two of the user's in a row, is rendered as the
    template does.
    """
    if chat.history is not History.keep:
        return chat.next_prompt((), messages, tools)[0]
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    ids = chat.prompt_ids(messages[: turns[0]] if turns else messages, tools)
    for start, end in itertools.pairwise([*turns, len(messages)]):
        roles = [message["role"] for message in messages[start + 1 : end]]
        if roles != ["user"] and set(roles) != {"tool"}:
            return chat.prompt_ids(messages, tools)
        said = chat.encode(chat.safe_content(messages[start]))
        ids += (*said, chat.stop_ids[0], *chat.next_prompt((), messages[start:end])[0])
    return ids


def _without_thinking(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an assistant's message as Qwen3's template shows those before the last user message."""
    if message["role"] != "assistant":
        return message
    return {**message, "content": message["content"].rpartition(END_THINK)[2].lstrip("\n")}
