"""Conversations between Inspect's objects and ours, without loss where both ends are ours.

A tool travels with what our menus show beside its schema, and an assistant's message with the text as it was sampled:
each in a bag of properties that other providers pass over.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.tools.schema import to_openai
from orchestra_jax.types import ToolCall, ToolSpec

OURS = "orchestra_jax"  # key of the bag


def tool_info(spec: ToolSpec) -> Any:
    """Return the tool for any model: name, description with its price in words, and schema."""
    from inspect_ai.tool import ToolInfo, ToolParams

    shown, own = to_openai(spec)["function"], {**asdict(spec), "traits": list(spec.traits)}
    return ToolInfo(
        name=spec.name,
        description=shown["description"],
        parameters=ToolParams.model_validate(known_schema(spec)),
        options={OURS: own},
    )


def known_schema(spec: ToolSpec) -> dict[str, Any]:
    """Return the part of a tool's schema that Inspect knows: properties, and which of them are required."""
    known = {key: value for key, value in spec.parameters.items() if key in ("properties", "required")}
    return {"type": "object", **known}


def tool_spec(info: Any) -> ToolSpec:
    """Return the tool as ours; one of Inspect's own has no price."""
    own = (info.options or {}).get(OURS)
    if own:
        return ToolSpec(**{**own, "traits": tuple(own["traits"])})
    return ToolSpec(info.name, info.description, info.parameters.model_dump(exclude_none=True))


def to_inspect(messages: Sequence[Mapping[str, Any]], said: Sequence[Any]) -> list[Any]:
    """Return chat completions as Inspect's messages; the assistant's are the model's own, in order."""
    from inspect_ai.model import ChatMessageSystem, ChatMessageTool, ChatMessageUser

    given, found = iter(said), list[Any]()
    for message in messages:
        match message["role"]:
            case "assistant":
                found.append(next(given))
            case "tool":
                found.append(ChatMessageTool(content=message["content"], tool_call_id=message.get("tool_call_id")))
            case "system":
                found.append(ChatMessageSystem(content=message["content"]))
            case _:
                found.append(ChatMessageUser(content=message["content"]))
    return found


def to_ours(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Return Inspect's messages for our chat format: an assistant's text has its calls in it."""
    return [{"role": message.role, "content": _text(message)} for message in messages]


def arguments_text(call: Any) -> str:
    """Return the JSON of a call's arguments; where the model wrote no JSON, a text that is none either."""
    return "{" if call.parse_error else json.dumps(call.arguments)


def _text(message: Any) -> str:
    if message.role != "assistant":
        return str(message.text)
    own = (message.metadata or {}).get(OURS)
    if own is not None:
        return str(own)
    calls = [render_call(ToolCall(call.function, call.arguments)) for call in message.tool_calls or []]
    return "\n".join([*filter(None, [message.text]), *calls])
