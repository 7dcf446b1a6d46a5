"""The record of a run: `run.json` in its folder, and Hydra's own files beside it.

The first start writes the file: the resolved config and the parents. Every start adds an entry to `starts` (command,
overrides, commit, packages, machine, dates, MCP servers, the checkpoint it went on from, how it ended) and changes
nothing else. A start that is refused adds one where there is a file, and leaves nothing where there is none.
"""

import contextlib
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

import orchestra_jax
from orchestra_jax.config.checks import flat
from orchestra_jax.config.ranges import ConfigError, Settings
from orchestra_jax.io.whole import write_whole

FILE_NAME = "run.json"
_HYDRA = ".hydra"


@dataclass(frozen=True)
class Start:
    """The words that were typed."""

    command: Sequence[str] = field(default_factory=lambda: tuple(sys.argv))
    overrides: Sequence[str] = ()  # of the config, in Hydra's grammar; of one job of a sweep: the job's own
    files: Mapping[str, str] = field(default_factory=dict)  # texts of Hydra's record, by file name

    @classmethod
    def of(cls, config: DictConfig) -> "Start":
        """Return the start whose config Hydra composed, inside its `main` function."""
        hydra = HydraConfig.get()
        overrides = hydra.overrides.task
        files = {"config": config, "hydra": OmegaConf.create({"hydra": hydra}), "overrides": overrides}
        texts = {f"{name}.yaml": OmegaConf.to_yaml(node) for name, node in files.items()}
        return cls(overrides=tuple(overrides), files=texts)


class RunRecord:
    """The record of one start; a context manager around everything that it does.

    Args:
        kind: the command, such as "train".
        start: the words that were typed; None: this process's command line.
        stops: errors that stop a run which may go on.
        writes: False in all processes of a run but the first.
    """

    def __init__(
        self,
        folder: Path,
        cfg: Settings,
        kind: str,
        start: Start | None = None,
        *,
        stops: tuple[type[BaseException], ...] = (),
        writes: bool = True,
    ) -> None:
        self._folder, self._cfg, self._kind, self._start = folder, cfg, kind, start or Start()
        self._stops: tuple[type[BaseException], ...] = (KeyboardInterrupt, *stops)
        self._writes = writes
        self._date = _now()
        self._place: int | None = None  # of this start among all, once it is accepted
        self._notes: dict[str, Any] = {}
        self._token: Token[RunRecord | None] | None = None

    def begin(
        self, *, origin: str | None = None, parents: Sequence[Mapping[str, Any]] = (), devices: Sequence[str] = ()
    ) -> None:
        """Note that the start is accepted.

        Args:
            origin: the checkpoint that it goes on from; None: it begins anew.
            parents: runs and folders that it is made from, see `config.parents`.
            devices: devices of the first process.

        Raises:
            ConfigError: the file that is there is no record of a run.
        """
        if not self._writes:
            return
        started = self._entry() | {"from": origin, "machine": _machine(devices), "ended": None, "outcome": None}
        started |= self._notes
        now: dict[str, Any] = json.loads(json.dumps(self._cfg.as_dict()))
        with self._changing() as found:
            if not found:
                whole: dict[str, Any] = {"name": now["name"], "kind": self._kind, "config": now}
                found |= whole | {"parents": [dict(parent) for parent in parents], "starts": []}
            old, new = dict(flat(found["config"])), dict(flat(now))
            changed = {key: new.get(key) for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)}
            self._place = len(found["starts"])
            found["starts"].append(started | ({"changed": changed} if changed else {}))
        for name, text in self._start.files.items():
            (self._folder / _HYDRA).mkdir(exist_ok=True)
            write_whole(self._folder / _HYDRA / name, text)

    def add(self, name: str, value: Any) -> None:
        """Note something that this start found out before it began; see `note`."""
        self._notes[name] = value

    def __enter__(self) -> "RunRecord":
        self._token = _current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._token is not None:
            _current.reset(self._token)
        gone = not (self._folder / FILE_NAME).is_file()
        if not self._writes or (gone and (self._place is None or error is not None)):
            return
        if gone:
            raise ConfigError(
                f"{str(self._folder)!r} was removed or emptied while the run was at work in it: what it holds now is "
                "not the whole run. Delete it, and start the run again."
            )
        outcome = "done" if error is None else "stopped" if isinstance(error, self._stops) else "failed"
        end = {"ended": _now(), "outcome": "refused" if self._place is None else outcome}
        end |= {"reason": str(error) or type(error).__name__} if error is not None else {}
        # The error that ends the start is told in any case; a full disk must not be told instead.
        with contextlib.suppress(OSError, ConfigError), self._changing() as found:
            if self._place is None:
                found["starts"].append(self._entry() | end)
            else:
                found["starts"][self._place] |= end

    def _entry(self) -> dict[str, Any]:
        commit, dirty = _commit()
        return {
            "date": self._date,
            "command": shlex.join(self._start.command),
            "overrides": list(self._start.overrides),
            "commit": commit,
            "dirty": dirty,
            "versions": _versions(),
        }

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """Give the record, {} if there is none, to be changed; it is written when this ends."""
        with _alone(self._folder):
            found = read(self._folder) or {}
            yield found
            write_whole(self._folder / FILE_NAME, json.dumps(found, indent=1) + "\n")


_current: ContextVar[RunRecord | None] = ContextVar("record", default=None)


def note(name: str, value: Any) -> None:
    """Add JSON, such as the servers that were found, to the entry of the start under way; without one do nothing."""
    if (record := _current.get()) is not None:
        record.add(name, value)


def read(folder: Path) -> dict[str, Any] | None:
    """Return the record in a folder, or None if there is none.

    Raises:
        ConfigError: the file is no record.
    """
    file = folder / FILE_NAME
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not (isinstance(found["config"], dict) and all(isinstance(start, dict) for start in found["starts"])):
            raise TypeError
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError):
        raise ConfigError(f"{str(file)!r} is no record of a run: restore it, or delete it for a new one.") from None
    return dict(found)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other starts from changing the record meanwhile, on disks that know locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _commit() -> tuple[str | None, bool | None]:
    """Return the commit of the checkout that this package lies in, and whether a file of it was changed since."""
    root = Path(orchestra_jax.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None, None
    try:
        said = [
            subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=30, check=True
            ).stdout
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.SubprocessError):
        return None, None
    return said[0].strip(), bool(said[1].strip())


def _versions() -> dict[str, str]:
    """Return the versions of Python, this package, and its dependencies as far as they are installed."""
    found = {"python": platform.python_version(), "orchestra-jax": orchestra_jax.__version__}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        asked = importlib.metadata.requires("orchestra-jax") or []
        names = {match[0] for text in asked if (match := re.match(r"[\w.-]+", text))} | {"jaxlib"}
        for name in sorted(names - {"orchestra-jax"}):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[name] = importlib.metadata.version(name)
    return found


def _machine(devices: Sequence[str]) -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "devices": {name: list(devices).count(name) for name in sorted(set(devices))},
    }
