"""Files and classes of τ²-Bench in the package `inspect-evals`, which run here outside Inspect.

The package's `__init__` imports all of Inspect and every evaluation. So the modules are loaded without it, with
stand-ins for the few names of Inspect that they use; the stand-ins are gone again once the modules are loaded.
"""

import gzip
import importlib
import importlib.util
import json
import re
import sys
import threading
import tomllib
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

from orchestra_jax.config.schema import ConfigError

PACKAGE = "inspect_evals"
MISSING = "τ²-Bench needs the package inspect-evals: run pip install --no-deps inspect-evals==0.26.0"
# The objects of the episode whose call is under way, by the name of their class; Inspect's store gives them to tools.
HELD: ContextVar[Mapping[str, Any]] = ContextVar("HELD")
_STUBS = ("inspect_ai", "inspect_ai.tool", "inspect_ai.util", "inspect_ai.model", "toml")
_SHELLS = ("", ".tau2", ".tau2.airline", ".tau2.retail", ".tau2.telecom", ".tau2.banking", ".tau2.common")
# A tool of the bank imports this one when it is called.
_STAYS = f"{PACKAGE}.tau2.banking.BankingUserTools"
_LOADING = threading.Lock()
MOST_S = 2.0  # seconds of one search by a pattern; the bank's documents take some milliseconds
TOO_LONG = "the pattern takes too long; write a simpler one"


@dataclass(frozen=True)
class Side:
    """One of the two sides that act in a domain.

    Attributes:
        holder: module and class of the object with its data.
        tools: module of its tools, and the name of the list of all of them there.
    """

    holder: tuple[str, str]
    tools: tuple[str, str]


@dataclass(frozen=True)
class DomainLayout:
    """The place of a domain in the package.

    Attributes:
        data: folder of its files.
        agent, user: the sides; None: the user has no tools.
        database: module and class of the agent's database, and of the user's own if there is one.
    """

    data: str
    agent: Side
    database: tuple[tuple[str, str], ...]
    user: Side | None = None


LAYOUTS: Mapping[str, DomainLayout] = {
    "airline": DomainLayout(
        "airline",
        Side(("airline.AirlineAgentTools", "AirlineAgentTools"), ("airline.tools", "all_airline_tools")),
        (("airline.data_model", "FlightDB"),),
    ),
    "retail": DomainLayout(
        "retail",
        Side(("retail.RetailAgentTools", "RetailAgentTools"), ("retail.tools", "all_retail_tools")),
        (("retail.data_model", "RetailDB"),),
    ),
    "telecom": DomainLayout(
        "telecom",
        Side(("telecom.TelecomAgentTools", "TelecomAgentTools"), ("telecom.tools", "all_telecom_agent_tools")),
        (("telecom.data_model", "TelecomDB"), ("telecom.user_data_model", "TelecomUserDB")),
        Side(("telecom.TelecomUserTools", "TelecomUserTools"), ("telecom.user_tools", "all_telecom_user_tools")),
    ),
    "banking": DomainLayout(
        "banking_knowledge",
        Side(("banking.BankingAgentTools", "BankingAgentTools"), ("banking.tools", "all_banking_agent_tools")),
        (("banking.data_model", "TransactionalDB"),),
        Side(("banking.BankingUserTools", "BankingUserTools"), ("banking.user_tools", "all_banking_user_tools")),
    ),
}


def folder() -> Path | None:
    """Return the folder of τ²-Bench in the package without importing it, or None if it is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    places = list(found.submodule_search_locations or ()) if found else []
    return next((Path(place) / "tau2" for place in places if (Path(place) / "tau2").is_dir()), None)


def needed() -> Path:
    """Return the folder of τ²-Bench in the package.

    Raises:
        ConfigError: it is not installed.
    """
    if (root := folder()) is None:
        raise ConfigError(f"{MISSING}.")
    return root


def read(place: Path, name: str) -> Any:
    """Return the content of a data file, plain or compressed: JSON or TOML as a value, everything else as text.

    Raises:
        OSError, ValueError: it is not there, or broken.
    """
    packed = place / f"{name}.gz"
    text = gzip.decompress(packed.read_bytes()).decode() if packed.is_file() else (place / name).read_text("utf-8")
    loads: Mapping[str, Callable[[str], Any]] = {".json": json.loads, ".toml": tomllib.loads}
    return loads.get(Path(name).suffix, str)(text)


def guidelines(with_tools: bool, situation: str) -> str:
    """Return the package's prompt for a model that plays the user."""
    name = "simulation_guidelines_tools.txt" if with_tools else "simulation_guidelines.txt"
    return f"{read(needed() / 'data' / 'user_simulator', name)}\n<scenario>\n{situation}\n</scenario>\n"


def load(root: Path, module: str, name: str) -> Any:
    """Return what is called `name` in a module of τ²-Bench in `root`.

    Raises:
        ConfigError: the package has an unknown form.
    """
    try:
        return getattr(_modules(root, module.partition(".")[0])[module], name)
    except (ImportError, LookupError, AttributeError, SyntaxError) as error:
        raise ConfigError(
            f"The inspect-evals in {root} is not one that we read: {type(error).__name__}: {error}."
        ) from error


@cache
def _modules(root: Path, part: str) -> Mapping[str, ModuleType]:
    """Return the modules of a domain, or of "data_model", by their names below `tau2`."""
    wanted = {"data_model.tasks"}
    for layout in (LAYOUTS[part],) if part in LAYOUTS else ():
        sides = [side for side in (layout.agent, layout.user) if side is not None]
        wanted |= {module for side in sides for module, _ in (side.holder, side.tools)}
        wanted |= {module for module, _ in layout.database}
        wanted |= {"telecom.environment"} if part == "telecom" else set()
    with _LOADING, _stand_ins(root):
        found = {module: importlib.import_module(f"{PACKAGE}.tau2.{module}") for module in sorted(wanted)}
    if "banking.data_model" in found:
        vars(found["banking.data_model"])["re"] = Patterns
    return found


@contextmanager
def _stand_ins(root: Path) -> Any:
    """Make modules of the package importable; afterwards every name stands for what it stood for before."""
    from pydantic import BaseModel, ConfigDict

    class StoreModel(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        instance: str | None = None

    class ToolError(Exception):
        def __init__(self, message: str) -> None:
            super().__init__(message)
            self.message = message

    class ContentText:
        text = ""

    names: dict[str, dict[str, Any]] = {name: {"__path__": []} for name in _STUBS}
    names["inspect_ai.tool"] |= {"Tool": object, "ToolError": ToolError, "tool": lambda function: function}
    names["inspect_ai.util"] |= {"StoreModel": StoreModel, "store_as": _held}
    names["inspect_ai.model"] |= {"Content": object, "ContentText": ContentText}
    names["toml"] |= {"load": lambda stream: tomllib.loads(stream.read())}
    for shell in _SHELLS:
        below = shell.split(".")[2:]
        path = root.joinpath(*below) if shell else root.parent
        names[PACKAGE + shell] = {"__path__": [str(path)]}
    ours = set(_STUBS) | {PACKAGE}

    def taken() -> list[str]:
        return [name for name in sys.modules if name in ours or name.startswith((f"{PACKAGE}.", "inspect_ai."))]

    before = {name: sys.modules.pop(name) for name in taken()}
    for name, content in names.items():
        module = ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
    try:
        yield
    finally:
        stays = sys.modules.get(_STAYS)
        for name in taken():
            del sys.modules[name]
        sys.modules.update(before)
        if stays is not None:
            sys.modules.setdefault(_STAYS, stays)


def _held(kind: type, instance: str | None = None) -> Any:
    return HELD.get()[kind.__name__]


class Patterns:
    """The part of the module `re` that the bank's search uses, under a deadline, so that no pattern hangs a run."""

    IGNORECASE, error, escape = re.IGNORECASE, re.error, staticmethod(re.escape)

    @staticmethod
    def compile(pattern: str, flags: int = 0) -> "TimedPattern":
        """Return a search whose time begins now; raises the errors of `re` for a pattern that is none."""
        re.compile(pattern, flags)
        return TimedPattern(pattern, flags)


class TimedPattern:
    """A pattern that searches texts until its deadline."""

    def __init__(self, pattern: str, flags: int) -> None:
        engine = importlib.import_module("regex")  # comes with transformers; has the syntax of `re`, and can be stopped
        self._pattern, self._end = engine.compile(pattern, engine.IGNORECASE if flags else 0), monotonic() + MOST_S

    def findall(self, text: str) -> list[Any]:
        """Return every match; raises TimeoutError after the deadline."""
        try:
            return list(self._pattern.findall(text, timeout=max(self._end - monotonic(), 1e-3)))
        except TimeoutError:
            raise TimeoutError(TOO_LONG) from None
