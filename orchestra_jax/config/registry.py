"""Registries: open lists of names, which a package or a file of the user can add to."""

import importlib
import sys
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from orchestra_jax.config.schema import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """One list of names for one concept.

    A name is found in this order: a built-in one; an entry point of an installed package; `module:attribute`, where
    the module is installed or lies in the working directory.

    Attributes:
        concept: the thing that is chosen, as messages name it: "environment".
        key: the configuration key that chooses it: "env.name".
        group: entry points that other packages register under; None: there are none.

    Args:
        builtin: own names, each with an object, or a `module:attribute` string that is imported when it is used.
        kind: a class that has all that a class of the user's needs; None: any will do.
    """

    def __init__(
        self, concept: str, key: str, *, group: str | None = None, builtin: dict[str, "T | str"], kind: Any = None
    ) -> None:
        self.concept, self.key, self.group = concept, key, group
        self._builtin, self._kind = builtin, kind

    def names(self) -> tuple[str, ...]:
        """Return all names that can be chosen, sorted; import nothing."""
        return tuple(sorted({*self._builtin, *self._installed()}))

    def problem(self, name: str) -> str | None:
        """Return one sentence with the fix if nothing has this name; a `module:attribute` is not looked for."""
        if ":" in name or name in self.names():
            return None
        near = get_close_matches(name, self.names(), n=2)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        return (
            f"{self.key}={name} is no known {self.concept}: {hint}use one of {', '.join(self.names())}, or "
            "module:attribute of your own."
        )

    def get(self, name: str) -> T:
        """Return the object that the name stands for.

        Raises:
            ConfigError: nothing has this name, it cannot be imported, or it is a class of another kind.
        """
        if problem := self.problem(name):
            raise ConfigError(problem)
        found: Any = self._builtin.get(name)
        if found is None and ":" not in name:
            try:
                found = self._installed()[name].load()
            except (ImportError, AttributeError) as error:
                raise ConfigError(f"The {self.concept} {name!r} of an installed package fails: {error}.") from error
        elif found is None or isinstance(found, str):
            found = self._import(found or name)
        needed = [each for each in dir(self._kind) if each[0] != "_"] if self._kind and isinstance(found, type) else []
        if lacking := [each for each in needed if not hasattr(found, each)]:
            said = f"{self.key}={name} is no {self.concept} (see {self._kind.__module__})"
            raise ConfigError(f"{said}: it lacks {', '.join(lacking[:4])}.")
        return found

    def _installed(self) -> dict[str, Any]:
        return {point.name: point for point in entry_points(group=self.group)} if self.group else {}

    def _import(self, path: str) -> Any:
        module, _, attribute = path.partition(":")
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name not in (module, module.partition(".")[0]):
                raise ConfigError(f"{self.key}={path}: {module} needs {error.name}, which is not installed.") from error
            raise ConfigError(
                f"{self.key}={path}: there is no module {module}; start from the folder that holds it, or install it."
            ) from error
        if hasattr(found, attribute):
            return getattr(found, attribute)
        raise ConfigError(f"{self.key}={path}: the module {module} has no {attribute!r}.")
