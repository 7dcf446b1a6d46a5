"""Subjects, schema and entries of a domain, and their checks: JSON schema, references, plausibility."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from orchestra_jax.config.synthesis import SynthesisConfig
from orchestra_jax.envs.database.folder import dangling
from orchestra_jax.envs.database.remote import harmless_schema
from orchestra_jax.synthesis.cast import Cast, schema_fault
from orchestra_jax.synthesis.stages import Row, StageResult, Stages
from orchestra_jax.tools.experts.forms import TEXT, array, form, string
from orchestra_jax.tools.schema import checker

_NAME, _ID = re.compile(r"[a-z][a-z0-9_]{0,30}"), re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}")
_TABLES = (2, 6)
_SENTENCE = string(1, 600)
DEMO_SCHEMA = {
    "about": "The desk of a garage: cars, their owners and appointments.",
    "now": "2025-03-10T09:00:00+00:00",
    "tables": {
        "owners": form(name=TEXT, credit={"type": "number", "minimum": 0}),
        "cars": form(owner=TEXT, model=TEXT),
    },
    "references": [["cars", "owner", "owners"]],
}
SCHEMA = form(
    about=_SENTENCE,
    now=TEXT,
    tables={"type": "object", "additionalProperties": {"type": "object"}},
    references={"type": "array", "items": array(TEXT, 3, 3)},
)
DOUBTS = form(implausible={"type": "array", "items": form(table=TEXT, id=TEXT, why=TEXT)})


async def make(stages: Stages, settings: SynthesisConfig, cast: Cast) -> tuple[list[Row], Row, list[Row]]:
    """Return subjects {"subject", "number"}, the schema as in `SCHEMA`, and entries {"number", "table", "id", "entry"}.

    If one of them is empty, those that follow are empty too.
    """
    domain = settings.domain if settings.about is None else f"{settings.domain}: {settings.about}"

    async def subjects(item: str, out: StageResult) -> None:
        prompt = (
            f"A database and tools are made for customer service in the domain {item!r}. List "
            f"{settings.subjects} major subjects of it, each a few words: what customers come with, each different."
        )
        value = await cast.ask("writer", prompt, form(subjects=array(_SENTENCE, 1, settings.subjects)))
        for number, subject in enumerate(dict.fromkeys(map(str.strip, value["subjects"]))):
            out.keep({"number": number, "subject": subject})

    async def schema(named: Sequence[str], out: StageResult) -> None:
        prompt = (
            f"Design the database of customer service in the domain {domain!r}. Its subjects: {'; '.join(named)}. "
            "2 to 6 tables; each maps ids to entries and has a JSON schema of an entry; additionalProperties: false. "
            "References list [table, column, table whose ids the column holds], where a column is a text or a list of "
            "texts. Days and times are ISO texts. now is the time at which everything plays, with its offset, about is "
            f"a sentence.\nAn example of another domain:\n{json.dumps(DEMO_SCHEMA)}"
        )
        out.keep(_cleaned(await cast.ask("writer", prompt, SCHEMA, check=lambda value: schema_flaw(_cleaned(value)))))

    found = (await stages.run("subjects", [domain], subjects)).rows
    schemas = (await stages.run("schema", [[row["subject"] for row in found]] if found else [], schema)).rows
    if not schemas:
        return found, {}, []
    return found, schemas[0], await _entries(stages, settings, cast, found, schemas[0])


async def _entries(
    stages: Stages, settings: SynthesisConfig, cast: Cast, subjects: Sequence[Row], schema: Row
) -> list[Row]:
    entries_form = {
        "type": "object",
        "properties": {
            table: {"type": "object", "additionalProperties": {"type": "object"}} for table in schema["tables"]
        },
        "additionalProperties": False,
    }

    async def write(subject: Row, out: StageResult) -> None:
        prompt = (
            f"Fill a database for customer service: {schema['about']} It plays at {schema['now']}. Write about "
            f"{settings.entries} entries for the subject {subject['subject']!r}, over all tables as needed, as "
            '{table: {id: entry}}. Every id that an entry refers to must be among these entries. Ids are short, like "C'
            f'{subject["number"]}1", and hold {subject["number"]} behind their letters, since other subjects have '
            "their own. Make them as varied as real ones: amounts, days, states; some near a limit.\n"
            f"{schema_text(schema)}"
        )
        value = await cast.ask("writer", prompt, entries_form)
        for table, rows in value.items():
            for name, entry in rows.items():
                out.keep({"number": subject["number"], "table": table, "id": name, "entry": entry})

    async def doubt(rows: Sequence[Row], out: StageResult) -> None:
        prompt = (
            f"These entries are for a database: {schema['about']} It plays at {schema['now']}. Which of them could not "
            "be in the real world: impossible days, amounts without sense, contradictions within an entry or between "
            f"entries? List only clear cases, none if there is none.\n{listed(rows)}"
        )
        value = await cast.ask("checker", prompt, DOUBTS)
        doubts = {(each["table"], each["id"]): each["why"] for each in value["implausible"]}
        for row in rows:
            why = doubts.get((row["table"], row["id"]))
            if why is None:
                out.keep(row)
            else:
                out.reject("implausible", why, row)

    written = (await stages.run("entries", subjects, write)).rows
    fitting = (await stages.run("form", [written], partial(keep_fitting, schema=schema))).rows
    batches = [[row for row in fitting if row["number"] == subject["number"]] for subject in subjects]
    plausible = (await stages.run("plausibility", [part for rows in batches for part in parts(rows)], doubt)).rows
    return (await stages.run("references", [plausible], partial(keep_referring, schema=schema))).rows


async def keep_fitting(rows: Sequence[Row], out: StageResult, schema: Row) -> None:
    """Keep entries that fit their table's schema, have a valid id that is not taken, and repeat no other."""
    seen, contents = set[tuple[str, str]](), set[str]()
    for row in rows:
        key, text = (row["table"], row["id"]), json.dumps([row["table"], row["entry"]], sort_keys=True)
        wrong = schema_fault(row["entry"], schema["tables"][row["table"]])
        if not _ID.fullmatch(row["id"]):
            out.reject("bad id", f"{row['id']!r} is no id.", row)
        elif key in seen:
            out.reject("id used twice", f"There already is {row['id']} in {row['table']}.", row)
        elif wrong:
            out.reject("does not fit the schema", f"{row['table']} {row['id']}: {wrong}.", row)
        elif text in contents:
            out.reject("near-duplicate", f"{row['table']} {row['id']} repeats another entry.", row)
        else:
            seen.add(key)
            contents.add(text)
            out.keep(row)


async def keep_referring(rows: Sequence[Row], out: StageResult, schema: Row) -> None:
    """Keep entries whose references lead to entries that are kept too."""
    kept = list(rows)
    while bad := dict(dangling(tables(schema, kept), schema["references"])):
        for row in kept:
            if (row["table"], row["id"]) in bad:
                out.reject("refers to nothing", bad[row["table"], row["id"]], row)
        kept = [row for row in kept if (row["table"], row["id"]) not in bad]
    for row in kept:
        out.keep(row)


def tables(schema: Row, entries: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return the database of these entries."""
    found: dict[str, dict[str, Any]] = {table: {} for table in schema["tables"]}
    for row in entries:
        found[row["table"]][row["id"]] = row["entry"]
    return found


def schema_text(schema: Row) -> str:
    """Return tables and references for a prompt."""
    return json.dumps({"tables": schema["tables"], "references": schema["references"]}, ensure_ascii=False)


def listed(rows: Sequence[Row], most: int = 12_000) -> str:
    """Return entries for a prompt, one to a line, up to `most` characters."""
    lines, size = list[str](), 0
    for row in rows:
        line = f"{row['table']} {row['id']}: {json.dumps(row['entry'], ensure_ascii=False)}"
        size += len(line)
        if size > most:
            break
        lines.append(line)
    return "\n".join(lines)


def parts(rows: Sequence[Row]) -> list[list[Row]]:
    """Return entries in parts that `listed` shows whole."""
    found = list[list[Row]]()
    for row in rows:
        if found and listed([*found[-1], row]).count("\n") == len(found[-1]):
            found[-1].append(row)
        else:
            found.append([row])
    return found


def schema_flaw(value: Mapping[str, Any]) -> str | None:
    """Return a clause on the fault of a schema that fits `SCHEMA`, or None."""
    made = value["tables"]
    if not _TABLES[0] <= len(made) <= _TABLES[1]:
        return f"there must be {_TABLES[0]} to {_TABLES[1]} tables, not {len(made)}"
    for table, entry in made.items():
        if not _NAME.fullmatch(table):
            return f"the table {table!r} needs a name of lower-case letters"
        try:
            checker(entry)
        except ValueError as error:
            return f"the schema of {table} cannot be used, {error}"
        if (
            entry.get("type") != "object"
            or not entry.get("properties")
            or entry.get("additionalProperties") is not False
        ):
            return f"the schema of {table} must be an object with properties and additionalProperties false"
        if "$ref" in json.dumps(entry):
            return f"the schema of {table} must say everything in its place, without $ref"
        if lacking := sorted(set(entry.get("required", ())) - set(entry["properties"])):
            return f"the schema of {table} requires {lacking[0]} and does not define it"
    for table, column, other in value["references"]:
        if table not in made or other not in made or column not in made[table]["properties"]:
            return f"the reference {[table, column, other]} names what is not there"
        if "string" not in json.dumps(made[table]["properties"][column]):
            return f"{table}.{column} must hold ids, which are texts"
    try:
        aware = datetime.fromisoformat(value["now"]).tzinfo is not None
    except ValueError:
        aware = False
    return None if aware else "now must be an ISO time with its offset"


def _cleaned(value: Any) -> Row:
    """Return the schema without keywords that could take for ever or read a file."""
    return {**value, "tables": {table: harmless_schema(entry) for table, entry in value["tables"].items()}}
