"""The three filters on planted cases, each with a scripted agent; nobody to ask is no verdict."""

import json
from fractions import Fraction

import pytest

from orchestra_jax.config.synthesis import SynthesisConfig
from orchestra_jax.envs.database.session import Desk, Kind, database_tool
from orchestra_jax.envs.database.workers.pool import WorldError
from orchestra_jax.money.run_budget import Halted
from orchestra_jax.synthesis.cast import Tally
from orchestra_jax.synthesis.stages import Stages
from orchestra_jax.synthesis.worlds import content, filters
from orchestra_jax.types import InfrastructureError, Usage
from tests.envs.database.shop import shop


@database_tool(Kind.READ)
def crash(desk: Desk) -> str:
    """Fails as a tool in the sandbox does that raises what is no observation."""
    raise WorldError("no table")


class Actor:
    """Answers as the solver: `script` maps the last message it hears, and the attempt, to what it says."""

    def __init__(self, script):
        self.tally, self._script = Tally(), script

    async def say(self, role, conversation, *, sample=0):
        assert role == "solver"
        said = self._script(conversation[-1]["content"], sample)
        if isinstance(said, Exception):
            raise said
        return said, False


class Doubter:
    """Writes sixty long entries for each subject, and doubts every entry that it is shown."""

    def __init__(self):
        self.tally = Tally()

    async def ask(self, role, prompt, schema, **options):
        if role == "writer":
            return {"cars": {f"C{n}": {"note": f"{n} {'x' * 400}"} for n in range(60)}}
        shown = [line.split()[1].rstrip(":") for line in prompt.splitlines() if line.startswith("cars ")]
        return {"implausible": [{"table": "cars", "id": name, "why": "so it is"} for name in shown]}


async def test_every_entry_is_read_by_the_checker_however_many_there_are(tmp_path):
    form = {"type": "object", "properties": {"note": {"type": "string"}}, "additionalProperties": False}
    schema = {"about": "Cars.", "now": "2025-03-10T09:00:00+00:00", "tables": {"cars": form}, "references": []}
    stages = Stages(tmp_path, Doubter(), {}, 4)
    subjects = [{"number": 0, "subject": "cars"}]
    assert await content._entries(stages, SynthesisConfig(), Doubter(), subjects, schema) == []
    (plausibility,) = (stage for stage in stages.done if stage.name == "plausibility")
    assert plausibility.reasons == {"implausible": 60}


def row(name, *turns, calls=(), facts=()):
    words = turns or ("Please.",)
    made = [{"user": user, "calls": [], "facts": []} for user in words]
    made[0] |= {"calls": list(calls), "facts": list(facts)}
    return {"id": name, "family": "f", "split": "train", "seed": 1, "turns": made}


def call(tool, **arguments):
    return {"name": tool, "arguments": arguments}


def write(*calls):
    return "".join(f"<tool_call>{json.dumps(each)}</tool_call>" for each in calls)


SHIP = call("set_status", order="O1", status="sent")


async def replayed(folder, *rows, world=None):
    stages = Stages(folder, Actor(None), {}, 4)
    kept, slow = await filters.replay_all(stages, rows, world or shop(crash))
    return [each["id"] for each in kept], {each["why"]: each["reason"] for each in stages.done[0].rejected}, slow


async def solved(folder, task, script, attempts=4):
    stages = Stages(folder, Actor(script), {}, 4)
    kept = await filters.solve_all(
        stages, SynthesisConfig(attempts=attempts, turns=5), stages._cast, [task], shop(crash)
    )
    return [each["attempts"] for each in kept], list(stages.done[0].reasons)


async def test_golden_calls(tmp_path):
    kept, rejected, slow = await replayed(
        tmp_path,
        row("good", calls=[SHIP], facts=["sent"]),
        row("raises", calls=[call("pay", customer="C1", amount=500.0)]),
        row("no tool", calls=[call("fly")]),
        row("broken", calls=[call("crash")]),
        row("idle", calls=[call("hand_over")]),
        row("talk", calls=[call("hand_over")], facts=["goodbye"]),
    )
    assert (kept, slow) == (["good", "talk"], set())
    assert {why.partition(":")[0]: reason for why, reason in rejected.items()} == {
        "raises": filters.RAISES, "no tool": filters.RAISES, "broken": filters.RAISES, "idle": filters.IDLE,
    }  # fmt: skip


async def test_outcomes_are_kept(tmp_path):
    stages = Stages(tmp_path, Actor(None), {}, 4)
    task = row("good", calls=[call("find_customer", name="Bo"), call("get_customer", customer="C2")])
    (kept,), _ = await filters.replay_all(stages, [task], shop())
    assert kept["outcomes"] == ["C2", '{"name": "Bo", "balance": 0.0}']


async def test_some_attempts_are_enough(tmp_path):
    task = row("ship", "Send O1, and say so.", "Thank you!", calls=[SHIP], facts=["sent"])

    def sometimes(heard, attempt):
        if heard.startswith("Send"):
            return write(SHIP) if attempt % 2 else write(call("get_customer", customer="C1"))
        return "It is sent." if heard.startswith("<tool_response>") else "You are welcome."

    assert await solved(tmp_path, task, sometimes) == ([{"solved": 2, "of": 4, "mean_calls": 1.0}], [])


@pytest.mark.parametrize(
    "said",
    [
        "It is sent.",  # and was not
        write(SHIP),  # says nothing, and calls until its turns are used up
        '<tool_call>{"name": "set_status"',  # no call
        write(call("set_status", order="O9", status="sent")),
    ],
)
async def test_nobody_solves_it(tmp_path, said):
    assert await solved(tmp_path, row("ship", calls=[SHIP], facts=["sent"]), lambda *_: said) == ([], [filters.NOBODY])


async def test_solved_without_a_call(tmp_path):
    task = row("greet", calls=[call("hand_over")], facts=["goodbye"])
    assert await solved(tmp_path, task, lambda heard, attempt: "Goodbye." if attempt == 3 else "Hm.") == (
        [], [filters.IDLE],
    )  # fmt: skip


async def test_a_broken_tool_takes_its_task_with_it(tmp_path):
    said = {0: write(call("crash"))}
    kept, reasons = await solved(tmp_path, row("ship", calls=[SHIP]), lambda heard, attempt: said.get(attempt, "Hm."))
    assert (kept, reasons) == ([], [filters.BROKEN])


async def test_a_dead_server_is_no_verdict(tmp_path):
    task = row("ship", calls=[SHIP], facts=["sent"])
    dead = InfrastructureError("The server is down.")
    with pytest.raises(Halted, match="server is down"):
        await solved(tmp_path, task, lambda heard, attempt: dead if attempt == 2 else "It is sent.")
    assert not list(tmp_path.glob("*solving*"))


def test_a_worker_that_dies_twice_was_killed_by_the_tool():
    deaths = [InfrastructureError("It died."), InfrastructureError("It died again.")]

    def work(value):
        if deaths:
            raise deaths.pop(0)
        return value

    with pytest.raises(filters.Rejected, match="died again"):
        filters._twice(work, 1)
    deaths.append(InfrastructureError("By chance."))
    assert filters._twice(work, 1) == 1


def test_dollars_do_not_depend_on_the_order_of_answers():
    rows = [Usage("a", cost_usd=usd) for usd in (0.1, 0.2, 0.3, 1e-9)]
    tallies = [Tally(), Tally()]
    tallies[0].add(tuple(rows))
    tallies[1].add(tuple(reversed(rows)))
    assert tallies[0].as_json() == tallies[1].as_json()
    assert tallies[0].as_json()["models"]["a"]["usd"] == float(sum(map(Fraction, (0.1, 0.2, 0.3, 1e-9))))
