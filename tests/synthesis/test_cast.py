"""Asking for JSON until it fits; stages, whose files are read again where they are whole and of the same job."""

import json
from types import SimpleNamespace

import pytest

from orchestra_jax.money.budgets import Budget
from orchestra_jax.synthesis.cast import CUT, Cast, Rejected
from orchestra_jax.synthesis.stages import Stages
from orchestra_jax.types import Usage

SCHEMA = {
    "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False,
}  # fmt: skip


class Client:
    """Gives these replies in turn; (text, finish reason) where it did not stop by itself."""

    def __init__(self, *replies):
        self.replies, self.asked = list(replies), []

    async def chat(self, messages, **options):
        self.asked.append((messages, options))
        reply = self.replies.pop(0)
        text, finish = (reply, "stop") if isinstance(reply, str) else reply
        return SimpleNamespace(text=text, usage=(Usage("m", cost_usd=0.5, completion_tokens=2),), finish_reason=finish)


@pytest.mark.parametrize(
    "reply",
    [
        '{"n": 1}',
        '```json\n{"n": 1}\n```',
        'Here it is: {"n": 1} I hope it helps.',
        '<think>{"n": 2}</think>{"n": 1}',
        '\ufeff{"n": 1}',
    ],
)
async def test_json_is_found(reply):
    client = Client(reply)
    assert await Cast({"writer": client}, Budget(), 1).ask("writer", "Count.", SCHEMA) == {"n": 1}
    (messages, options), *_ = client.asked
    assert json.dumps(SCHEMA) in messages[1]["content"]  # also for a server without structured outputs
    assert options["response_format"]["json_schema"]["schema"] == SCHEMA


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("", "it is empty"),
        ("I cannot.", "it is not JSON"),
        ('{"n": "one"}', "at n: 'one' is not of type 'integer'"),
        ('{"n": 1, "m": 2}', "'m' was unexpected"),
        ("[1]", "is not of type 'object'"),
        ('{"n": 7}', "seven is too many"),
        ("[" * 500, "it has more than 64 levels"),
        ('{"n": 1e999}', "overflows"),
        (('{"n": 1', "length"), CUT),
    ],
)
async def test_what_does_not_fit_is_asked_again_and_then_rejected(reply, said):
    client = Client(reply, '{"n": 2}', reply, reply)
    cast = Cast({"writer": client}, Budget(), 2)

    def check(value):
        return "seven is too many" if value["n"] == 7 else None

    assert await cast.ask("writer", "Count.", SCHEMA, check=check, sample=3) == {"n": 2}
    first, second = client.asked
    assert len(second[0]) == 4
    assert said in second[0][3]["content"]
    assert (first[1]["sample"], second[1]["sample"]) == (6, 7)
    with pytest.raises(Rejected) as rejected:
        await cast.ask("writer", "Count.", SCHEMA, check=check)
    assert rejected.value.reason == "no fitting reply"
    assert said.casefold() in rejected.value.why.casefold()
    assert cast.tally.unfit == 3
    assert cast.tally.as_json()["models"] == {"m": {"calls": 4, "tokens": 8, "usd": 2.0}}


async def test_a_stage_is_read_where_it_is_whole_and_of_the_same_job(tmp_path):
    worked = []

    async def double(item, out):
        worked.append(item)
        if item == 2:
            raise Rejected("two", "It is two.")
        out.keep({"n": 2 * item})

    async def run(settings, items):
        stages = Stages(tmp_path, Cast({}, Budget(), 1), settings, 2)
        first = await stages.run("first", items, double)
        second = await stages.run("second", [row["n"] for row in first.rows], double)
        return [row["n"] for row in second.rows], [first.reasons, second.reasons]

    assert await run({"a": 1}, [1, 2, 3]) == ([12], [{"two": 1}, {"two": 1}])
    assert sorted(worked) == [1, 2, 2, 3, 6]
    worked.clear()
    assert await run({"a": 1}, [1, 2, 3]) == ([12], [{"two": 1}, {"two": 1}])
    assert worked == []
    file = next(tmp_path.glob("02*"))
    file.write_bytes(file.read_bytes()[:-5])  # broken
    await run({"a": 1}, [1, 2, 3])
    assert sorted(worked) == [2, 6]
    worked.clear()
    await run({"a": 2}, [1, 2, 3])  # another job
    assert sorted(worked) == [1, 2, 2, 3, 6]
    worked.clear()
    assert await run({"a": 2}, [3]) == ([12], [{}, {}])
    assert worked == [3, 6]
