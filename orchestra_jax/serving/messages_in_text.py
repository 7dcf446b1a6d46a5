"""Messages of the OpenAI API as a chat format of ours reads them: calls stand in the text."""

import json
from collections.abc import Iterable

from orchestra_jax.envs.base import Message
from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.types import ToolCall


def in_text(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with a role and a text alone."""
    return [{"role": message["role"], "content": _text(message)} for message in messages]


def _text(message: Message) -> str:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    shown = [render_call(ToolCall(call["name"], json.loads(call["arguments"]))) for call in calls]
    return "\n".join([*([message["content"]] if message["content"] else []), *shown])
