"""Intents, tasks with golden calls and facts, and their evolution into harder ones."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from orchestra_jax.config.synthesis import SynthesisConfig
from orchestra_jax.envs.database.facts import problem
from orchestra_jax.synthesis.cast import Cast
from orchestra_jax.synthesis.near import Seen
from orchestra_jax.synthesis.stages import Row, StageResult, Stages
from orchestra_jax.synthesis.worlds.content import listed, schema_text
from orchestra_jax.synthesis.worlds.functions import signatures
from orchestra_jax.tools.experts.forms import TEXT, array, form, string
from orchestra_jax.tools.schema import validate_arguments
from orchestra_jax.types import ToolSpec

_TURNS, _CALLS, _FACTS = 5, 20, 12
_CALL = form(name=TEXT, arguments={"type": "object"})
_TURN = form(
    user=string(1, 1200),
    calls={"type": "array", "maxItems": _CALLS, "items": _CALL},
    facts={"type": "array", "maxItems": _FACTS, "items": {"type": "string", "maxLength": 120}},
)
TASK = form(turns={"type": "array", "minItems": 1, "maxItems": _TURNS, "items": _TURN})
_FORM = (
    "A task is a conversation: each turn has what the user says, the calls that answer it, in their order with exact "
    "arguments, and facts: short texts from the results, such as an amount or a day, that the agent must then tell. "
    "The user gives every id and detail that the calls need and that no call finds out, and never speaks of functions. "
    "Ids that are made by a call are not known before: no later call may use them. Calls must succeed and keep to the "
    "rules."
)


async def make(stages: Stages, settings: SynthesisConfig, cast: Cast, domain: "WrittenDomain") -> list[Row]:
    """Return tasks {"id", "family", "split", "seed", "turns", "parent"} that repeat none before them."""

    async def intend(subject: Row, out: StageResult) -> None:
        prompt = (
            f"{domain.told()}\n\nList {settings.intents} different things that users want of this service about "
            f"{subject['subject']!r}, each in a sentence that names no data, each possible with these functions alone."
        )
        value = await cast.ask("writer", prompt, form(intents=array(string(1, 400), 1, settings.intents)))
        for number, wish in enumerate(dict.fromkeys(map(str.strip, value["intents"]))):
            out.keep({"number": subject["number"], "intent": number, "wish": wish})

    async def write(item: Row, out: StageResult) -> None:
        prompt = (
            f"{domain.told(item['number'])}\n\nWrite task {item['copy'] + 1} in which a user wants this: "
            f"{item['wish']}\n{_FORM}"
        )
        value = await cast.ask("writer", prompt, TASK, check=domain.flaw, sample=item["copy"])
        name = f"{settings.domain}-{item['number']}-{item['intent']}-{item['copy']}"
        family, seed = f"subject-{item['number']}", _drawn(name) % 2**31
        out.keep({"id": name, "family": family, "seed": seed, "parent": None, "wish": item["wish"], **value})

    async def evolve(item: Row, out: StageResult) -> None:
        old = {"turns": item["turns"]}
        prompt = (
            f"{domain.told(int(item['family'].rpartition('-')[2]))}\n\nA task:\n{old}\nMake it harder (variant "
            f"{item['copy'] + 1}): more conditions, more entries, more that has to be found out or told, in the same "
            f"situation. It needs more calls, facts or turns than before.\n{_FORM}"
        )

        def flaw(value: Mapping[str, Any]) -> str | None:
            more = size(value) > size(old)
            return domain.flaw(value) or (None if more else "it needs no more calls, facts or turns than before")

        value = await cast.ask("evolver", prompt, TASK, check=flaw, sample=item["copy"])
        name = f"{item['id']}-h{item['copy']}"
        kept = {key: item[key] for key in ("family", "seed", "wish")}
        out.keep({"id": name, **kept, "parent": item["id"], **value})

    async def sift(rows: Sequence[Row], out: StageResult) -> None:
        seen = Seen()
        for row in rows:
            if (earlier := seen.add(" / ".join(turn["user"] for turn in row["turns"]))) is not None:
                out.reject("near-duplicate", f"{row['id']} repeats: {earlier}", row)
                continue
            # Variants of an intent are in one split, or training would have the tasks of evaluation.
            intent = "-".join(row["id"].removeprefix(f"{settings.domain}-").split("-")[:2])
            held_out = _drawn(f"split {intent}") % 10_000 < settings.eval_share * 10_000
            out.keep({**row, "split": "eval" if held_out else "train"})

    intents = (await stages.run("intents", domain.subjects if domain.functions else [], intend)).rows
    copies = [{**intent, "copy": copy} for intent in intents for copy in range(settings.tasks)]
    plain = (await stages.run("tasks", copies, write)).rows
    variants = [{**task, "copy": copy} for task in plain for copy in range(settings.harder)]
    harder = (await stages.run("evolution", variants, evolve)).rows
    return (await stages.run("distinct", [[*plain, *harder]], sift)).rows


class WrittenDomain:
    """The parts of a world that tasks are written from.

    Args:
        schema, entries, functions, subjects: as the stages before left them.
    """

    def __init__(
        self, schema: Row, entries: Sequence[Row], functions: Sequence[Row], subjects: Sequence[Row], policy: str
    ) -> None:
        self.schema, self.entries, self.functions = schema, entries, functions
        self.subjects, self.policy = list(subjects), policy
        self._specs = {
            each["name"]: ToolSpec(each["name"], each["description"], each["parameters"]) for each in functions
        }

    def told(self, number: int | None = None) -> str:
        """Return the domain as a text for a prompt, with the entries of one subject if its number is given."""
        text = (
            f"Customer service with a database: {self.schema['about']} It is {self.schema['now']}.\n"
            f"{schema_text(self.schema)}\nThe agent's rules:\n{self.policy}\n"
            f"Its functions:\n{signatures(self.functions)}"
        )
        if number is None:
            return text
        return f"{text}\nEntries:\n{listed([row for row in self.entries if row['number'] == number])}"

    def flaw(self, value: Mapping[str, Any]) -> str | None:
        """Return a clause on the fault of a task that fits `TASK`, or None."""
        for turn in value["turns"]:
            for call in turn["calls"]:
                spec = self._specs.get(call["name"])
                if spec is None:
                    return f"there is no function {call['name']!r}"
                if wrong := validate_arguments(spec, call["arguments"]):
                    return wrong.rstrip(".")
            for fact in turn["facts"]:
                if wrong := problem(fact):
                    return wrong.rstrip(".")
        if not any(turn["calls"] for turn in value["turns"]):
            return "it needs a call"
        return None


def size(task: Mapping[str, Any]) -> int:
    """Return the number of turns, calls and facts together."""
    return sum(1 + len(turn["calls"]) + len(turn["facts"]) for turn in task["turns"])


def _drawn(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
