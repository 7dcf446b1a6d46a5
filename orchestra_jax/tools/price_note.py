"""Price and latency of a tool in words, for menus whose template does not show them."""

from orchestra_jax.types import ToolSpec


def price_note(spec: ToolSpec) -> str:
    """Return price per call, latency and place in words, e.g. "Price: $0.002 per call. Latency: 3 s. Runs locally."."""
    parts = []
    if spec.price_usd is not None:
        parts.append(f"Price: ${spec.price_usd:.6g} per call." if spec.price_usd else "Price: free.")
    if spec.latency_s is not None:
        parts.append(f"Latency: {spec.latency_s:.6g} s.")
    if parts and spec.local:
        parts.append("Runs locally.")
    return " ".join(parts)
