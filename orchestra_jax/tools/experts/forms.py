"""JSON schemas of the replies that models must give."""

from collections.abc import Mapping
from typing import Any

TEXT: Mapping[str, Any] = {"type": "string"}


def string(least: int, most: int) -> dict[str, Any]:
    """Return the schema of a text of so many characters."""
    return {"type": "string", "minLength": least, "maxLength": most}


def form(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def reply_format(name: str, **properties: Any) -> dict[str, Any]:
    """Return the `response_format` of a reply that is a `form` (structured outputs of OpenAI, SGLang and vLLM)."""
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": form(**properties)}}


def array(items: Mapping[str, Any], least: int, most: int) -> dict[str, Any]:
    """Return the schema of a list of so many items."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}
