"""Worlds whose tools are not ours: they run in the sandbox, and the database goes in and out as what changed of it."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from orchestra_jax.envs.database.session import Kind, Outcome
from orchestra_jax.envs.database.state import Database, Key, State, WrongKind
from orchestra_jax.envs.database.workers.pool import Limits, TooLong, Workers, WorldError
from orchestra_jax.tools import schema
from orchestra_jax.types import InfrastructureError, ToolCall, ToolSpec

# What a schema from outside may say. Patterns could take for ever, and a reference could name a file or an address.
_KEYWORDS = frozenset({
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "allOf", "oneOf",
    "description", "default", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength", "$ref", "$defs",
})  # fmt: skip


class RemoteWorld:
    """A domain whose tools run in worker processes; `session.World` is the other kind.

    Args:
        name: of the domain.
        workers: that serve it; closed with it.
        now: the time at which everything plays.
        policy: the rules that the agent is told.
        database: None: the workers say what it is.

    Attributes:
        specs, kinds: of the tools by name, in their order.
        threads: that wait for the workers.

    Raises:
        WorldError: the code cannot be loaded, or describes no tools.
        InfrastructureError: no worker came up.
    """

    def __init__(
        self, name: str, workers: Workers, *, now: datetime, policy: str = "", database: Database | None = None
    ) -> None:
        self.name, self.now, self.policy, self._workers = name, now, policy, workers
        # As many as workers: a world that hangs keeps nobody else's threads.
        self.threads = ThreadPoolExecutor(workers.count, thread_name_prefix=f"world-{name}")
        try:
            told = workers.ask({"describe": True})
            self.specs, self.kinds = _tools(told)
            self.database = Database(told["tables"]) if database is None else database
        except (KeyError, TypeError, ValueError, WorldError) as error:
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
        limits: Limits | None = None,
    ) -> "RemoteWorld":
        """The world of a folder.

        Args:
            source: text of its tools.py: functions with `session.database_tool`.
            tables: its database.
            count: worker processes at most.
        """
        payload = {"name": name, "source": source, "tables": tables, "now": now.isoformat()}
        adapter = "orchestra_jax.envs.database.workers.folder:FolderTools"
        workers = Workers(adapter, payload, count=count, isolation=isolation, limits=limits)
        return cls(name, workers, now=now, policy=policy, database=Database(tables))

    def session(self, seed: int = 0) -> "RemoteSession":
        """A fresh episode."""
        return RemoteSession(self, seed)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What a worker answers; see `Workers.ask`."""
        return self._workers.ask(request)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the started workers."""
        return self._workers.pids

    def close(self) -> None:
        """Stops the workers; later calls raise InfrastructureError."""
        self._workers.close()


@dataclass(frozen=True)
class Answer:
    """What a worker made of a call; nothing of it holds before it is `taken`."""

    outcome: Outcome
    delta: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    read: frozenset[Key] = frozenset()
    written: frozenset[Key] = frozenset()
    ids: Mapping[str, int] = field(default_factory=dict)


@dataclass
class RemoteSession:
    """One episode in a remote world, with what `session.Session` has."""

    world: RemoteWorld
    seed: int = 0
    state: State = field(init=False)
    read: set[Key] = field(default_factory=set)
    written: set[Key] = field(default_factory=set)
    done: list[ToolCall] = field(default_factory=list)
    ids: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.state = State(self.world.database)

    @property
    def now(self) -> datetime:
        return self.world.now

    def call(self, call: ToolCall) -> Outcome:
        """Makes a call as `Session.call` does; blocks until a worker has answered.

        Raises:
            WrongKind: the tool does what its kind may not.
            WorldError: it raised what is no observation.
            InfrastructureError: the worker died or hung; the episode is as it was.
        """
        return self.take(call, self.ask(call))

    async def make(self, call: ToolCall) -> Outcome:
        """As `call`, while other episodes go on; one that is cancelled changes nothing."""
        return self.take(call, await asyncio.get_running_loop().run_in_executor(self.world.threads, self.ask, call))

    def ask(self, call: ToolCall) -> Answer:
        """What the call comes to; changes nothing here. See `call` for what it raises."""
        spec = self.world.specs.get(call.name)
        if spec is None:
            return Answer(Outcome(f"Unknown tool {call.name!r}.", ok=False, refused=True))
        if problem := schema.validate_arguments(spec, call.arguments):
            return Answer(Outcome(problem, ok=False, refused=True))
        request = {
            "name": call.name, "arguments": dict(call.arguments), "seed": self.seed, "ids": self.ids,
            "delta": self.state.delta(),
        }  # fmt: skip
        try:
            return _answer(self.world.ask(request))
        except TooLong:
            return Answer(Outcome(f"Error: {call.name} took too long and was stopped.", ok=False))
        except WorldError as error:
            if str(error).startswith("WrongKind: "):
                raise WrongKind(str(error).removeprefix("WrongKind: ")) from None
            raise WorldError(f"The tool {call.name!r} of {self.world.name!r} is broken: {error}") from None

    def take(self, call: ToolCall, answer: Answer) -> Outcome:
        """Takes over what `ask` gave.

        Raises:
            InfrastructureError: it does not fit the database; nothing is taken over.
        """
        if answer.outcome.ok:
            try:
                self.state.apply(answer.delta)
            except (KeyError, TypeError, ValueError) as error:
                raise InfrastructureError(f"The worker of {self.world.name!r} answered nonsense: {error}.") from None
            self.read |= answer.read
            self.written |= answer.written
            self.ids = Counter(answer.ids)
            self.done.append(call)
        return answer.outcome


def _tools(told: Mapping[str, Any]) -> tuple[dict[str, ToolSpec], dict[str, Kind]]:
    """The specifications and kinds; raises ValueError or TypeError: one cannot be offered to a policy."""
    specs, kinds = dict[str, ToolSpec](), dict[str, Kind]()
    for each in told["tools"]:
        spec = ToolSpec(
            name=str(each["name"]),
            description=str(each["description"]),
            parameters=cleaned(each["parameters"]),
            price_usd=each.get("price_usd"),
            latency_s=each.get("latency_s"),
        )
        schema.check_spec(spec)
        if spec.name in specs:
            raise ValueError(f"two tools are called {spec.name!r}")
        specs[spec.name], kinds[spec.name] = spec, Kind(each["kind"])
    if not specs:
        raise ValueError("it has none")
    return specs, kinds


def cleaned(parameters: Any) -> Any:
    """A JSON schema from outside with harmless keywords only; what it says in others the tool itself checks."""
    if isinstance(parameters, Sequence) and not isinstance(parameters, str):
        return [cleaned(each) for each in parameters]
    if not isinstance(parameters, Mapping):
        return parameters
    found = dict[str, Any]()
    for word, value in parameters.items():
        if word in ("properties", "$defs") and isinstance(value, Mapping):
            found[word] = {name: cleaned(each) for name, each in value.items()}
        elif word == "$ref":
            if str(value).startswith("#/$defs/"):
                found[word] = value
        elif word in ("enum", "const", "default", "required"):
            found[word] = value
        elif word in _KEYWORDS:
            found[word] = cleaned(value)
    return found


def _answer(told: Mapping[str, Any]) -> Answer:
    """The worker's answer; raises InfrastructureError: it is none."""
    match told:
        case {"text": str(text), "ok": bool(ok), "refused": bool(refused), **rest}:
            try:
                delta = {str(table): dict(rows) for table, rows in rest.get("delta", {}).items()}
                keys = {name: frozenset((t, n) for t, n in rest.get(name, ())) for name in ("read", "written")}
                ids = {str(name): int(count) for name, count in rest.get("ids", {}).items()}
                return Answer(Outcome(text, ok, refused), delta, keys["read"], keys["written"], ids)
            except (AttributeError, TypeError, ValueError):
                pass
    raise InfrastructureError("The worker of a world gave an answer of another form.")
