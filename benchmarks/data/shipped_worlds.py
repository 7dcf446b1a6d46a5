"""Writes the databases and tasks of the shipped worlds from intents: `python -m benchmarks.data.shipped_worlds`.

An intent says in some wordings what a user asks, the calls that do it and the facts to be told, for entries drawn from
the database. A task is one intent or two in a row; what the second draws, the first left alone.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.envs.database import folder, golden
from orchestra_jax.envs.database.facts import unsaid
from orchestra_jax.envs.database.folder import Exchange, TaskRow
from orchestra_jax.envs.database.session import World
from orchestra_jax.types import ToolCall

HERE = Path(folder.__file__).with_name("shipped")
TASKS = {"train": 360, "eval": 60}
FIRST = "Ada Ben Cleo Dan Eve Finn Gus Hana Ivo June Kim Leo Mia Ned Olga Paul Rosa Sam Tess Uma".split()
LAST = "Moss Hale Reed Stone Vale Wood Lake Marsh Ford Dale Frost Glen".split()
STREETS = "Hill Road|Mill Lane|Park Street|River Walk|Castle Square|Station Road|Garden Lane|Harbour Street".split("|")
TITLES = [
    f"The {a} {b}" for a in "Iron Silver Quiet Lost Burning Hidden".split() for b in "Gate River Garden Crown".split()
]
PRODUCTS = (
    "lamp chair kettle scarf clock basket mirror pillow ladder carpet bottle towel umbrella candle shelf vase".split()
)
FIELDS = "skin eyes heart teeth back ears knees lungs".split()

Tables = dict[str, dict[str, Any]]
Drawn = tuple[str, list[ToolCall], list[str]]  # the user's words, the golden calls, the facts


def calls(*named: tuple[str, dict[str, str]]) -> list[ToolCall]:
    return [ToolCall(name, arguments) for name, arguments in named]


def pick(tables: Tables, table: str, rng: np.random.Generator, used: set[str], good: Callable[[Any], bool]) -> str:
    """An id of an entry that is `good` and that nothing before in the task was about."""
    names = [name for name, entry in tables[table].items() if good(entry) and name not in used]
    if not names:
        raise LookupError(table)
    name = names[int(rng.integers(len(names)))]
    used.add(name)
    return name


def day(iso: str) -> str:
    found = date.fromisoformat(iso[:10])
    return f"{found.day} {found:%B}"


def hour(iso: str) -> str:
    return f"{day(iso)} at {int(iso[11:13])}"


def any_of(rng: np.random.Generator, *wordings: str) -> str:
    return wordings[int(rng.integers(len(wordings)))]


def anything(entry: Any) -> bool:
    return True


# --- the library ---


def library(rng: np.random.Generator) -> Tables:
    return {
        "members": {
            f"M{n}": {"name": f"{FIRST[n % 20]} {LAST[n * 7 % 12]}", "fines": int(rng.integers(1, 30)) * (n % 2)}
            for n in range(10, 70)
        },
        "books": {
            f"B{n}": {"title": title, "copies": int(rng.integers(1, 5)) * (n % 3 > 0), "reserved": []}
            for n, title in enumerate(TITLES, 10)
        },
        "loans": {
            f"L{n}": {
                "member": f"M{int(rng.integers(10, 70))}",
                "book": f"B{int(rng.integers(10, 34))}",
                "due": (date(2025, 3, 11) + timedelta(int(rng.integers(0, 20)))).isoformat(),
                "renewals": int(rng.integers(0, 2)),
            }
            for n in range(10, 90)
        },
    }


def due(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    loan = pick(tables, "loans", rng, used, anything)
    words = any_of(rng, f"When is my loan {loan} due?", f"Until when can I keep {loan}?")
    return words, calls(("get_loan", {"loan": loan})), [day(tables["loans"][loan]["due"])]


def renew(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    loan = pick(tables, "loans", rng, used, anything)
    until = (date.fromisoformat(tables["loans"][loan]["due"]) + timedelta(21)).isoformat()
    words = any_of(rng, f"Please renew my loan {loan}.", f"I need {loan} for longer, please renew it.")
    return words, calls(("renew_loan", {"loan": loan})), [day(until)]


def owed(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    member = pick(tables, "members", rng, used, lambda entry: entry["fines"])
    words = any_of(rng, f"I am {member}. What fines do I owe?", f"How much do I have to pay? I am {member}.")
    return words, calls(("get_member", {"member": member})), [f"{tables['members'][member]['fines']} dollars"]


def pay(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    member = pick(tables, "members", rng, used, lambda entry: entry["fines"])
    words = any_of(rng, f"I am {member} and pay my fines.", f"Please take the payment of all fines of {member}.")
    return words, calls(("pay_fines", {"member": member})), [f"{tables['members'][member]['fines']} dollars"]


def lend(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    member, book = pick(tables, "members", rng, used, anything), pick(tables, "books", rng, used, lambda e: e["copies"])
    title = tables["books"][book]["title"]
    words = any_of(rng, f"I am {member}, lend me {title}.", f"Can I have {title}? I am {member}.")
    return words, calls(("find_book", {"title": title}), ("lend_book", {"member": member, "book": book})), ["31 March"]


def reserve(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    member = pick(tables, "members", rng, used, anything)
    book = pick(tables, "books", rng, used, lambda entry: not entry["copies"])
    title = tables["books"][book]["title"]
    # The same words as for a book with copies: what to do depends on what is found.
    words = any_of(rng, f"I am {member}, lend me {title}.", f"Can I have {title}? I am {member}.")
    return (
        words,
        calls(("find_book", {"title": title}), ("reserve_book", {"member": member, "book": book})),
        ["place 1"],
    )


# --- the clinic ---


def clinic(rng: np.random.Generator) -> Tables:
    times = [f"2025-03-{11 + n // 8:02d}T{9 + n % 8:02d}:00" for n in range(88)]
    taken = rng.random(88) < 0.6
    return {
        "patients": {
            f"P{n}": {"name": f"{FIRST[n * 3 % 20]} {LAST[n % 12]}", "owes": int(rng.integers(1, 60)) * (n % 2)}
            for n in range(10, 70)
        },
        "doctors": {
            f"D{n}": {"name": f"{FIRST[n * 7 % 20]} {LAST[n * 5 % 12]}", "field": field}
            for n, field in enumerate(FIELDS, 10)
        },
        "slots": {
            f"S{n}": {"doctor": f"D{10 + (n * 5) % 8}", "time": time, "taken": bool(busy)}
            for n, (time, busy) in enumerate(zip(times, taken, strict=True), 10)
        },
        "appointments": {
            f"A{n}": {"patient": f"P{int(rng.integers(10, 70))}", "slot": f"S{slot}"}
            for n, slot in enumerate((slot for slot, busy in enumerate(taken, 10) if busy), 10)
        },
    }


def first_free(tables: Tables, doctor: str) -> str:
    return next(s for s, each in tables["slots"].items() if each["doctor"] == doctor and not each["taken"])


def when(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    appointment = pick(tables, "appointments", rng, used, anything)
    slot = tables["slots"][tables["appointments"][appointment]["slot"]]
    words = any_of(rng, f"When is my appointment {appointment}?", f"On which day do I have {appointment}?")
    return words, calls(("get_appointment", {"appointment": appointment})), [hour(slot["time"])]


def cancel(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    appointment = pick(tables, "appointments", rng, used, anything)
    slot = tables["slots"][tables["appointments"][appointment]["slot"]]
    words = any_of(rng, f"Please cancel my appointment {appointment}.", f"I cannot come to {appointment}, cancel it.")
    return words, calls(("cancel_appointment", {"appointment": appointment})), [hour(slot["time"])]


def book(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    patient = pick(tables, "patients", rng, used, anything)
    doctor = pick(tables, "doctors", rng, used, anything)
    field, slot = tables["doctors"][doctor]["field"], first_free(tables, doctor)
    words = any_of(
        rng, f"I am {patient} and need a doctor for {field}.", f"My {field} hurt. I am {patient}, book me in."
    )
    wanted = calls(("find_doctor", {"field": field}), ("book_slot", {"patient": patient, "slot": slot}))
    return words, wanted, [hour(tables["slots"][slot]["time"])]


def move(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    appointment = pick(tables, "appointments", rng, used, anything)
    slot = pick(tables, "slots", rng, used, lambda entry: not entry["taken"])
    words = any_of(
        rng, f"Please move {appointment} to slot {slot}.", f"Can I have slot {slot} instead of {appointment}?"
    )
    wanted = calls(("move_appointment", {"appointment": appointment, "slot": slot}))
    return words, wanted, [hour(tables["slots"][slot]["time"])]


def bill(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    patient = pick(tables, "patients", rng, used, lambda entry: entry["owes"])
    words = any_of(rng, f"What is my bill? I am {patient}.", f"I am {patient}. How much do I have to pay?")
    return words, calls(("get_bill", {"patient": patient})), [f"{tables['patients'][patient]['owes']} dollars"]


def pay_bill(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    patient = pick(tables, "patients", rng, used, lambda entry: entry["owes"])
    words = any_of(rng, f"I am {patient} and pay my bill.", f"Please take the payment of the bill of {patient}.")
    return words, calls(("pay_bill", {"patient": patient})), [f"{tables['patients'][patient]['owes']} dollars"]


# --- the shop ---


def shop(rng: np.random.Generator) -> Tables:
    def address() -> str:
        return f"{int(rng.integers(1, 60))} {STREETS[int(rng.integers(len(STREETS)))]}"

    customers = {
        f"C{n}": {
            "name": f"{FIRST[n * 3 % 20]} {LAST[n * 5 % 12]}",
            "points": int(rng.integers(5, 90)),
            "address": address(),
        }
        for n in range(10, 70)
    }
    products = {
        f"G{n}": {"name": name, "price": int(rng.integers(5, 90)), "left": int(rng.integers(1, 9))}
        for n, name in enumerate(PRODUCTS, 10)
    }
    orders = {}
    for n in range(10, 90):
        customer = f"C{int(rng.integers(10, 70))}"
        orders[f"O{n}"] = {
            "customer": customer,
            "product": f"G{int(rng.integers(10, 10 + len(PRODUCTS)))}",
            "state": ("open", "sent")[n % 2],
            "address": customers[customer]["address"],
        }
    return {"customers": customers, "products": products, "orders": orders}


def state(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    order = pick(tables, "orders", rng, used, anything)
    words = any_of(rng, f"Was my order {order} sent?", f"What is the state of {order}?")
    return words, calls(("get_order", {"order": order})), [tables["orders"][order]["state"]]


def stop_order(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    order = pick(tables, "orders", rng, used, lambda entry: entry["state"] == "open")
    product = tables["products"][tables["orders"][order]["product"]]
    words = any_of(rng, f"I do not want {order}: cancel it, or take it back.", f"Please cancel {order}, or return it.")
    return words, calls(("cancel_order", {"order": order})), [product["name"]]


def give_back(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    order = pick(tables, "orders", rng, used, lambda entry: entry["state"] == "sent")
    product = tables["products"][tables["orders"][order]["product"]]
    # The same words as for an order that is open: what to do depends on its state.
    words = any_of(rng, f"I do not want {order}: cancel it, or take it back.", f"Please cancel {order}, or return it.")
    return words, calls(("return_order", {"order": order})), [f"{product['price']} dollars"]


def redirect(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    order = pick(tables, "orders", rng, used, lambda entry: entry["state"] == "open")
    address = f"{int(rng.integers(60, 99))} {STREETS[int(rng.integers(len(STREETS)))]}"
    words = any_of(rng, f"Please send {order} to {address}.", f"I moved: {order} has to go to {address}.")
    return words, calls(("change_address", {"order": order, "address": address})), [address]


def buy(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    customer = pick(tables, "customers", rng, used, anything)
    product = pick(tables, "products", rng, used, anything)
    entry = tables["products"][product]
    words = any_of(
        rng, f"I am {customer} and want a {entry['name']}.", f"Order a {entry['name']} for me, I am {customer}."
    )
    wanted = calls(
        ("find_product", {"name": entry["name"]}), ("place_order", {"customer": customer, "product": product})
    )
    return words, wanted, [f"{entry['price']} dollars"]


def points(tables: Tables, rng: np.random.Generator, used: set[str]) -> Drawn:
    customer = pick(tables, "customers", rng, used, anything)
    words = any_of(rng, f"How many points do I have? I am {customer}.", f"I am {customer}. What are my points?")
    return words, calls(("get_points", {"customer": customer})), [str(tables["customers"][customer]["points"])]


@dataclass(frozen=True)
class Made:
    """What a world is made of beside its tools and rules."""

    about: str
    tables: Callable[[np.random.Generator], Tables]
    intents: Sequence[Callable[[Tables, np.random.Generator, set[str]], Drawn]]
    references: Sequence[Sequence[str]]


WORLDS: Mapping[str, Made] = {
    "library": Made(
        "The desk of a town library: loans, books and fines.",
        library,
        (due, renew, owed, pay, lend, reserve),
        [["loans", "member", "members"], ["loans", "book", "books"], ["books", "reserved", "members"]],
    ),
    "clinic": Made(
        "The reception of a clinic: appointments, doctors and bills.",
        clinic,
        (when, cancel, book, move, bill, pay_bill),
        [["slots", "doctor", "doctors"], ["appointments", "patient", "patients"], ["appointments", "slot", "slots"]],
    ),
    "shop": Made(
        "The desk of a shop: orders, products and points.",
        shop,
        (state, stop_order, give_back, redirect, buy, points),
        [["orders", "customer", "customers"], ["orders", "product", "products"]],
    ),
}


def told(world: World, task: TaskRow) -> bool:
    """Whether the golden calls say everything that later ones and the user need: nobody has to guess."""
    session, known = golden.opened(world, task.goal), ""
    for turn in task.turns:
        known += f" {turn.user}"
        for call in turn.calls:
            if not all(value in known for value in call.arguments.values()):
                return False
            known += f" {session.call(call).text}"
        if unsaid(turn.facts, [known]):
            return False
    return True


def tasks(name: str, tables: Tables, world: World) -> Iterator[TaskRow]:
    """The tasks of a world, all different: two thirds of them of one request, one third of two."""
    rng, seen, intents = np.random.default_rng([7, len(name)]), set[str](), WORLDS[name].intents
    for split, count in TASKS.items():
        made = 0
        while made < count:
            used, turns = set[str](), list[Exchange]()
            for _ in range(1 + (made % 3 == 2)):
                intent = intents[int(rng.integers(len(intents)))]
                words, wanted, facts = intent(tables, rng, used)
                turns.append(Exchange(words, tuple(wanted), tuple(facts)))
            key = json.dumps([turn.user for turn in turns])
            task = TaskRow(f"{name}-{split}-{made + 1}", name, split, tuple(turns), seed=made + 1)
            if key not in seen and told(world, task):
                seen.add(key)
                made += 1
                yield task


def schema_of(tables: Tables) -> dict[str, Any]:
    """A JSON schema of each table's entries: the same fields with the same types."""
    kinds = {str: "string", int: "integer", bool: "boolean", list: "array"}
    found = {}
    for table, entries in tables.items():
        first = next(iter(entries.values()))
        found[table] = {
            "type": "object",
            "properties": {field: {"type": kinds[type(value)]} for field, value in first.items()},
            "required": list(first),
            "additionalProperties": False,
        }
    return found


def write(name: str, target: Path) -> None:
    """Writes what is made of a world beside its tools.py and policy.md."""
    made = WORLDS[name]
    tables = made.tables(np.random.default_rng([3, len(name)]))
    schema = {"tables": schema_of(tables), "references": made.references}
    head = {"format": folder.FORMAT, "name": name, "about": made.about, "now": "2025-03-10T09:00:00+00:00"}
    for file, value in (("world.json", head), ("database.json", tables), ("schema.json", schema)):
        (target / file).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    folder.save_tasks(target, [])
    folder.save_tasks(target, list(tasks(name, tables, folder.load(target, trusted=True).world)))


def main() -> None:
    """Writes all worlds, and says of how many tasks the golden calls can be replayed."""
    for name in WORLDS:
        write(name, HERE / name)
        read = folder.load(HERE / name, trusted=True)
        usable, reasons = golden.solutions(read.world, [task.goal for task in read.tasks])
        print(f"{name}: {len(usable)} tasks of {len(read.tasks)} can be used")
        for task, reason in reasons.items():
            print(f"  {task}: {reason}")


if __name__ == "__main__":
    main()
