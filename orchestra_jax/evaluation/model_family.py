"""Families of models by their names: a model is of the policy's own kind where both have the same family."""

import re

_VERSION = re.compile(r"\d+(\.\d+)*[a-z]?(?<!b)$")  # such as 3.3 or 4o, not the size 70b


def model_family(model: str) -> str:
    """Return a model's name without size and variant: "qwen3" for "Qwen/Qwen3-8B", "gpt-5" for "gpt-5-mini"."""
    first, *rest = model.lower().rsplit("/", 1)[-1].split("-")
    versioned = rest and not re.search(r"\d", first) and _VERSION.match(rest[0])
    return f"{first}-{rest[0]}" if versioned else first
