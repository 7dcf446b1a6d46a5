"""Stand-ins for what the authors' domains import of their framework, and a stopped clock. Runs in a worker."""

import datetime as real
import enum
import importlib.abc
import importlib.machinery
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

KIND = "_orchestra_kind"  # attribute of a function that is a tool


class ToolType(enum.StrEnum):
    """The kinds of tools."""

    READ = "read"
    WRITE = "write"
    THINK = "think"
    GENERIC = "generic"


def is_tool(tool_type: ToolType = ToolType.READ) -> Callable[[Any], Any]:
    """Mark the decorated function as a tool."""

    def mark(function: Any) -> Any:
        setattr(function, KIND, "generic" if tool_type is ToolType.THINK else tool_type.value)
        return function

    return mark


class ToolKitBase:
    """The base of a domain's tools."""

    def __init__(self, db: Any = None) -> None:
        self.db = db


class DB(BaseModel):
    """The base of a domain's database."""


class BaseModelNoExtra(BaseModel):
    """A model without further fields."""

    model_config = ConfigDict(extra="forbid")


class _Silent:
    """A logger that says nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class _Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Importer of modules from their texts by name; the packages above them are empty."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        above = any(name.startswith(f"{fullname}.") for name in self._sources)
        if fullname not in self._sources and not above:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=above)

    def exec_module(self, module: types.ModuleType) -> None:
        text = self._sources.get(module.__name__)
        if text is not None:
            exec(compile(text, module.__name__, "exec"), module.__dict__)


def install(sources: Mapping[str, str]) -> None:
    """Make `sources` and the names that they import of the authors' framework importable."""
    sys.meta_path.append(_Sources(sources))
    made: dict[str, dict[str, Any]] = {
        "tau2": {},
        "tau2.environment": {},
        "tau2.environment.toolkit": {"ToolKitBase": ToolKitBase, "ToolType": ToolType, "is_tool": is_tool},
        "tau2.environment.db": {"DB": DB},
        "tau2.utils": {"DATA_DIR": Path("/data")},
        "tau2.utils.utils": {"DATA_DIR": Path("/data")},
        "tau2.utils.pydantic_utils": {"BaseModelNoExtra": BaseModelNoExtra},
        "loguru": {"logger": _Silent()},
    }
    for name, names in made.items():
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(names)


def stop_clock(module: types.ModuleType, now: real.datetime) -> None:
    """Let everything that the module asks directly for the time tell `now`."""
    naive = now.replace(tzinfo=None)

    class Meta(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, cls.__mro__[1])

    class Stopped(real.datetime, metaclass=Meta):
        @classmethod
        def now(cls, tz: real.tzinfo | None = None) -> Any:
            return naive if tz is None else now.astimezone(tz)

        @classmethod
        def utcnow(cls) -> Any:
            return now.astimezone(real.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return naive

    class StoppedDate(real.date, metaclass=Meta):
        @classmethod
        def today(cls) -> Any:
            return naive.date()

    dates = types.ModuleType("datetime")
    vars(dates).update(vars(real) | {"datetime": Stopped, "date": StoppedDate})
    times = types.ModuleType("time")
    told = {"time": now.timestamp, "time_ns": lambda: int(now.timestamp() * 1e9), "localtime": naive.timetuple}
    vars(times).update(vars(time) | told)
    stopped = {id(real): dates, id(time): times, id(real.datetime): Stopped, id(real.date): StoppedDate}
    stopped |= {id(time.time): now.timestamp}
    for name, value in list(vars(module).items()):
        if id(value) in stopped:
            setattr(module, name, stopped[id(value)])
