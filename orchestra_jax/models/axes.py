"""Names of a parameter's axes, which `models.sharding` maps to the axes of a mesh."""

from collections.abc import Mapping

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
