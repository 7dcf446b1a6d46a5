"""What others made and a run reads: schemas, MCP results, GGUF files, world folders, kept trajectories, tables."""

import asyncio
import base64
import contextlib
import importlib.util
import io
import json
import math
import random
import shlex
import shutil
import sys
from typing import Any

from benchmarks.chaos.faults import Kind, holds, sentence
from benchmarks.chaos.files import InFolder
from benchmarks.chaos.odd import change, change_bytes, odd_text, odd_value
from orchestra_jax.config.mcp import McpServer
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.database.environment import SHIPPED
from orchestra_jax.envs.database.folder import FILES, BadWorld, load, read
from orchestra_jax.evaluation.trajectory_files import TrajectoryFile
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.tools.schema import validate_arguments
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import InfrastructureError
from tests.evaluation.test_group_files import TASK, trajectory
from tests.isolation import available
from tests.tools import test_foreign_schema as schemas

REFERENCES = ("#", "#/$defs/one", "#/$defs/none", "http://127.0.0.1/x", "file:///etc/passwd", "#/properties/a")
PATTERNS = ("^(a+)+$", "(?=a)b", r"(a)\1", "((a{1000}){1000}){1000}", "[", "^(b|b)*$", "\ud83d")


class Schemas(Kind):
    """Schemas of tools: refused with one sentence, or any arguments are checked in bounded work."""

    name = "foreign schemas"
    share = 1.5

    async def attempt(self, draw: random.Random) -> None:
        part = schemas.drawn(draw, draw.randint(1, 4))
        for _ in range(draw.randrange(3)):
            part = change(draw, part)[0]
        odd = {"$ref": draw.choice(REFERENCES), "pattern": draw.choice(PATTERNS), "$id": "http://127.0.0.1/"}
        word = draw.choice((*odd, *schemas.WORDS, "items", "anyOf", "properties", "$dynamicRef"))
        deep = draw.choice((schemas.nested, lambda levels: {"$ref": f"#/$defs/n{levels}"}))(draw.randrange(60))
        one = {word: odd.get(word, odd_value(draw))} if draw.random() < 0.5 else {"minimum": 1}
        made = draw.choice((schemas.doubled, schemas.chain))(draw.randrange(1, 40))
        spec = schemas.spec(a=draw.choice((part, part, deep)), b=part, defs={"one": one, "two": part, **made})
        self.what = ascii(spec.parameters)[:300]
        try:
            check_spec(spec)
        except ValueError as error:
            sentence(error, ValueError)
            return
        for value in ("a" * 5000 + "!", schemas.value(draw, 3), odd_value(draw), [odd_value(draw)] * 1000):
            said = validate_arguments(spec, {"a": value, "b": value})
            if said is not None:
                sentence(ValueError(said), ValueError)


class McpResults(Kind):
    """Answers of an MCP server, changed in its values or bytes: a text, or one sentence, and the next call works."""

    name = "MCP results"
    share = 0.5

    async def __aenter__(self) -> "McpResults":
        from orchestra_jax.tools.mcp.session import McpSession
        from tests.tools.mcp.conftest import SCRIPT

        command = shlex.join([sys.executable, "-S", str(SCRIPT), "1.0", "raw"])
        self._loop = LoopThread("chaos")
        # Only what gets no answer at all waits so long.
        self._session = McpSession(McpServer(command, timeout_s=3.0), self._loop, 1)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()
        self._loop.stop()

    async def attempt(self, draw: random.Random) -> None:
        block = {"type": draw.choice(("text", "image", "resource", "odd")), "text": odd_text(draw), "data": "aGk="}
        answer = {"content": [block], "structuredContent": {"a": odd_value(draw)}, "isError": draw.random() < 0.2}
        whole = {"jsonrpc": "2.0", "id": "ID", "result": answer}
        if draw.random() < 0.7:
            whole["result"] = change(draw, answer)[0]
        line = json.dumps(whole).encode()
        if draw.random() < 0.3:
            line, _ = change_bytes(draw, line)
        self.what = repr(line[:300])
        try:
            result = await self._session.call("raw", {"line": base64.b64encode(line).decode()})
            result.text.encode()
            holds(isinstance(result.is_error, bool), f"is_error is {result.is_error!r}")
        except InfrastructureError as error:
            sentence(error, InfrastructureError)
        for _ in range(3):  # a busy machine may be late
            with contextlib.suppress(InfrastructureError):
                holds((await self._session.call("echo", {"text": "on"})).text == "on", "the next answer is another")
                return
        holds(False, "no call works after it")


class GgufFiles(InFolder):
    """GGUF files with other fields or bytes: converted, or one sentence and no folder."""

    name = "GGUF headers"
    share = 0.7

    async def attempt(self, draw: random.Random) -> None:
        from orchestra_jax.models.checkpoint.gguf import convert
        from tests.models.checkpoint import test_gguf as made

        folder = self.empty()
        file, key = folder / "a.gguf", draw.choice(list(made.FIELDS))
        values = (None, 0, 3, 2**31, 10**6, "x", "", float("nan"), 1e30, [1], ["a", "b"], made.FIELDS[key])
        change_to = {key: draw.choice(values)} if draw.random() < 0.6 else {}
        content, how = made.written(file, change_to), "as it is"
        header = content.index(b"blk.1.ffn_down") + 60
        for _ in range(draw.choice((0, 1, 1, 2))):
            start, end = sorted(draw.randrange(header) for _ in range(2))
            part, how = change_bytes(draw, content[start:end])
            content = content[:start] + part + content[end:]
        if draw.random() < 0.3:
            at = draw.randrange(header)
            content = content[:at] + draw.choice((2**60, 2**31, 2**64 - 1, 0)).to_bytes(8, "little") + content[at + 8 :]
        file.write_bytes(content)
        self.what = f"{change_to}, {how}"
        try:
            found = convert(file, folder / "out")
        except ValueError as error:
            sentence(error, ValueError)
            holds(not (folder / "out").exists(), "a refused file left a folder")
            return
        holds(found.num_layers == 2 and (folder / "out" / "config.json").is_file(), f"it became {found}")


class WorldFolders(InFolder):
    """World folders with other values, bytes, links and code: a world, or one sentence; code runs in the sandbox."""

    name = "world folders"
    share = 1.0

    async def attempt(self, draw: random.Random) -> None:
        folder = shutil.copytree(SHIPPED / "shop", self.empty() / "shop")
        file = folder / draw.choice(FILES)
        content, how = file.read_bytes(), "as it is"
        if file.suffix == ".json" and draw.random() < 0.7:
            value, path = change(draw, json.loads(content))
            content, how = json.dumps(value).encode(), str(path)
        elif file.suffix == ".jsonl" and draw.random() < 0.7:
            lines = content.splitlines()[: draw.randint(1, 5)]
            value, path = change(draw, json.loads(lines[0]))
            content, how = b"\n".join([json.dumps(value).encode(), *lines[1:]]), str(path)
        elif draw.random() < 0.8:
            content, how = change_bytes(draw, content)
        file.write_bytes(content)
        if draw.random() < 0.1:
            file.unlink()
            file.symlink_to(draw.choice(("/etc/passwd", "/dev/zero", str(SHIPPED / "shop" / file.name), "nowhere")))
            how = f"a link to {file.readlink()}"
        self.what = f"{file.name}: {how}"
        try:
            if file.name == "tools.py":
                isolation = "auto" if available() else "none"
                found = await asyncio.to_thread(load, folder, trusted=False, isolation=isolation)
                tasks = found.tasks
                found.world.close()
            else:
                tasks = read(folder, trusted=False).tasks
        except BadWorld as error:
            sentence(error, BadWorld)
            return
        holds("link" not in how, "a link is followed")
        for task in tasks:
            holds(all(isinstance(turn.user, str) for turn in task.turns), f"a task {ascii(task)[:300]}")
            [json.dumps(dict(call.arguments)) for call in task.goal.calls]


class KeptTrajectories(InFolder):
    """Kept trajectories of an evaluation: what is whole is taken over, the rest is put aside and asked again."""

    name = "kept trajectories"

    async def attempt(self, draw: random.Random) -> None:
        file = self.empty() / "held_out.t1.jsonl"
        kept = TrajectoryFile(file, "policy", [TASK], 8)
        for member in range(draw.randint(1, 8)):
            kept.add(trajectory(member).without_ids())
        lines = file.read_bytes().splitlines()
        number = draw.randrange(len(lines))
        value, path = change(draw, json.loads(lines[number]))
        bad, how = (json.dumps(value).encode(), str(path)) if draw.random() < 0.6 else change_bytes(draw, lines[number])
        file.write_bytes(b"\n".join([*lines[:number], bad, *lines[number + 1 :]]) + draw.choice((b"", b"\n")))
        self.what = f"line {number + 1}: {how}: {bad[:200]!r}"
        with contextlib.redirect_stderr(io.StringIO()) as said:
            found = TrajectoryFile(file, "policy", [TASK], 8).found
        whole = {(0, member) for member in range(len(lines)) if member != number}
        holds(whole <= set(found) <= {(0, member) for member in range(8)}, f"taken over: {sorted(found)}")
        for one in found.values():
            holds(math.isfinite(one.cost_usd) and math.isfinite(one.latency_s), f"{one.cost_usd} dollars")
        holds(len(said.getvalue().splitlines()) <= 1, f"no sentence: {said.getvalue()[:300]!r}")
        aside = file.with_name(f"{file.name}.damaged")
        holds(aside.is_file() == bool(said.getvalue()), "what was put aside is not told")


class Tables(InFolder):
    """Recorded tables with other columns, cells and bytes: answers with finite prices, or one sentence."""

    name = "recorded tables"

    async def attempt(self, draw: random.Random) -> None:
        from tests.envs.recorded import test_own_tables as own

        file = self.empty() / f"t.{draw.choice(('csv', 'csv', 'tsv', 'json', 'jsonl', 'parquet'))}"
        rows: list[Any] = own.own_rows()
        names, how = list(rows[0]), []
        for _ in range(draw.randrange(3)):
            row, name = draw.randrange(len(rows)), draw.choice(names)
            value = odd_value(draw, 0) if file.suffix != ".parquet" else draw.choice((None, rows[0][name]))
            rows[row] = rows[row] | {name: value}
            how.append(f"row {row} {name}={ascii(value)[:80]}")
        if draw.random() < 0.3:
            name = draw.choice(names)
            other = draw.choice((*names, "response", "renamed", "", "cost "))
            rows, how = own.renamed(rows, **{name: other}), [*how, f"{name} is {other!r}"]
        try:
            own.write(file, rows)
        except (UnicodeEncodeError, ValueError):  # no file of this form can hold it
            own.write(file, own.own_rows())
        if draw.random() < 0.4:
            content, act = change_bytes(draw, file.read_bytes())
            file.write_bytes(content)
            how.append(act)
        self.what = f"{file.name}: {', '.join(how)}"
        try:
            with contextlib.redirect_stdout(io.StringIO()) as said:
                world = own.world(file)
        except ConfigError as error:
            sentence(error, ConfigError)
            return
        holds("Recorded answers of" in said.getvalue(), "it does not say what was read")
        found = own.read_recording(file)
        for figures in (found.cost_usd, found.seconds):
            holds(not (figures < 0).any() and not (figures > 1e7).any(), "a figure beyond all sense")
        for task in world.held_out(3):
            task.question.encode()


def _installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) for package in packages)


FOREIGN: tuple[type[Kind], ...] = (
    Schemas, *([McpResults] if _installed("mcp") else []), *([GgufFiles] if _installed("gguf") else []), WorldFolders,
    KeptTrajectories, *([Tables] if _installed("pyarrow") else []),
)  # fmt: skip
