"""Tell which settings of a run may change when it is continued; loaded only by a run that has a checkpoint."""

from collections.abc import Mapping
from typing import Any

from orchestra_jax.config.checks import flat
from orchestra_jax.config.ranges import Settings

# What may differ between a run and its continuation: how far, where and how much is written.
_FREE_ON_RESUME = (
    *("steps", "output_dir", "compilation_cache", "mesh", "evaluation", "checkpoint", "logger", "plan", "synthesis"),
    *("rollout.urls", "rollout.slots", "rollout.threads", "rollout.server", "budget", "replay"),
    *("tools.server.url", "tools.server.api_key_env", "tools.server.timeout_s", "tools.server.retries"),
    *("tools.server.concurrency", "tools.server.requests_per_minute", "tools.web.url", "tools.web.timeout_s"),
    *("tools.search.embedder_url", "tools.sandbox.url", "tools.sandbox.workers"),
)
# The same of an MCP server with a name: wherever it is, it is the same server.
_FREE_OF_MCP = ("server", "env", "headers", "timeout_s", "retries", "concurrency")


def resume_conflicts(saved: Mapping[str, Any], config: Settings) -> list[str]:
    """Return the keys whose change would make `config` another run than the saved one.

    Args:
        saved: the earlier run's config as plain containers (`dataclasses.asdict`, through JSON or not).
        config: the run that wants to go on.

    Returns: `key: old -> new` for each, where keys of a changed schema count too.
    """
    old, new = (dict(flat(each)) for each in (saved, config.as_dict()))
    for settings in (old, new):
        for key in ("tools.mcp", "tools.evaluation.mcp"):
            settings[key] = [
                {name: value for name, value in entry.items() if name not in _FREE_OF_MCP}
                if isinstance(entry, Mapping) and entry.get("name")
                else entry
                for entry in settings.get(key, ())
            ]
    return [
        f"{key}: {old.get(key)} -> {new.get(key)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not any(f"{key}.".startswith(f"{free}.") for free in _FREE_ON_RESUME)
    ]
