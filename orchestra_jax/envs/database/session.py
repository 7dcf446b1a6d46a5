"""The tools of a database world, and one episode's use of them: a state, a clock that stands still, ids by seed.

A tool is a plain function of a `Desk` and the call's arguments. A ValueError that it raises is an observation and
leaves the database as it was; every other exception is a bug of the world.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from orchestra_jax.envs.database.frozen import canonical, digest
from orchestra_jax.envs.database.state import Database, Key, State, Transaction, WrongKind
from orchestra_jax.tools import schema, signatures
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import ToolCall, ToolResult, ToolSpec

_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # none looks like another


class Kind(StrEnum):
    """The kinds of tools, by what a tool may do with the database."""

    READ = "read"
    WRITE = "write"
    GENERIC = "generic"  # neither: a calculator, a hand-over to a human


@dataclass(frozen=True)
class CallEffect:
    """The result of a call, and its changes, which do not hold before the session takes them over.

    Attributes:
        result: what the policy reads; if it is an error, the other fields are empty.
        changes: the new content of entries that the call wrote; None: it deleted the entry.
        read: the entries that the call looked at by id.
        ids: number of new ids by prefix and content.
    """

    result: ToolResult
    changes: Mapping[Key, Any] = field(default_factory=dict)
    read: Set[Key] = frozenset()
    ids: Mapping[str, int] = field(default_factory=dict)


class World(ABC):
    """A domain that many episodes share: a database, tools, rules, and the time at which everything plays.

    Attributes:
        policy: the rules that the agent is told.
        specs, kinds: what the policy sees of each tool, and what the tool may do, by name.
    """

    name: str
    database: Database
    now: datetime
    policy: str
    specs: Mapping[str, ToolSpec]
    kinds: Mapping[str, Kind]

    def session(self, seed: int = 0) -> "Session":
        """Return a fresh episode."""
        return Session(self, seed)

    def perform(self, session: "Session", call: ToolCall) -> CallEffect:
        """Return the effect of a call on an episode, which stays as it is.

        Raises:
            WrongKind: the tool does what its kind may not.
            WorldError: a tool in the sandbox raised what is no observation; one in this process raises it itself.
            InfrastructureError: a worker of the sandbox died or hung.
        """
        spec = self.specs.get(call.name)
        if spec is None:
            return CallEffect(ToolResult(f"Unknown tool {call.name!r}.", is_error=True, refused=True))
        if problem := schema.validate_arguments(spec, call.arguments):
            return CallEffect(ToolResult(problem, is_error=True, refused=True))
        return self._perform(session, call)

    async def perform_async(self, session: "Session", call: ToolCall) -> CallEffect:
        """As `perform`, but let other episodes go on if the tool runs outside this process."""
        return self.perform(session, call)

    @abstractmethod
    def _perform(self, session: "Session", call: ToolCall) -> CallEffect:
        """Run a tool that exists on arguments that fit its schema."""

    def close(self) -> None:  # noqa: B027
        """Release what the world owns; tools in this process own nothing."""


@dataclass
class Session:
    """One episode in a world; a reset is a new one.

    Attributes:
        world: shared with other sessions, which see nothing of this one.
        seed: of the ids that tools make; the golden calls must have the same.
        state: the content as it is now.
        read, written: the entries that calls looked at by id, and those that calls changed.
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

    def call(self, call: ToolCall) -> ToolResult:
        """Make a call: it changes everything that it has to, or it fails and changes nothing.

        Errors are those of `World.perform`.
        """
        return self._take(call, self.world.perform(self, call))

    async def call_async(self, call: ToolCall) -> ToolResult:
        """As `call`, but let other episodes go on; a call that is cancelled changes nothing."""
        return self._take(call, await self.world.perform_async(self, call))

    def _take(self, call: ToolCall, effect: CallEffect) -> ToolResult:
        if not effect.result.is_error:
            self.state.write(effect.changes)
            self.read |= effect.read
            self.written |= effect.changes.keys()
            self.ids.update(effect.ids)
            self.done.append(call)
        return effect.result


class Desk(Transaction):
    """The argument that a tool works with: the entries, the time of the episode, and new ids.

    Attributes:
        now: the time of the episode, which stands still: ISO 8601, to the second.
    """

    def __init__(self, session: Session, kind: Kind) -> None:
        super().__init__(session.state, reads=kind is not Kind.GENERIC, writes=kind is Kind.WRITE)
        self.now = session.world.now.isoformat(timespec="seconds")
        self._seed, self._before = session.seed, session.ids
        self.ids = Counter[str]()

    def new_id(self, prefix: str, *content: Any) -> str:
        """Return an id that the same episode always gives again, whatever failed before.

        With `content`, such as the arguments of the call, the id depends on nothing else: two entries get the same ids
        in either order. Without it, the id is the next one of this prefix.
        """
        what = canonical([prefix, *content])
        number = self._before[what] + self.ids[what]
        self.ids[what] += 1
        drawn = int.from_bytes(digest(f"{self._seed} {number} {what}")[:5])
        return prefix + "".join(_LETTERS[drawn >> 5 * place & 31] for place in range(8))


DeskFunction = Callable[..., Any]  # its arguments are a `Desk` and those of the call


@dataclass(frozen=True)
class DatabaseTool:
    """A tool of a world: what the policy sees, what the tool may do, and what it does."""

    spec: ToolSpec
    kind: Kind
    function: DeskFunction
    desk: str  # name of the argument that takes the `Desk`


def database_tool(kind: Kind, **figures: Any) -> Callable[[DeskFunction], DatabaseTool]:
    """Make a tool of the decorated function, which has one argument of type `Desk`; see also `tools.base.tool`.

    Args:
        kind: what the function may do; whatever it does beside that is found when it is tried.
        figures: `name`, `price_usd`, `latency_s` and the like of its `ToolSpec`.
    """

    def make(function: DeskFunction) -> DatabaseTool:
        description, parameters, desk = signatures.signature(function, filled=Desk)
        if desk is None:
            raise TypeError(f"The tool {function.__name__!r} needs an argument of type Desk.")
        spec = ToolSpec(**{"name": function.__name__, "description": description, "parameters": parameters, **figures})
        check_spec(spec)
        return DatabaseTool(spec, kind, function, desk)

    return make


class LocalWorld(World):
    """A domain whose tools run in this process.

    Raises:
        ValueError: two tools share a name.
    """

    def __init__(
        self, name: str, database: Database, tools: Sequence[DatabaseTool], now: datetime, policy: str = ""
    ) -> None:
        self.name, self.database, self.now, self.policy = name, database, now, policy
        self.tools = {each.spec.name: each for each in tools}
        if len(self.tools) != len(tools):
            raise ValueError(f"Two tools of the world {name!r} share a name.")
        self.specs = {name: tool.spec for name, tool in self.tools.items()}
        self.kinds = {name: tool.kind for name, tool in self.tools.items()}

    def _perform(self, session: Session, call: ToolCall) -> CallEffect:
        tool = self.tools[call.name]
        desk = Desk(session, tool.kind)
        try:
            value = tool.function(**call.arguments, **{tool.desk: desk})
        except ValueError as error:
            return CallEffect(ToolResult(f"Error: {str(error) or type(error).__name__}", is_error=True))
        except WrongKind as error:
            raise WrongKind(f"The tool {call.name!r} of {self.name!r} is of kind {tool.kind}, but {error}.") from None
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return CallEffect(ToolResult(text), desk.changes, desk.read, desk.ids)
