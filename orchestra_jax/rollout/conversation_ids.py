"""Ids of a whole conversation that another program led."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from orchestra_jax.config.choices import History
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.types import ToolSpec


def conversation_ids(
    chat: ChatFormat, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec] = ()
) -> tuple[int, ...]:
    """Return the ids of a conversation, as if the policy had taken every turn itself.

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
