"""The fields of a decoder in the config.json of transformers 4 and 5."""

from collections.abc import Mapping
from typing import Any

from orchestra_jax.models.rope_scaling import RopeScaling


def decoder_fields(family: Any, hf: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that every family reads; `DecoderConfig.from_hf` of a family adds its own.

    Args:
        family: the subclass of `DecoderConfig`.
        hf: content of config.json.

    Raises:
        ValueError: another family's model, or a feature that the family does not compute.
    """
    if hf.get("model_type") != family.model_type:
        raise ValueError(
            f"model_type {hf.get('model_type')!r} is not supported by {family.__name__}; give a "
            f"{family.model_type!r} model."
        )
    # transformers 4 wrote rope_theta and rope_scaling, transformers 5 writes rope_parameters.
    rope = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
    longest = hf.get("max_position_embeddings", 32768)
    if window := _sliding_window(family, hf):
        switch = "use_sliding_window to false" if hf.get("use_sliding_window") else "sliding_window to null"
        raise ValueError(
            f"sliding_window={window} of this {family.model_type} model is not supported, since every layer here sees "
            f"all earlier tokens; give a model without one, or set {switch} in its config.json if no text of yours "
            "is longer than the window."
        )
    for key, only in family.fixed.items():
        if hf.get(key, only) != only:
            raise ValueError(f"{key}={hf[key]!r} is not supported; this decoder has only {key}={only!r}.")
    heads = hf["num_attention_heads"]
    fields: dict[str, Any] = {
        "vocab_size": hf["vocab_size"],
        "hidden_size": hf["hidden_size"],
        "intermediate_size": hf["intermediate_size"],
        "num_layers": hf["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": hf.get("num_key_value_heads") or heads,
        "head_dim": hf.get("head_dim") or family.default_head_dim or hf["hidden_size"] // heads,
        "rope_theta": float(rope.get("rope_theta") or hf.get("rope_theta") or 10000.0),
        "rope_scaling": RopeScaling.from_hf(rope, longest),
        "rms_norm_eps": hf.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": hf.get("tie_word_embeddings", False),
        "max_position_embeddings": longest,
        "initializer_range": hf.get("initializer_range", 0.02),
    }
    if hf.get("attention_bias") and family.optional_bias:
        fields["bias"] = family.optional_bias
    return fields


def _sliding_window(family: Any, hf: Mapping[str, Any]) -> int | None:
    """Return how many tokens back a limited layer of this config.json sees, or None if none is limited."""
    window: int | None = hf.get("sliding_window", 4096)  # transformers' default where config.json is silent
    if family.always_limited:
        return window
    limited = hf.get("use_sliding_window") or "sliding_attention" in (hf.get("layer_types") or ())
    return (window or 4096) if limited else None
