"""The tools of a database world, and one episode's use of them: a state, a clock that stands still, ids by seed.

A tool is a plain function of a `Desk` and the call's arguments. What it raises as a ValueError is an observation and
leaves the database as it was; everything else is a bug of the world.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from orchestra_jax.envs.database.frozen import canonical, digest
from orchestra_jax.envs.database.state import Database, Key, State, Transaction, WrongKind
from orchestra_jax.tools import schema, signatures
from orchestra_jax.types import ToolCall, ToolSpec

_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # none looks like another


class Kind(StrEnum):
    """What a tool may do with the database."""

    READ = "read"
    WRITE = "write"
    GENERIC = "generic"  # neither: a calculator, a hand-over to a human


class Desk(Transaction):
    """What a tool works with: the entries, the time of the episode, and new ids.

    Attributes:
        now: the time of the episode, which stands still: ISO 8601, to the second.
    """

    def __init__(self, session: "Session", kind: Kind) -> None:
        super().__init__(session.state, reads=kind is not Kind.GENERIC, writes=kind is Kind.WRITE)
        self.now = session.now.isoformat(timespec="seconds")
        self._seed, self._before = session.seed, session.ids
        self.ids = Counter[str]()

    def new_id(self, prefix: str, *content: Any) -> str:
        """An id that the same episode always gives again, whatever failed before.

        With `content`, such as the arguments of the call, it depends on nothing else: two entries get the same ids in
        either order. Without, it is that of the next one of this prefix.
        """
        what = canonical([prefix, *content])
        number = self._before[what] + self.ids[what]
        self.ids[what] += 1
        drawn = int.from_bytes(digest(f"{self._seed} {number} {what}")[:5])
        return prefix + "".join(_LETTERS[drawn >> 5 * place & 31] for place in range(8))


DeskFunction = Callable[..., Any]  # of a `Desk` and the arguments of the call


@dataclass(frozen=True)
class DatabaseTool:
    """A tool of a world: what the policy sees, what it may do, and what it does."""

    spec: ToolSpec
    kind: Kind
    function: DeskFunction
    desk: str  # name of the argument that takes the `Desk`


def database_tool(kind: Kind, **figures: Any) -> Callable[[DeskFunction], DatabaseTool]:
    """Decorator that makes a tool of a function with one argument of type `Desk`; see `tools.base.tool` for the rest.

    Args:
        kind: what the function may do; what it does besides is found when it is tried.
        figures: `name`, `price_usd`, `latency_s` and the like of its `ToolSpec`.
    """

    def make(function: DeskFunction) -> DatabaseTool:
        description, parameters, desk = signatures.signature(function, filled=Desk)
        if desk is None:
            raise TypeError(f"The tool {function.__name__!r} needs an argument of type Desk.")
        spec = ToolSpec(**{"name": function.__name__, "description": description, "parameters": parameters, **figures})
        schema.check_spec(spec)
        return DatabaseTool(spec, kind, function, desk)

    return make


@dataclass(frozen=True)
class World:
    """What the episodes of a domain share: the database, the tools and the time at which everything plays."""

    name: str
    database: Database
    tools: Mapping[str, DatabaseTool]
    now: datetime
    policy: str = ""

    @classmethod
    def of(
        cls, name: str, database: Database, tools: Sequence[DatabaseTool], now: datetime, policy: str = ""
    ) -> "World":
        """A world of these tools by their names.

        Raises:
            ValueError: two tools share a name.
        """
        by_name = {each.spec.name: each for each in tools}
        if len(by_name) != len(tools):
            raise ValueError(f"Two tools of the world {name!r} share a name.")
        return cls(name, database, by_name, now, policy)

    @property
    def specs(self) -> dict[str, ToolSpec]:
        """What the policy sees of the tools, by name."""
        return {name: tool.spec for name, tool in self.tools.items()}

    @property
    def kinds(self) -> dict[str, Kind]:
        """What each tool may do."""
        return {name: tool.kind for name, tool in self.tools.items()}

    def session(self, seed: int = 0) -> "Session":
        """A fresh episode."""
        return Session(self, seed)

    def close(self) -> None:
        """Nothing: the tools run in this process. `RemoteWorld` has workers to stop."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to.

    Attributes:
        text: what the policy reads: the tool's text, or its value as JSON.
        ok: the tool did not fail; a call that failed changed nothing and operated on nothing.
        refused: it was not carried out, as the tool or its arguments do not exist.
    """

    text: str
    ok: bool = True
    refused: bool = False


@dataclass
class Session:
    """One episode in a world; a reset is a new one.

    Attributes:
        world: shared with other sessions, which see nothing of this one.
        seed: of the ids that tools make; that of the golden calls must be the same.
        state: the content as it is now.
        read, written: the entries that calls looked at by id, and those that they changed.
        done: the calls that did not fail, in order.
        ids: how many ids were made of each prefix and content.
    """

    world: World
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

    async def make(self, call: ToolCall) -> Outcome:
        """As `call`; for `RemoteSession` it waits, so episodes use this one."""
        return self.call(call)

    def call(self, call: ToolCall) -> Outcome:
        """Makes a call: it changes everything it has to, or it fails and changes nothing.

        Raises:
            WrongKind: the tool does what its kind may not.
        """
        tool = self.world.tools.get(call.name)
        if tool is None:
            return Outcome(f"Unknown tool {call.name!r}.", ok=False, refused=True)
        if problem := schema.validate_arguments(tool.spec, call.arguments):
            return Outcome(problem, ok=False, refused=True)
        desk = Desk(self, tool.kind)
        try:
            value = tool.function(**call.arguments, **{tool.desk: desk})
        except ValueError as error:
            return Outcome(f"Error: {error or type(error).__name__}", ok=False)
        except WrongKind as error:
            raise WrongKind(
                f"The tool {call.name!r} of {self.world.name!r} is of kind {tool.kind}, but {error}."
            ) from None
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        desk.commit()
        self.read |= desk.read
        self.written |= desk.written
        self.ids += desk.ids
        self.done.append(call)
        return Outcome(text)


class AnySession(Protocol):
    """One episode, whether its tools run here (`Session`) or in the sandbox (`remote.RemoteSession`)."""

    seed: int
    state: State
    read: set[Key]
    written: set[Key]
    done: list[ToolCall]

    def call(self, call: ToolCall) -> Outcome:
        """Makes a call and blocks until it is made; see `Session.call`."""
        ...

    async def make(self, call: ToolCall) -> Outcome:
        """As `call`, while other episodes go on."""
        ...


class AnyWorld(Protocol):
    """A domain: `World`, or `remote.RemoteWorld`."""

    @property
    def name(self) -> str: ...

    @property
    def database(self) -> Database: ...

    @property
    def now(self) -> datetime: ...

    @property
    def policy(self) -> str: ...

    @property
    def specs(self) -> Mapping[str, ToolSpec]: ...

    @property
    def kinds(self) -> Mapping[str, Kind]: ...

    def session(self, seed: int = 0) -> AnySession:
        """A fresh episode."""
        ...

    def close(self) -> None:
        """Releases what the world owns."""
        ...
