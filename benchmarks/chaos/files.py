"""Files that a disk, a neighbour or a user has changed: checkpoints, bills, records, settings, rows of data."""

import contextlib
import json
import math
import random
import shutil
import sqlite3
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import hydra
import jax
import numpy as np

from benchmarks.chaos.faults import Kind, holds, sentence
from benchmarks.chaos.odd import change, change_bytes, cut, flip, insert, odd_text, odd_value
from orchestra_jax.config import cli, errors
from orchestra_jax.config.checks import load
from orchestra_jax.config.schema import BudgetConfig, ConfigError
from orchestra_jax.data.rows import BadRow
from orchestra_jax.data.sources import FORMATS, Skipped, load_tasks
from orchestra_jax.money.bill import read_bill
from orchestra_jax.money.journal import Journal
from orchestra_jax.money.replay import Replay, ReplayBroken
from orchestra_jax.money.run_budget import RunBudget
from orchestra_jax.money.store import Recorded
from orchestra_jax.training.checkpointing import Checkpoints
from orchestra_jax.training.resuming import restored_arrays
from orchestra_jax.types import ReplayMiss, Usage
from tests.config.test_odd_settings import CONF, KEYS, ODD, outcome
from tests.data.test_odd_rows import GOOD, ODD_LINES
from tests.data.test_odd_rows import KEYS as FIELDS
from tests.training.test_damaged_checkpoints import (
    ARRAYS,
    DAMAGE,
    a_file,
    emptied,
    hollow,
    largest,
    removed,
    scribbled,
    truncated,
    zeroed,
)  # fmt: skip


class InFolder(Kind):
    """Faults of files: each attempt finds an empty folder."""

    async def __aenter__(self) -> "InFolder":
        self._root = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.folder = self._root / "files"
        return self

    async def __aexit__(self, *error: object) -> None:
        shutil.rmtree(self._root)

    def empty(self) -> Path:
        """The folder, without what the last attempt left."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        return self.folder


class DamagedCheckpoints(InFolder):
    """A run's newest checkpoints: the arrays of one that is whole, to the bit, or one sentence."""

    name = "damaged checkpoints"
    share = 0.7

    async def __aenter__(self) -> "DamagedCheckpoints":
        await super().__aenter__()
        checkpoints = Checkpoints(self._root / "whole" / "checkpoints", keep=2)
        for step in (1, 2):
            checkpoints.save(step, jax.tree.map(lambda x, by=step: x * by, ARRAYS), {"step": step})
        checkpoints.close()
        return self

    async def attempt(self, draw: random.Random) -> None:
        run = self.empty() / "run"
        shutil.copytree(self._root / "whole", run)
        done = [self._damage(draw, run / "checkpoints") for _ in range(draw.choice((1, 1, 1, 2, 4)))]
        self.what = ", ".join(done)
        touched = {part.split()[-1].split("/")[0] for part in done}
        try:
            checkpoints = Checkpoints(run / "checkpoints", 2)
            meta = checkpoints.peek()
            step = 0 if meta is None else meta["step"]
            restored = restored_arrays(checkpoints, ARRAYS) if meta is not None else {}
            checkpoints.close()
        except ConfigError as error:
            sentence(error, ConfigError)
            holds({"1", "2"} <= touched, f"refused, though a checkpoint is whole: {error}")
            return
        holds(step in (1, 2), f"the run would begin anew ({meta})")
        holds(step == 2 or "2" in touched, "a whole checkpoint was left aside")
        for name, array in ARRAYS.items():
            wanted = np.asarray(array * step)
            holds(np.asarray(restored[name]).tobytes() == wanted.tobytes(), f"wrong values in {name} of {step}")

    def _damage(self, draw: random.Random, checkpoints: Path) -> str:
        """What was done, the path within `checkpoints` last."""
        step = checkpoints / draw.choice(("1", "2", "2", "2"))
        listed = sorted(file for file in step.rglob("*") if file.is_file()) if step.is_dir() else []
        if not listed:
            return f"nothing to {step.name}"
        if draw.random() < 0.2:
            act, where = draw.choice(DAMAGE)
            with contextlib.suppress(OSError, ValueError):  # damaged too much before
                place = where(step) if where is not largest else draw.choice(listed)
                act(place)
            return f"{act.__name__} {place.relative_to(checkpoints)}"
        file = draw.choice(listed)
        if draw.random() < 0.3:
            act = draw.choice((truncated, zeroed, emptied, scribbled, removed))
            act(file)
            return f"{act.__name__} {file.relative_to(checkpoints)}"
        if draw.random() < 0.15:
            other = draw.choice(listed)
            content = file.read_bytes()
            file.write_bytes(other.read_bytes())
            other.write_bytes(content)
            return f"swapped {other.relative_to(step)} and {file.relative_to(checkpoints)}"
        if draw.random() < 0.15:
            place = draw.choice((hollow, a_file))
            folder = draw.choice([file.parent, step])
            place(folder)
            return f"{place.__name__} {folder.relative_to(checkpoints)}"
        if draw.random() < 0.15:
            foreign = draw.choice((checkpoints, step, file.parent)) / draw.choice(
                ("notes.txt", "3", "x.tmp", ".nfs1", "99")
            )
            if not foreign.exists():
                foreign.write_bytes(draw.randbytes(30))
            return f"a foreign file {foreign.relative_to(checkpoints)}"
        content, how = change_bytes(draw, file.read_bytes())
        file.write_bytes(content)
        return f"{how} {file.relative_to(checkpoints)}"


class Bills(InFolder):
    """The bill of a run, torn, changed or mixed up: what was spent, never less, or one sentence."""

    name = "damaged bills"

    async def attempt(self, draw: random.Random) -> None:
        folder = self.empty()
        file = folder / "spent.jsonl"
        journal = Journal(file)
        for _ in range(draw.randint(1, 12)):
            usd = draw.choice((0.0, 0.1, 1e-9, draw.random()))
            call = journal.reserve(Usage("gpt-5", prompt_tokens=draw.randrange(10**6), cost_usd=usd))
            if draw.random() < 0.8:
                journal.end(call, draw.choice((None, Usage("gpt-5", prompt_tokens=7, cost_usd=usd / 2))))
        journal.close()
        content = file.read_bytes()
        if draw.random() < 0.25:  # a kill in the middle of a write
            changed, how = cut(draw, content), "torn"
        elif draw.random() < 0.5:
            lines = content.splitlines()
            number = draw.randrange(len(lines))
            line, path = change(draw, json.loads(lines[number]))
            lines[number] = json.dumps(line).encode()
            if draw.random() < 0.3:
                draw.shuffle(lines)
            changed, how = b"\n".join(lines) + b"\n", f"line {number + 1} {path}"
        else:
            changed, how = change_bytes(draw, content)
        file.write_bytes(changed)
        self.what = f"{how}: {changed[:300]!r}"
        floor = _worst_of_whole_lines(changed) if how == "torn" else 0
        try:
            read_bill(file)
            money = RunBudget(BudgetConfig(run_usd=draw.choice((None, 5.0))), folder)
        except ConfigError as error:
            sentence(error, ConfigError)
            holds(how != "torn", f"a torn bill is refused: {error}")
            return
        spent = money.spent
        money.close()
        holds(math.isfinite(spent.usd) and spent.usd >= 0, f"{spent.usd} dollars are spent")
        holds(isinstance(spent.tokens, int) and spent.tokens >= 0, f"{spent.tokens} tokens are spent")
        holds(spent.usd >= float(floor) * (1 - 1e-12), f"{float(floor)} dollars left the house, {spent.usd} are spent")


def _worst_of_whole_lines(content: bytes) -> Fraction:
    """What was paid, and the worst cases without an end, by the lines that are whole."""
    calls: dict[int, Fraction] = {}
    for line in map(json.loads, content.split(b"\n")[:-1]):
        amount = line.get("worst") or line.get("paid") or [0, 0]
        calls[line["call"]] = Fraction(amount[0])
    return sum(calls.values(), Fraction(0))


class Records(InFolder):
    """A record that was changed, cut, locked or replaced: answers, or one sentence, and no call is paid twice."""

    name = "damaged records"
    share = 0.5

    async def __aenter__(self) -> "Records":
        await super().__aenter__()
        self._whole, self._paid = self._root / "whole.db", 0
        replay = Replay(self._whole, "record")
        for number in range(40):
            await replay.call("chat", {"q": number}, lambda number=number: self._answer(number))
        replay.close()
        return self

    async def _answer(self, number: int) -> Recorded:
        self._paid += 1
        return Recorded({"text": f"{number} " * 300}, (Usage("gpt-5", cost_usd=0.5),))

    async def attempt(self, draw: random.Random) -> None:
        file = self.empty() / "calls.db"
        content, how = self._whole.read_bytes(), "whole"
        for _ in range(draw.choice((0, 1, 1, 1, 3))):
            content, how = change_bytes(draw, content)
        file.write_bytes(content)
        beside = draw.choice(("", "", "-wal", "-journal", ".unsaved.jsonl"))
        if beside:
            file.with_name(file.name + beside).write_bytes(
                draw.choice((b"", draw.randbytes(200), b'{"key": "ab', content[:4096]))
            )
        row = ""
        if draw.random() < 0.4:
            row = json.dumps(change(draw, {"value": {"text": "x"}, "usage": [{"name": "gpt-5"}], "is_error": False})[0])
            with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(file)) as database:
                database.execute("UPDATE calls SET recorded = ?", (row,))
                database.commit()
        mode = draw.choice(("record", "replay", "replay_or_record"))
        self.what, self._paid = f"{mode}, {how}, beside it {beside!r}, rows {row[:200]}", 0
        try:
            replay = Replay(file, mode)
        except (ValueError, ReplayMiss, FileNotFoundError) as error:
            sentence(error, ValueError, ReplayMiss, ReplayBroken, FileNotFoundError)
            return
        try:
            for number in range(40):
                found = await replay.call("chat", {"q": number}, lambda number=number: self._answer(number))
                holds(isinstance(found, Recorded), f"an answer {found!r}")
        except ReplayMiss as error:
            sentence(error, ReplayMiss, ReplayBroken)
        finally:
            replay.close()
        holds(self._paid <= 40 and (mode != "replay" or not self._paid), f"{self._paid} of 40 calls were paid")


class Settings(Kind):
    """Values that no setting has, as they are and as a command line writes them: a valid run, or one sentence each."""

    name = "odd settings"
    share = 1.5

    async def __aenter__(self) -> "Settings":
        cli.register()
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            self._base = hydra.compose("config")
        return self

    async def attempt(self, draw: random.Random) -> None:
        key = draw.choice(KEYS)
        if draw.random() < 0.6:
            value = draw.choice((draw.choice(ODD), odd_value(draw), draw.randint(-(2**70), 2**70), draw.uniform(-9, 9)))
            self.what = f"{key}={ascii(value)[:200]}"
            found = outcome(self._base, key, value)
            holds(all(len(line) < 1500 for line in (found or "").splitlines()), "a sentence without end")
            return
        value = draw.choice((odd_text(draw), ascii(odd_value(draw)), "[" * 50, "${x}", "{a: 1}", "'", "null", "1e999"))
        override = draw.choice((f"{key}={value}", f"+{key}={value}", f"~{key}", f"{key[1:]}={value}", f"{value}={key}",
                                f"++{key}.x={value}", f"{key.partition('.')[0]}={value}", value))  # fmt: skip
        self.what = ascii(override)[:200]
        try:
            with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
                load(hydra.compose("config", [override]))
        except Exception as error:  # as `cli.user_errors` sees it
            holds(errors.is_users_error(error), f"with a trace: {type(error).__name__}: {str(error)[:300]!r}")
            for line in errors.explain_error(error).splitlines():
                holds(0 < len(line) < 1500, f"a sentence without end: {line[:200]!r}")


class Rows(InFolder):
    """Rows that no question can be made of: questions, or a sentence with file and place; with `skip`, a count."""

    name = "odd rows"
    share = 1.5

    async def attempt(self, draw: random.Random) -> None:
        folder = self.empty()
        form = draw.choice(("jsonl", "jsonl", "json", "tsv", *(["parquet"] if PARQUET else [])))
        file = folder / f"f.{form}"
        rows: list[Any] = [GOOD]
        for _ in range(draw.randint(1, 4)):
            row = {draw.choice(FIELDS): odd_value(draw) for _ in range(draw.randrange(6))}
            rows.append(draw.choice((row, {**GOOD, "id": str(draw.random()), **row}, odd_value(draw))))
        if form == "parquet":
            _write_parquet(draw, file, rows)
            how = "as it is"
        else:
            lines = [json.dumps(row, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass") for row in rows]
            if draw.random() < 0.3:
                lines.append(draw.choice(list(ODD_LINES.values()))[0])
            joint = {"jsonl": b"\n", "json": b",\n", "tsv": b"\n"}[form]
            content = joint.join(lines)
            if form == "json":
                content = b"[" + content + b"]"
            if form == "tsv":
                content = b"question\tanswer\tid\n" + content.replace(b", ", b"\t")
            how = "as it is"
            if draw.random() < 0.4:
                content, how = draw.choice((flip, insert, cut))(draw, content), "changed"
            file.write_bytes(content)
        if form == "parquet" and draw.random() < 0.5:
            content, how = change_bytes(draw, file.read_bytes())
            file.write_bytes(content)
        kind = draw.choice(("auto", "jsonl", *FORMATS))
        self.what = f"{form}, {kind}, {how}: {file.read_bytes()[:300]!r}"
        for skipped in (None, Skipped()):
            try:
                questions = load_tasks(file, kind, skipped=skipped)
            except ValueError as error:
                said = sentence(error, ValueError, BadRow)
                holds("f." in said, f"no file in {said!r}")
                continue
            for question in questions:
                " ".join([question.id, question.question, *question.answer, question.family]).encode()
                holds(bool(question.question.strip()) and all(question.answer), f"a question {question}")


try:
    import pyarrow
    import pyarrow.parquet

    PARQUET = True
except ImportError:
    PARQUET = False


def _write_parquet(draw: random.Random, file: Path, rows: list[Any]) -> None:
    """The rows that a table can have; where their types do not fit, as texts."""
    kept = [row for row in rows if isinstance(row, dict)]
    names = sorted({name for row in kept for name in row})
    columns = {}
    for name in names:
        values = [row.get(name) for row in kept]
        try:
            columns[name] = pyarrow.array(values)
            # An object without any field is an array, but parquet has no place for it.
            pyarrow.parquet.write_table(pyarrow.table({name: columns[name]}), pyarrow.BufferOutputStream())
        except (pyarrow.ArrowException, OverflowError, ValueError, TypeError):
            columns[name] = pyarrow.array([ascii(value).encode() if draw.random() < 0.5 else None for value in values])
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
