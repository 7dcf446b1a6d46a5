"""Read the messages and tools of a chat request."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from orchestra_jax.envs.base import Message
from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.serving.asking import Surroundings
from orchestra_jax.serving.errors import RequestError, typed, unsupported, wrong
from orchestra_jax.types import ToolCall, ToolSpec

_ROLES = ("system", "developer", "user", "assistant", "tool")
_MESSAGE = ("role", "content", "name", "refusal", "reasoning_content")  # a name and thoughts are not read
_MOST_TOOLS = 128
_NOTHING: Mapping[str, Any] = {"type": "object", "properties": {}}


def read_conversation(messages: Any) -> tuple[str, Surroundings]:
    """Return the last message of the user, and what stands before and after it.

    A system message is read as the user's: the system message of the policy is the run's, and a client's text must not
    write control tokens.

    Raises:
        RequestError: they are no conversation that the policy can go on with.
    """
    if not isinstance(messages, list) or not messages:
        raise wrong("messages", "a list of at least one message")
    found: list[Message] = []
    open_calls: list[str] = []
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        if not isinstance(message, dict):
            raise wrong(where, "an object")
        if (role := message.get("role")) not in _ROLES:
            raise unsupported(f"{where}.role", f"{', '.join(_ROLES)} are")
        allowed = {"assistant": (*_MESSAGE, "tool_calls"), "tool": (*_MESSAGE, "tool_call_id")}.get(role, _MESSAGE)
        if unknown := [key for key, value in message.items() if key not in allowed and value]:
            raise unsupported(f"{where}.{unknown[0]}", f"a message of the {role} has none here")
        if role == "tool":
            if (name := message.get("tool_call_id")) not in open_calls:
                raise wrong(f"{where}.tool_call_id", "the id of a call in the message of the assistant before")
            open_calls.remove(name)
            found.append({"role": role, "content": _text(message.get("content"), where), "tool_call_id": name})
            continue
        if open_calls:
            raise wrong(where, f"the result of the call {open_calls[0]!r}, with the role tool")
        if role == "assistant" and message.get("tool_calls"):
            calls = _calls(message["tool_calls"], where)
            open_calls = [call["id"] for call in calls]
            content = message.get("content")
            text = _text(content, where) if content else None
            found.append({"role": role, "content": text, "tool_calls": calls})
        else:
            text = _text(message.get("content"), where)
            found.append({"role": "assistant" if role == "assistant" else "user", "content": text})
    if open_calls or found[-1]["role"] == "assistant":
        raise RequestError(
            400, "The last message must be the user's or the result of a tool.", param="messages", code="invalid_value"
        )
    asked = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if not asked:
        raise wrong("messages", "a conversation with a message of the user")
    last = asked[-1]
    return found[last]["content"], Surroundings(found[:last], found[last + 1 :])


def read_tools(tools: Any) -> list[ToolSpec]:
    """Return the client's own tools, whose schemas are checked when they are offered.

    Raises:
        RequestError: they are none.
    """
    if tools is None:
        return []
    if not isinstance(tools, list) or len(tools) > _MOST_TOOLS:
        raise wrong("tools", f"a list of at most {_MOST_TOOLS} tools")
    found = []
    for place, tool in enumerate(tools):
        where = f"tools[{place}]"
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
            raise unsupported(where, "only tools of the type function are supported here")
        function = tool["function"]
        name = typed(function, "name", str, "a text", f"{where}.function.") or ""
        about = typed(function, "description", str, "a text", f"{where}.function.")
        parameters = typed(function, "parameters", dict, "a JSON schema", f"{where}.function.") or _NOTHING
        found.append(ToolSpec(name, about or name, parameters))
    return found


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    found = []
    for place, call in enumerate(calls if isinstance(calls, list) else [None]):
        try:
            name, function = call["id"], call["function"]
            arguments = function["arguments"] or "{}"
            if not (isinstance(name, str) and isinstance(function["name"], str)):
                raise TypeError
            if not isinstance(read_json(arguments.encode()), dict):
                raise TypeError
        except (LookupError, TypeError, AttributeError, Unreadable):
            words = "a call with id, function.name and function.arguments, the text of a JSON object"
            raise wrong(f"{where}.tool_calls[{place}]", words) from None
        told = {"name": function["name"], "arguments": arguments}
        found.append({"id": name, "type": "function", "function": told})
    return found


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        if len(parts) == len(content) and all(isinstance(part, str) for part in parts):
            return "\n".join(map(str, parts))
        raise unsupported(f"{where}.content", "only parts of type text are supported here")
    raise wrong(f"{where}.content", "a text")


def in_text(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with a role and a text alone."""
    found = list[Message]()
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        shown = [render_call(ToolCall(call["name"], json.loads(call["arguments"]))) for call in calls]
        found.append({"role": message["role"], "content": "\n".join(filter(None, [message["content"], *shown]))})
    return found
