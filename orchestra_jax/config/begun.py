"""A folder that a run has begun in: may these settings go on there, and is anything left to do?

Loaded by a run that finds its folder in use.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from orchestra_jax.config.checks import flat
from orchestra_jax.config.from_run import one_sentence
from orchestra_jax.config.ranges import ConfigError, Settings
from orchestra_jax.config.record import read

_SUMMARY = "summary.json"
# What may differ between a run and its continuation: how far, where and how much is written.
_FREE_ON_RESUME = (
    *("steps", "output_dir", "compilation_cache", "mesh", "evaluation", "checkpoint", "logger", "plan", "synthesis"),
    *("rollout.urls", "rollout.slots", "rollout.threads", "rollout.server", "rollout.weight_folder"),
    *("budget", "replay"),
    *("tools.server.url", "tools.server.api_key_env", "tools.server.timeout_s", "tools.server.retries"),
    *("tools.server.concurrency", "tools.server.requests_per_minute", "tools.web.url"),
    *("tools.search.embedder_url", "tools.sandbox.url", "tools.sandbox.workers"),
)
# The same of an MCP server with a name: wherever it is, it is the same server.
_FREE_OF_MCP = ("server", "env", "headers", "timeout_s", "retries", "concurrency")


def require_same_run(meta: Mapping[str, Any], cfg: Settings, folder: str) -> None:
    """Raise ConfigError if the checkpoint with this meta is of a run with another configuration."""
    if changed := resume_conflicts(meta["config"], cfg):
        raise ConfigError(f"{folder} holds another run ({'; '.join(changed)}): choose another name=..., or delete it.")


def require_own_folder(cfg: Settings) -> None:
    """Raise ConfigError if a checkpoint in the run's folder is of a run with another configuration, or lies elsewhere.

    A checkpoint that cannot be read is left to the run, which puts damaged ones aside.
    """
    settings = cfg.as_dict()
    own, output_dir = settings["checkpoint"]["folder"], settings["output_dir"]
    place = own or str(Path(output_dir, "checkpoints"))
    if not _has_checkpoints(place) and (earlier := _earlier_place(output_dir, place)):
        raise ConfigError(
            f"{output_dir} holds a run whose checkpoints are in {earlier}, not in {place}: set checkpoint.folder as "
            f"before, or move them there; to begin anew, delete {output_dir}, or choose another name=..."
        )
    for file in Path(place).glob("*/meta/metadata"):
        meta = None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            meta = json.loads(file.read_bytes())
        if isinstance(meta, dict) and isinstance(meta.get("config"), dict):
            require_same_run(meta, cfg, own or output_dir)


def _earlier_place(output_dir: str, place: str) -> str | None:
    """Return where the last accepted start has left checkpoints, if it is not `place`. No bucket is asked for its own.

    None also where nobody can tell: from one bucket to another.
    """
    with contextlib.suppress(ConfigError):  # what is no record is told by the run
        if (found := read(Path(output_dir))) and (accepted := _accepted(found)):
            last = _settings_of(found, accepted[-1]).get("checkpoint.folder") or str(Path(output_dir, "checkpoints"))
            there = not _in_bucket(place) if _in_bucket(last) else _has_checkpoints(last)
            return last if there and last != place else None
    return None


def _has_checkpoints(place: str) -> bool:
    return any(Path(place).glob("*/meta/metadata"))


def _in_bucket(place: str) -> bool:
    return place.startswith("gs://")


def nothing_left(cfg: Settings) -> bool:
    """Return whether this is a finished job of a sweep, and say where its figures are; refuse another run's folder.

    Outside a sweep a finished run shows its figures again.
    """
    with one_sentence():
        require_own_folder(cfg)
    folder = Path(cfg.as_dict()["output_dir"])
    done = HydraConfig.get().mode is RunMode.MULTIRUN and _finished(cfg, folder)
    if done:
        print(f"{folder} is finished: its figures are in {folder / _SUMMARY}.", flush=True)
    return done


def _finished(cfg: Settings, folder: Path) -> bool:
    """Return whether the run in the folder has ended with these very settings."""
    found = None
    with contextlib.suppress(ConfigError):  # what is no record is told by the run
        found = read(folder)
    accepted = _accepted(found) if found else []
    if not (found and accepted and accepted[-1].get("outcome") == "done" and (folder / _SUMMARY).is_file()):
        return False
    old = _settings_of(found, accepted[-1])
    new = dict(flat(json.loads(json.dumps(cfg.as_dict()))))
    return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)} <= {"output_dir"}


def _accepted(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [start for start in found["starts"] if start.get("outcome") != "refused"]


def _settings_of(found: Mapping[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
    return dict(flat(found["config"])) | start.get("changed", {})


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
