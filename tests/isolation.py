"""Tells tests whether this machine can isolate the sandbox."""

from orchestra_jax.tools.python.isolation import why_not


def available() -> bool:
    """Return whether "auto" finds an isolation on this machine."""
    return any(why_not(name) is None for name in ("bubblewrap", "namespaces"))
