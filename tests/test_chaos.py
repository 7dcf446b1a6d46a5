"""A few faults of every kind of `benchmarks/chaos`, in this process; `make chaos` tries a thousand, and a soak."""

import asyncio
import json
import random
import time

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("openai")

from benchmarks.chaos.__main__ import KINDS, counts
from benchmarks.chaos.answers import Experts
from benchmarks.chaos.faults import Kind, NotHeld, sentence, try_kind
from benchmarks.chaos.odd import BYTES, change, odd_value
from benchmarks.chaos.snippets import Snippets
from orchestra_jax.tools.python.isolation import why_not
from orchestra_jax.types import InfrastructureError

FEW = counts(KINDS, 60)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_a_few_of_every_kind_hold(kind: type[Kind]):
    if kind is Snippets and (why_not("bubblewrap") and why_not("namespaces")):
        pytest.skip("nothing isolates here")
    found = await try_kind(kind(), 0, range(FEW[kind]))
    assert found.tried == FEW[kind]
    assert found.worst == []


class Careless(Kind):
    """Falls over each fault in another way."""

    name = "careless"

    async def attempt(self, draw: random.Random) -> None:
        self.what = f"drew {draw.random()}"
        if self.what not in self.seen:
            self.seen.append(self.what)
        match len(self.seen):
            case 1:
                raise KeyError("foreign")
            case 2:
                raise NotHeld("known")
            case 3:
                await asyncio.sleep(60)
            case 4:
                until = time.process_time() + 0.2
                while time.process_time() < until:
                    pass

    seen: list[str] = []  # noqa: RUF012


async def test_what_does_not_hold_is_told_and_can_be_had_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("benchmarks.chaos.faults.PATIENCE_S", 0.1)
    found = await try_kind(Careless(), 7, range(5))
    assert (found.tried, found.held) == (5, 1)
    assert ["KeyError" in found.worst[0], "known" in found.worst[1], "hangs" in found.worst[2]] == [True] * 3
    assert "works for more than" in found.worst[3]
    drawn = [story.split(": ")[1] for story in found.worst]
    Careless.seen.clear()
    again = await try_kind(Careless(), 7, [1])
    assert again.worst[0].split(": ")[1] == drawn[1]


@pytest.mark.parametrize(
    "error",
    [ValueError("foreign"), InfrastructureError("two\nlines"), InfrastructureError(""), InfrastructureError("\ud83d"),
     InfrastructureError("x" * 9000)],
)  # fmt: skip
def test_what_is_no_sentence_of_ours_does_not_hold(error: Exception):
    with pytest.raises(NotHeld):
        sentence(error, InfrastructureError)
    assert sentence(InfrastructureError("One."), InfrastructureError) == "One."


async def test_money_that_is_not_as_it_was_billed_is_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "orchestra_jax.money.prices.PriceList.priced", lambda prices, usage, entry=None: usage
    )  # free of charge
    assert (await try_kind(Experts(), 0, range(2))).worst


def test_changes_change():
    draw, sound = random.Random(0), {"a": [1, {"b": "c"}]}
    assert all(change(draw, sound)[1] is not None for _ in range(200))
    assert sum(change(draw, sound)[0] != sound for _ in range(200)) > 150
    content = json.dumps(sound).encode()
    for act in BYTES:
        assert any(act(draw, content) != content for _ in range(5))
    assert len({repr(odd_value(draw)) for _ in range(200)}) > 50
