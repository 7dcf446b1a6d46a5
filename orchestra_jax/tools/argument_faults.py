"""Tell the policy why the arguments of a call do not fit the tool; loaded at the first such call."""

import json
from typing import Any

from jsonschema.exceptions import ValidationError

from orchestra_jax.tools.signatures import TYPES
from orchestra_jax.types import ToolSpec


def fault_sentence(spec: ToolSpec, arguments: Any, error: ValidationError | None) -> str:
    """Return the sentence for arguments that do not fit.

    Args:
        error: the fault that the tool's schema finds; None: the arguments are no mapping.
    """
    if error is None:
        return f"The arguments of {spec.name} must be a JSON object, not {_json_type(arguments)}."
    where = ".".join(map(str, error.absolute_path))
    subject = f"Argument {where!r} of {spec.name}" if where else f"The arguments of {spec.name}"
    match error.validator:
        case "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            return f"{subject} lack the required {', '.join(repr(name) for name in missing)}."
        case "type":
            kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
            return f"{subject} must be of type {' or '.join(kinds)}, not {_json_type(error.instance)}."
        case "enum":
            return f"{subject} must be one of {json.dumps(error.validator_value)}."
        case _:
            message = error.message if len(error.message) <= 300 else error.message[:300] + "..."
            return f"{subject} are not valid: {message}." if not where else f"{subject} is not valid: {message}."


def _json_type(value: Any) -> str:
    return TYPES.get(type(value), type(value).__name__)
