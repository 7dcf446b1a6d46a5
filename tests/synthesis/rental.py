"""Texts of scripted models about a bicycle rental; a comment on each fault names its consequence."""

import json
import re
from typing import Any

from tests.synthesis.server import asked

SUBJECTS = ["borrowing bicycles", "accounts and credit"]
NOW = "2025-06-02T08:00:00+00:00"


def _object(**properties: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMA = {
    "about": "A rental of bicycles.",
    "now": NOW,
    "tables": {
        "riders": _object(name="string", credit="number"),
        "bikes": _object(model="string", price="number", rider=["string", "null"]),
        "repairs": _object(bike="string", fault="string"),
    },
    "references": [["bikes", "rider", "riders"], ["repairs", "bike", "bikes"]],
}
ENTRIES = [
    {
        "riders": {
            "R01": {"name": "Ada", "credit": 50},
            "R02": {"name": "Bo", "credit": 5},
            "R 3": {"name": "Cy", "credit": 1},  # bad id
            "R04": {"name": "Di", "credit": "much"},  # does not fit the schema
            "R05": {"name": "Ed", "credit": -1_000_000},  # implausible
        },
        "bikes": {
            "B01": {"model": "city", "price": 8, "rider": None},
            "B02": {"model": "cargo", "price": 20, "rider": "R05"},  # refers to nothing, once R05 has gone
            "B03": {"model": "city", "price": 8, "rider": None},  # repeats B01
        },
        "repairs": {"P01": {"bike": "B02", "fault": "brake"}},  # refers to nothing, once B02 has gone
    },
    {
        "riders": {"R11": {"name": "Flo", "credit": 30}, "R01": {"name": "Gus", "credit": 3}},  # R01: id used twice
        "bikes": {"B11": {"model": "race", "price": 12, "rider": "R11"}},
        "repairs": {},
    },
]
CODE = {
    "get_rider": '''@database_tool(Kind.READ)
def get_rider(desk: Desk, rider: str) -> dict:
    """Shows a rider: name and credit."""
    return desk.get("riders", rider)''',
    "get_bike": '''@database_tool(Kind.READ)
def get_bike(desk: Desk, bike: str) -> dict:
    """Shows a bicycle: model, price and who has it."""
    return desk.get("bikes", bike)''',
    "rent_bike": '''@database_tool(Kind.WRITE)
def rent_bike(desk: Desk, rider: str, bike: str) -> str:
    """Rents a bicycle to a rider, who pays its price."""
    wanted, payer = desk.edit("bikes", bike), desk.edit("riders", rider)
    if wanted["rider"] is not None:
        raise ValueError(f"{bike} is out.")
    if payer["credit"] < wanted["price"]:
        raise ValueError(f"{rider} has {payer['credit']} dollars only.")
    payer["credit"] -= wanted["price"]
    wanted["rider"] = rider
    return f"{bike} is yours; {payer['credit']} dollars are left."''',
    "return_bike": '''@database_tool(Kind.WRITE)
def return_bike(desk: Desk, bike: str) -> str:
    """Takes a bicycle back."""
    desk.edit("bikes", bike)["rider"] = None
    return f"{bike} is back."''',
    "audit": '''@database_tool(Kind.READ)
def audit(desk: Desk) -> str:
    """Counts for ever."""
    total = 0
    for number in range(10**12):
        total += number
    return str(total)''',
    "greet": '''@database_tool(Kind.GENERIC)
def greet(desk: Desk) -> str:
    """Greets the user."""
    return "Hello."''',
    # Never mended: rejected.
    "export": '''@database_tool(Kind.READ)
def export(desk: Desk) -> str:
    """Writes everything to a file."""
    return str(open("/tmp/stolen"))''',
    # Passes the first wall and does not load: a tool's arguments need a type that a schema can say.
    "search": '''@database_tool(Kind.READ)
def search(desk: Desk, words: Any) -> str:
    """Searches for anything."""
    return "nothing"''',
}
KINDS = {name: re.search(r"Kind\.(\w+)", code)[1].lower() for name, code in CODE.items()}


def turn(user: str, *calls: tuple[str, dict[str, Any]], facts: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"user": user, "calls": [{"name": n, "arguments": a} for n, a in calls], "facts": list(facts)}


RENT = ("rent_bike", {"rider": "R01", "bike": "B01"})
# By wish: the turns of its task.
TASKS = {
    "Rent a bicycle": [turn("I am R01 and take B01.", RENT, facts=("42",))],  # kept; the solver succeeds half the time
    "Hear the price": [turn("What does B11 cost?", ("get_bike", {"bike": "B11"}), facts=("12",))],  # kept
    "Hear the same price": [turn("what does B11 COST", ("get_bike", {"bike": "B11"}), facts=("12",))],  # near-duplicate
    "Rent without money": [turn("R02 wants B01 now.", ("rent_bike", {"rider": "R02", "bike": "B01"}))],  # raises
    "Be counted": [turn("Please audit everything for me.", ("audit", {}))],  # the loop is stopped: raises
    "Guess a riddle": [turn("Look at R11 and tell me the secret.", ("get_rider", {"rider": "R11"}), facts=("blue",))],
    "Be greeted": [turn("Say hello to me.", ("greet", {}))],  # solved by doing nothing
    "Be told a number": [turn("Greet me and say 7.", ("greet", {}), facts=("7",))],  # solved without a call
}
WISHES = [list(TASKS)[:4], list(TASKS)[4:]]
HARDER = {
    "I am R01 and take B01.": [
        turn("I am R01. What do I have?", ("get_rider", {"rider": "R01"}), facts=("50",)),
        turn("Then I take B01.", RENT, facts=("42",)),
    ]
}


def reply(body: dict[str, Any]) -> str:
    """Return the answer of a scripted model."""
    if not body["messages"][0]["content"].startswith("You help to build data sets"):
        return solver(body)
    text, first = asked(body), len(body["messages"]) == 2
    if "major subjects" in text:
        return json.dumps({"subjects": SUBJECTS})
    if text.startswith("Design the database"):
        wrong = {**SCHEMA, "references": [["bikes", "owner", "riders"]]}
        return json.dumps(wrong if first else SCHEMA)  # asked again with what was wrong
    if text.startswith("Fill a database"):
        return json.dumps(ENTRIES[next(n for n, each in enumerate(SUBJECTS) if repr(each) in text)])
    if "Which of them could not be" in text:
        doubts = [{"table": "riders", "id": "R05", "why": "Nobody owes a million."}] if "R05" in text else []
        return json.dumps({"implausible": doubts})
    if "Name up to" in text:
        return json.dumps(
            {"functions": [{"name": n, "kind": KINDS[n], "purpose": "What its name says."} for n in CODE]}
        )
    if found := re.match(r"Write the function (\w+) of", text):
        unsafe = "import os\n" + CODE["get_bike"]
        return json.dumps({"code": unsafe if found[1] == "get_bike" and first else CODE[found[1]]})
    if "its rules in Markdown" in text:
        return json.dumps({"policy": "Do what the rider asks for, and tell them what it comes to. Nothing twice."})
    if "different things that users want" in text:
        return json.dumps({"intents": WISHES[next(n for n, each in enumerate(SUBJECTS) if repr(each) in text)]})
    if found := re.search(r"in which a user wants this: (.*)\n", text):
        return json.dumps({"turns": TASKS[found[1]]})
    old = next((user for user in HARDER if user in text), None)
    task = HARDER[old] if old else next(turns for turns in TASKS.values() if turns[0]["user"] in text)
    return json.dumps({"turns": task})  # the same again is no harder: rejected


ANSWERS = {turns[0]["user"]: turns for turns in [*TASKS.values(), *HARDER.values()]}
GUESSED = {"Greet me and say 7.": "Here you are: 7."}


def solver(body: dict[str, Any]) -> str:
    """Play the golden calls and tell their results, in every second attempt, with some faults."""
    said = [message["content"] for message in body["messages"]]
    turns = next(turns for user, turns in ANSWERS.items() if user == said[1])
    if said[1] in GUESSED:
        return GUESSED[said[1]]
    heard = said[-1]
    current = next((each for each in turns if each["user"] == heard), None)
    if current is not None and current["calls"]:
        calls = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in current["calls"])
        return f"<think>I look first.</think>{calls}"
    return f"Done: {heard}"
