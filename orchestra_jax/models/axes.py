"""Names of a parameter's axes, which `models.sharding` maps to the axes of a mesh."""

from collections.abc import Mapping
from typing import Any

Axes = Mapping[str, tuple[str | None, ...]]  # logical axes of every parameter, by its name

# Logical axes by the parameter's name, as decoders share them; a stacked parameter (scan_layers) has "layers" in front.
PARAM_AXES: Axes = {
    "embed": ("vocab", "embed"),
    "lm_head": ("embed", "vocab"),
    "q": ("embed", "heads"),
    "k": ("embed", "kv_heads"),
    "v": ("embed", "kv_heads"),
    "o": ("heads", "embed"),
    "gate": ("embed", "mlp"),
    "up": ("embed", "mlp"),
    "down": ("mlp", "embed"),
    "norm": ("norm",),
    "input_norm": ("norm",),
    "post_norm": ("norm",),
    "q_norm": ("norm",),
    "k_norm": ("norm",),
}


def logical_axes(path: tuple[Any, ...], axes: Axes = PARAM_AXES) -> tuple[str | None, ...] | None:
    """Return the logical axes of the parameter at a key path (which may start above its tree), or None if unknown.

    A bias is split like its matrix's output. Adapters (`models.lora`) are split like their target's input (lora_a) and
    output (lora_b); the rank never is.
    """
    names = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
    kind = names.pop() if names and names[-1] in ("kernel", "bias", "lora_a", "lora_b") else ""
    found: tuple[str | None, ...] | None = axes.get(names[-1]) if names else None
    if found is None:
        return None
    if kind == "bias":
        found = found[-1:]
    elif kind:
        found = {"kernel": found, "lora_a": (found[0], None), "lora_b": (None, found[-1])}[kind]
    return ("layers", *found) if "layers" in names else found
