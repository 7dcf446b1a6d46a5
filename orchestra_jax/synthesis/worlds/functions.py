"""The tool functions of a synthesised world: planned, written in the form of a demonstration, checked, tried, ruled."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestra_jax.config.synthesis import SynthesisConfig
from orchestra_jax.envs.database.remote import RemoteWorld
from orchestra_jax.envs.database.session import Kind
from orchestra_jax.envs.database.workers.pool import CallTooLong, WorkerLimits, WorldError
from orchestra_jax.synthesis.cast import Cast
from orchestra_jax.synthesis.stages import Row, StageResult, Stages
from orchestra_jax.synthesis.worlds import static
from orchestra_jax.synthesis.worlds.content import listed, schema_text, tables
from orchestra_jax.tools.experts.forms import TEXT, array, form, string
from orchestra_jax.types import InfrastructureError

_NAME = re.compile(r"[a-z][a-z0-9_]{2,40}")
_CODE_S = 1.0  # CPU seconds of a call: generated code has no reason to take long
DEMO = '''@database_tool(Kind.WRITE)
def book_appointment(desk: Desk, car: str, day: str, hours: int = 1) -> dict:
    """Books an appointment for a car and takes its price from the owner's credit.

    Args:
        car: id, such as K12.
        day: ISO day, such as 2025-03-14.
        hours: how long it takes.
    """
    entry = desk.get("cars", car)
    if hours < 1:
        raise ValueError("An appointment takes an hour at least.")
    if date.fromisoformat(day) <= date.fromisoformat(desk.now[:10]):
        raise ValueError("An appointment can be booked from tomorrow on.")
    owner = desk.edit("owners", entry["owner"])
    price = 60 * hours
    if owner["credit"] < price:
        raise ValueError(f"The credit of {owner['name']} does not cover {price} dollars.")
    owner["credit"] -= price
    made = desk.new_id("A", car, day)
    desk.insert("appointments", made, {"car": car, "day": day, "hours": hours})
    return {"appointment": made, "price": price}'''
_RULES = """Rules for a function:
- one function with its decorator, no import and nothing beside it; date, datetime, timedelta and math are there;
- the first argument is desk: Desk; the others have types (str, int, float, bool, Literal, list, dict, or with | None);
- the docstring says in a sentence what it does, and under Args: what each argument is;
- desk.get(table, id) gives an entry to read, desk.edit(table, id) a copy to change in place, desk.rows(table) all
  (id, entry) to search in, after which desk.get is called for what was found; desk.insert(table, id, entry),
  desk.delete(table, id), desk.exists(table, id); desk.new_id(prefix, *content) makes an id; desk.now is the time;
- what a user or agent does wrong raises ValueError with a sentence, before or after changes: they are undone then;
- a missing id raises by itself; no while, no with, no class, no lambda tricks, no names with underscores in front, no
  str.format (f-strings are fine), and no other clock than desk.now;
- it returns a text or JSON."""
_KNOWN_GOOD = '''@database_tool(Kind.GENERIC)
def known_good(desk: Desk) -> str:
    """Does nothing."""
    return ""'''
CODE = form(code={"type": "string", "maxLength": static.MOST_CHARS})
POLICY = form(policy=string(40, 4000))
_FUNCTION = form(name=TEXT, kind={"enum": list(map(str, Kind))}, purpose={"type": "string", "maxLength": 400})


async def make(
    stages: Stages, settings: SynthesisConfig, cast: Cast, schema: Row, entries: Sequence[Row], isolation: str
) -> tuple[list[Row], str]:
    """Return functions {"name", "kind", "code", "description", "parameters"} that load, and the rules of the agent."""

    async def plan(samples: str, out: StageResult) -> None:
        prompt = (
            f"A database for customer service: {schema['about']}\n{schema_text(schema)}\nSome entries:\n{samples}\n\n"
            f"Name up to {settings.functions} functions by which an agent serves customers with it: kind read looks at "
            "entries, write changes them, generic does neither. Each does one thing; together they let an agent look "
            "up, change, add and cancel what the tables hold. Names are like get_owner or cancel_order."
        )
        plan = form(functions=array(_FUNCTION, 1, settings.functions))
        value = await cast.ask("programmer", prompt, plan, check=_plan_flaw)
        for each in value["functions"]:
            out.keep(each)

    async def write(planned: Row, out: StageResult) -> None:
        prompt = (
            f"Write the function {planned['name']} of kind {planned['kind']}: {planned['purpose']}\nIts database: "
            f"{schema['about']}\n{schema_text(schema)}\nSome entries:\n{samples}\n\n{_RULES}\n\nA function of another "
            f"domain, in the form that is wanted:\n{DEMO}"
        )
        value = await cast.ask(
            "programmer", prompt, CODE, check=lambda v: static.fault(v["code"], planned["name"], planned["kind"])
        )
        out.keep({"name": planned["name"], "kind": planned["kind"], "code": value["code"].strip()})

    async def load(functions: Sequence[Row], out: StageResult) -> None:
        await asyncio.to_thread(_try_all, functions, out, schema, entries, isolation)

    async def rule(functions: Sequence[Row], out: StageResult) -> None:
        prompt = (
            f"An agent of customer service has these functions: {schema['about']}\n{signatures(functions)}\n\nWrite "
            "its rules in Markdown, at most 300 words: what it may do and what not, what it has to look at before it "
            "changes something, what it tells the user afterwards. Ask for nothing that the functions cannot do."
        )
        out.keep(await cast.ask("writer", prompt, POLICY))

    samples = listed(entries, 4000)
    planned = (await stages.run("plan", [samples] if entries else [], plan)).rows
    written = (await stages.run("code", planned, write)).rows
    loaded = (await stages.run("loading", [written] if written else [], load)).rows
    rules = (await stages.run("policy", [loaded] if loaded else [], rule)).rows
    return (loaded, rules[0]["policy"]) if rules else ([], "")


def source(functions: Sequence[Row]) -> str:
    """Return the text of tools.py."""
    head = '"""Tools that a model wrote; see README.md."""\n\n' + static.HEAD
    return "\n\n\n".join([head, *(each["code"] for each in functions)]) + "\n"


def remote(
    schema: Row, entries: Sequence[Row], functions: Sequence[Row], policy: str, isolation: str, count: int = 1
) -> RemoteWorld:
    """Start the world in the sandbox; raises WorldError if its code does not load."""
    return RemoteWorld.of_source(
        "synthesised",
        source(functions),
        tables(schema, entries),
        datetime.fromisoformat(schema["now"]),
        policy,
        count=count,
        isolation=isolation,
        limits=WorkerLimits(cpu_s=_CODE_S, load_s=10.0),
    )


def signatures(functions: Sequence[Row]) -> str:
    """Return the functions as an agent sees them, for prompts."""
    return "\n".join(
        f"- {each['name']} ({each['kind']}): {each['description']} Arguments: {json.dumps(each['parameters'])}"
        for each in functions
    )


def _try_all(functions: Sequence[Row], out: StageResult, schema: Row, entries: Sequence[Row], isolation: str) -> None:
    """Keep the functions that load: all of them together, else each that loads alone.

    Raises:
        InfrastructureError: the sandbox does not even load a function that is known to be right.
    """
    try:
        for row in _described(functions, schema, entries, isolation):
            out.keep(row)
        return
    except (WorldError, CallTooLong):
        pass
    except InfrastructureError:
        _described([{"name": "known_good", "kind": "generic", "code": _KNOWN_GOOD}], schema, entries, isolation)
    for function in functions:
        try:
            out.keep(_described([function], schema, entries, isolation)[0])
        except (WorldError, CallTooLong, InfrastructureError) as error:
            out.reject("does not load", f"{function['name']}: {error or 'it takes too long'}", function["code"])


def _described(functions: Sequence[Row], schema: Row, entries: Sequence[Row], isolation: str) -> list[Row]:
    """Return the functions with the descriptions and parameters that the sandbox reads off them."""
    world = remote(schema, entries, functions, "", isolation)
    try:
        specs = world.specs
        return [
            {**each, "description": specs[each["name"]].description, "parameters": specs[each["name"]].parameters}
            for each in functions
        ]
    finally:
        world.close()


def _plan_flaw(value: Mapping[str, Any]) -> str | None:
    names = [each["name"] for each in value["functions"]]
    if bad := [name for name in names if not _NAME.fullmatch(name)]:
        return f"{bad[0]!r} is no name of a function"
    if len(set(names)) < len(names):
        return "two functions have the same name"
    kinds = {each["kind"] for each in value["functions"]}
    return None if {"read", "write"} <= kinds else "at least one function must read and one must write"
