"""A world as a folder: its database, tools, rules and tasks, written by hand or synthesised (docs/worlds.md).

    world.json      {"format": 1, "name", "about", "now"}
    database.json   {table: {id: entry}}
    schema.json     {"tables": {table: JSON schema of an entry}, "references": [[table, field, table], ...]}
    policy.md       the rules that the agent is told
    tools.py        functions with `session.database_tool`; nothing else happens when it is read
    tasks.jsonl     a `TaskRow` to a line

The tools of a folder that is not trusted run in the sandbox (`remote`).
"""

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestra_jax.envs.database.golden import Goal
from orchestra_jax.envs.database.remote import RemoteWorld
from orchestra_jax.envs.database.session import DatabaseTool, LocalWorld, World
from orchestra_jax.envs.database.state import Database, Key
from orchestra_jax.envs.database.workers.pool import WorldError
from orchestra_jax.io.foreign_json import own_file, read_json
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.tools.schema import checker
from orchestra_jax.types import ToolCall

FORMAT = 1
SPLITS = ("train", "eval")
_MOST_BYTES = 1 << 30
_LONGEST = 1000  # characters of a sentence
FILES = ("world.json", "database.json", "schema.json", "policy.md", "tools.py", "tasks.jsonl")


class BadWorld(ValueError):  # noqa: N818
    """A folder is no world; the sentence names the file and the fault, and is cut where a value in it is long."""

    def __init__(self, sentence: str) -> None:
        plain = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in sentence[:_LONGEST])
        super().__init__(plain if len(sentence) <= _LONGEST else f"{plain} ...")


@dataclass(frozen=True)
class Exchange:
    """One request of the user and its answer.

    Attributes:
        user: the words of a scripted user.
        calls: the golden calls.
        facts: the facts that the policy must then say.
    """

    user: str
    calls: tuple[ToolCall, ...] = ()
    facts: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskRow:
    """One task of a world.

    Attributes:
        id: unique in its world.
        family: for reports.
        split: "train" or "eval".
        turns: the conversation with a scripted user: each request follows when the one before was answered.
        seed: of the ids that tools make.
        situation: the text that a simulated user is told; None: the requests of all turns.
        start: {table: {id: entry or None}} that differs from the world's database at the start.
    """

    id: str
    family: str
    split: str
    turns: tuple[Exchange, ...]
    seed: int = 0
    situation: str | None = None
    start: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def goal(self) -> Goal:
        """The golden calls and facts of all turns together."""
        calls = [call for turn in self.turns for call in turn.calls]
        return Goal(self.id, calls, [fact for turn in self.turns for fact in turn.facts], self.seed, self.start)

    @property
    def told(self) -> str:
        """The text that a simulated user is told."""
        return self.situation or "\n".join(turn.user for turn in self.turns)


@dataclass(frozen=True)
class WorldFolder:
    """The content of a folder.

    Attributes:
        world: database, tools, rules and clock.
        tasks: all tasks, also those that nobody can be scored on, see `golden.solutions`.
    """

    world: World
    tasks: Sequence[TaskRow]


def load(folder: str | Path, *, trusted: bool, workers: int = 1, isolation: str = "auto") -> WorldFolder:
    """Load a folder; the caller closes its world.

    Args:
        trusted: tools.py may run in this process, else it runs in the sandbox.
        workers: processes of the sandbox at most.
        isolation: `tools.sandbox.isolation`.

    Raises:
        BadWorld: a file is missing or broken.
        InfrastructureError: the sandbox does not come up.
    """
    folder = Path(folder)
    found = read(folder, trusted=trusted)
    now, rules = datetime.fromisoformat(found.head["now"]), _text(folder / "policy.md")
    name, tables = found.head["name"], found.database.tables
    try:
        world: World
        if trusted:
            world = LocalWorld(name, found.database, _tools(folder / "tools.py"), now, rules)
        else:
            source = _text(folder / "tools.py")
            world = RemoteWorld.of_source(name, source, tables, now, rules, count=workers, isolation=isolation)
    except (ValueError, WorldError) as error:
        raise BadWorld(" ".join(f"{folder / 'tools.py'}: {error}".split())) from error
    return WorldFolder(world, found.tasks)


@dataclass(frozen=True)
class FolderData:
    """The checked files of a folder beside its tools and rules."""

    head: Mapping[str, Any]
    database: Database
    tasks: Sequence[TaskRow]


def read(folder: Path, *, trusted: bool) -> FolderData:
    """Read a folder without running anything of it; raises BadWorld. What is not trusted may not link elsewhere."""
    for file in FILES:
        if not (folder / file).is_file():
            raise BadWorld(f"{folder / file} is not there.")
        try:
            if not trusted:
                own_file(folder / file)
        except Unreadable as error:
            raise BadWorld(f"{folder / file} cannot be read: {error}.") from None
    head = head_of(folder)
    try:
        database = Database(_json(folder / "database.json"))
    except TypeError as error:
        raise BadWorld(f"{folder / 'database.json'}: {error}") from error
    for problem in schema_problems(database.tables, _json(folder / "schema.json")):
        raise BadWorld(f"{folder / 'database.json'}: {problem}")
    return FolderData(head, database, list(tasks_of(folder)))


def head_of(folder: Path) -> Mapping[str, Any]:
    """Read and check world.json; raises BadWorld."""
    head = _json(folder / "world.json")
    if head.get("format") != FORMAT:
        raise BadWorld(f"{folder / 'world.json'} has the format {head.get('format')}, and {FORMAT} is read here.")
    for name in ("name", "about", "now"):
        if not isinstance(head.get(name), str):
            raise BadWorld(f"{folder / 'world.json'} needs {name!r} as a text.")
    try:
        datetime.fromisoformat(head["now"])
    except ValueError as error:
        raise BadWorld(f"{folder / 'world.json'}: {error}") from error
    return head


def tasks_of(folder: Path) -> Iterator[TaskRow]:
    """Yield the tasks in their order; raises BadWorld with the line that is none."""
    seen = set[str]()
    lines = _text(folder / "tasks.jsonl").encode().splitlines()  # a text would also end a line at U+2028
    for number, line in enumerate(lines, 1):
        if not line.strip():  # as at the end of files that are written by hand
            continue
        try:
            task = _task(read_json(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadWorld(f"{folder / 'tasks.jsonl'}, line {number} is no task: {error!r}") from error
        if task.id in seen:
            raise BadWorld(f"{folder / 'tasks.jsonl'}, line {number}: there already is a task {task.id!r}.")
        seen.add(task.id)
        yield task


def save_tasks(folder: Path, tasks: Sequence[TaskRow]) -> None:
    """Write tasks.jsonl."""
    rows = [{key: value for key, value in asdict(task).items() if value} for task in tasks]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (folder / "tasks.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def schema_problems(tables: Mapping[str, Mapping[str, Any]], schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each table, entry or reference that does not fit the schema."""
    known, references = schema.get("tables", {}), schema.get("references", [])
    if not isinstance(known, Mapping) or not all(isinstance(each, Mapping) for each in known.values()):
        yield "The schema's 'tables' must map each table to the JSON schema of its entries."
        return
    if not isinstance(references, Sequence) or not all(_is_reference(each) for each in references):
        yield "The schema's 'references' must be a list of [table, field, table]."
        return
    for table in sorted(tables.keys() ^ known.keys()):
        yield f"The table {table!r} is in only one of database and schema."
    for table in sorted(tables.keys() & known.keys()):
        try:
            fault = checker(known[table])
        except ValueError as error:
            yield f"The schema of {table!r} cannot be used, {error}."
            continue
        for name, entry in tables[table].items():
            if wrong := fault(entry):
                where = ".".join(map(str, wrong.absolute_path))
                yield f"{table} {name}{f', {where}' if where else ''}: {wrong.message}."
    yield from (sentence for _, sentence in dangling(tables, references))


def dangling(
    tables: Mapping[str, Mapping[str, Any]], references: Sequence[tuple[str, str, str]]
) -> Iterator[tuple[Key, str]]:
    """Yield each entry that refers to an entry that does not exist, with a sentence."""
    for table, column, other in references:
        for name, entry in tables.get(table, {}).items():
            ids = entry.get(column) if isinstance(entry, Mapping) else None
            for found in ids if isinstance(ids, list | tuple) else [ids]:
                if found is not None and not (isinstance(found, str) and found in tables.get(other, {})):
                    yield (table, name), f"{table} {name}: {column} names {found!r}, which is not in {other}."


def _is_reference(each: Any) -> bool:
    return isinstance(each, list | tuple) and len(each) == 3 and all(isinstance(name, str) for name in each)


def _task(row: Mapping[str, Any]) -> TaskRow:
    """Return a task of a world's folder.

    Raises:
        ValueError, LookupError, TypeError: the row is no task.
    """
    turns = tuple(
        Exchange(
            turn["user"],
            tuple(ToolCall(call["name"], dict(call["arguments"])) for call in turn.get("calls", ())),
            tuple(map(str, turn.get("facts", ()))),
        )
        for turn in row["turns"]
    )
    if not turns or not all(isinstance(turn.user, str) and turn.user.strip() for turn in turns):
        raise ValueError("it needs turns with the user's words")
    if row["split"] not in SPLITS:
        raise ValueError(f"split is one of {', '.join(SPLITS)}, not {row['split']!r}")
    start = row.get("start") or {}
    if not isinstance(start, dict) or not all(isinstance(rows, dict) for rows in start.values()):
        raise ValueError("start must map tables to the entries that differ")
    return TaskRow(
        id=str(row["id"]),
        family=str(row.get("family", "")),
        split=row["split"],
        turns=turns,
        seed=int(row.get("seed", 0)),
        situation=row.get("situation"),
        start=start,
    )


def _tools(file: Path) -> list[DatabaseTool]:
    """Return the tools that a file defines, in their order."""
    spec = importlib.util.spec_from_file_location(f"orchestra_jax_world_{file.parent.name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's own file raises is its fault, and is told
        raise BadWorld(" ".join(f"{file} cannot be read: {type(error).__name__}: {error}".split())) from error
    found = [value for value in vars(module).values() if isinstance(value, DatabaseTool)]
    if not found:
        raise BadWorld(f"{file} defines no tool: decorate functions with database_tool.")
    return found


def _json(file: Path) -> Any:
    try:
        found = read_json(_text(file).encode(), _MOST_BYTES)
    except Unreadable as error:
        raise BadWorld(f"{file} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadWorld(f"{file} must hold a JSON object.")
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadWorld(f"{file} cannot be read: {error}") from error
