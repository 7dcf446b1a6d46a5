"""Worlds whose tools are not ours: they run in the sandbox, and the database goes in and out as its changed entries."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from orchestra_jax.envs.database.frozen import freeze
from orchestra_jax.envs.database.session import CallEffect, Kind, Session, World
from orchestra_jax.envs.database.state import Database, WrongKind
from orchestra_jax.envs.database.workers.pool import CallTooLong, WorkerLimits, Workers, WorldError
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import InfrastructureError, ToolCall, ToolResult, ToolSpec

# Keywords that the menu shows of a schema from outside.
_KEYWORDS = frozenset(
    "type properties required additionalProperties items enum const anyOf allOf oneOf description default minimum "
    "maximum minItems maxItems minLength maxLength $ref $defs".split()
)


class RemoteWorld(World):
    """A domain whose tools run in worker processes.

    Args:
        name: of the domain.
        workers: the processes that serve it; they are closed with it.
        now: the time at which everything plays.
        policy: the rules that the agent is told.
        database: the content at the start; None: the workers tell it.

    Raises:
        WorldError: the code cannot be loaded, or describes no tools.
        InfrastructureError: no worker came up.
    """

    def __init__(
        self, name: str, workers: Workers, *, now: datetime, policy: str = "", database: Database | None = None
    ) -> None:
        self.name, self.now, self.policy, self._workers = name, now, policy, workers
        # As many threads as workers, for this world alone: a world that hangs keeps nobody else waiting.
        self._threads = ThreadPoolExecutor(workers.count, thread_name_prefix=f"world-{name}")
        try:
            told = workers.ask({"describe": True})
            self.specs, self.kinds = _tools(told)
            self.database = Database(told["tables"]) if database is None else database
        except CallTooLong:
            workers.close()
            raise WorldError(f"The tools of the world {name!r} take too much CPU time to load.") from None
        except InfrastructureError as error:
            workers.close()
            raise InfrastructureError(f"The tools of the world {name!r} do not load: {error}") from None
        except (AttributeError, KeyError, TypeError, ValueError, WorldError) as error:
            workers.close()
            raise WorldError(f"The tools of the world {name!r} cannot be used: {error}") from None
        except BaseException:
            workers.close()
            raise

    @classmethod
    def of_source(
        cls,
        name: str,
        source: str,
        tables: Mapping[str, Mapping[str, Any]],
        now: datetime,
        policy: str = "",
        *,
        count: int = 1,
        isolation: str = "auto",
        limits: WorkerLimits | None = None,
    ) -> "RemoteWorld":
        """Start the world of a folder.

        Args:
            source: text of its tools.py: functions with `session.database_tool`.
            tables: its database.
            count: worker processes at most.
        """
        payload = {"name": name, "source": source, "tables": tables, "now": now.isoformat()}
        adapter = "orchestra_jax.envs.database.workers.folder:FolderTools"
        workers = Workers(adapter, payload, count=count, isolation=isolation, limits=limits)
        return cls(name, workers, now=now, policy=policy, database=Database(tables))

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the started workers."""
        return self._workers.pids

    def close(self) -> None:
        """Stop the workers; later calls raise InfrastructureError."""
        self._workers.close()

    async def perform_async(self, session: Session, call: ToolCall) -> CallEffect:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.perform, session, call)

    def _perform(self, session: Session, call: ToolCall) -> CallEffect:
        request = {
            "name": call.name,
            "arguments": dict(call.arguments),
            "seed": session.seed,
            "ids": session.ids,
            "delta": session.state.delta(),
        }
        try:
            return self._effect(self._workers.ask(request))
        except CallTooLong:
            return CallEffect(ToolResult(f"Error: {call.name} took too long and was stopped.", is_error=True))
        except WorldError as error:
            if str(error).startswith("WrongKind: "):
                raise WrongKind(str(error).removeprefix("WrongKind: ")) from None
            raise WorldError(f"The tool {call.name!r} of {self.name!r} is broken: {error}") from None

    def _effect(self, told: Mapping[str, Any]) -> CallEffect:
        """Return the effect that a worker tells; raises InfrastructureError: the answer is none."""
        match told:
            case {"text": str(text), "is_error": bool(is_error), "refused": bool(refused), **rest}:
                try:
                    changes = {
                        (str(table), str(name)): freeze(entry)
                        for table, rows in rest.get("delta", {}).items()
                        for name, entry in rows.items()
                    }
                    read = frozenset((table, name) for table, name in rest.get("read", ()))
                    ids = {str(name): int(count) for name, count in rest.get("ids", {}).items()}
                except (AttributeError, TypeError, ValueError) as error:
                    raise InfrastructureError(f"The worker of {self.name!r} answered nonsense: {error}.") from None
                if unknown := {table for table, _ in changes} - self.database.tables.keys():
                    raise InfrastructureError(
                        f"The worker of {self.name!r} answered nonsense: no table {min(unknown)!r}."
                    )
                return CallEffect(ToolResult(text, is_error=is_error, refused=refused), changes, read, ids)
        raise InfrastructureError("The worker of a world gave an answer of another form.")


def _tools(told: Mapping[str, Any]) -> tuple[dict[str, ToolSpec], dict[str, Kind]]:
    """Return specifications and kinds by name; raises ValueError or TypeError if one cannot be offered to a policy."""
    specs, kinds = dict[str, ToolSpec](), dict[str, Kind]()
    for each in told["tools"]:
        spec = ToolSpec(
            name=str(each["name"]),
            description=str(each["description"]),
            parameters=harmless_schema(each["parameters"]),
            price_usd=each.get("price_usd"),
            latency_s=each.get("latency_s"),
        )
        check_spec(spec)
        if spec.name in specs:
            raise ValueError(f"two tools are called {spec.name!r}")
        specs[spec.name], kinds[spec.name] = spec, Kind(each["kind"])
    if not specs:
        raise ValueError("it has none")
    return specs, kinds


def harmless_schema(parameters: Any) -> Any:
    """Return a JSON schema from outside with common keywords only; the tool itself checks the others."""
    if isinstance(parameters, Sequence) and not isinstance(parameters, str):
        return [harmless_schema(each) for each in parameters]
    if not isinstance(parameters, Mapping):
        return parameters
    found = dict[str, Any]()
    for word, value in parameters.items():
        if word in ("properties", "$defs") and isinstance(value, Mapping):
            found[word] = {name: harmless_schema(each) for name, each in value.items()}
        elif word == "$ref" or word in ("enum", "const", "default", "required"):
            found[word] = value
        elif word in _KEYWORDS:
            found[word] = harmless_schema(value)
    return found
