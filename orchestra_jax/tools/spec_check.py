"""Check a tool's name, description, price and schema before it is offered to a policy."""

import math
import re
from collections.abc import Mapping

from orchestra_jax.tools.schema import checker
from orchestra_jax.types import ToolSpec

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_spec(spec: ToolSpec) -> None:
    """Raise ValueError, one sentence, if the tool cannot be offered to a policy."""
    if not _NAME.fullmatch(spec.name):
        raise ValueError(f"Tool name {spec.name!r} must be 1 to 64 letters, digits, '_' or '-'.")
    if not spec.description.strip():
        raise ValueError(f"Tool {spec.name!r} has no description; write one paragraph of plain text.")
    for label, value in (("price_usd", spec.price_usd), ("latency_s", spec.latency_s)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"Tool {spec.name!r} has {label}={value}; it must be finite and not negative.")
    parameters = spec.parameters
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        raise ValueError(f"The parameters of tool {spec.name!r} must be a JSON schema with type 'object'.")
    try:
        checker(parameters)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"The parameters of tool {spec.name!r} are not JSON: {error}.") from None
    except ValueError as error:
        raise ValueError(f"The parameters of tool {spec.name!r} cannot be used as a JSON schema, {error}.") from None
    unknown = [name for name in parameters.get("required", ()) if name not in parameters.get("properties", {})]
    if unknown:
        raise ValueError(f"Tool {spec.name!r} requires the parameter {unknown[0]!r} but does not define it.")
