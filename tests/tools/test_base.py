"""Functions as tools: their schema, their errors, their rows; and calls in the executor."""

import asyncio
import io
from pathlib import Path
from typing import Any, Literal

import pytest

from orchestra_jax.money.budgets import Budget, BudgetExceeded, Limits, Spending
from orchestra_jax.money.prices import Price, PriceList
from orchestra_jax.money.replay import Replay
from orchestra_jax.money.reservations import acquire
from orchestra_jax.tools import base
from orchestra_jax.tools.base import FunctionTool, Tool, tool, unreachable
from orchestra_jax.tools.entries import OUT_OF_BUDGET, plain_entry
from orchestra_jax.tools.executor import ToolExecutor, as_result
from orchestra_jax.types import InfrastructureError, ToolCall, ToolResult, ToolSpec, Usage


def execute(made: FunctionTool, arguments: dict[str, Any], budget: Budget | None = None) -> ToolResult:
    executor = ToolExecutor([made.spec], {made.spec.name: made.run}, budget or Budget())
    return asyncio.run(executor.step(ToolCall(made.spec.name, arguments)))


def test_annotations_and_docstring_become_the_spec():
    @tool
    async def everything(
        text: str,
        count: int,
        kind: Literal["a", "b"],
        *,
        ratio: float = 0.5,
        exact: bool = False,
        words: list[str] | None = None,
        limit: int | None = None,
        options: dict[str, Any] = {},  # noqa: B006  never changed
        budget: Budget,
    ) -> str:
        """Does everything
        at once.

        And more, which is not shown.

        Args:
            text: what it is about: a word,
                or two.
            count (int): how many.
        """
        return f"{text} {count} {kind} {ratio} {exact} {words} {limit} {options} {budget.name}"

    assert everything.spec == ToolSpec(
        name="everything",
        description="Does everything at once.",
        parameters={
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "what it is about: a word, or two."},
                "count": {"type": "integer", "description": "how many."},
                "kind": {"type": "string", "enum": ["a", "b"]},
                "ratio": {"type": "number", "default": 0.5},
                "exact": {"type": "boolean", "default": False},
                "words": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
                "limit": {"type": ["integer", "null"]},
                "options": {"type": "object", "default": {}},
            },
            "required": ["text", "count", "kind"],
            "additionalProperties": False,
        },
        price_usd=0.0,
    )
    given = {"text": "t", "count": 2, "kind": "a", "limit": None, "words": ["w"]}
    assert execute(everything, given, Budget(name="mine")).text == "t 2 a 0.5 False ['w'] None {} mine"
    for wrong in ({"count": 2.5}, {"kind": "c"}, {"words": [1]}, {"limit": "1"}, {"budget": {}}, {"other": 1}):
        refused = execute(everything, given | wrong)
        assert refused.is_error
        assert refused.usage == ()


def test_what_cannot_be_a_tool_is_refused():
    async def bare(x: str) -> str:
        return x

    async def untyped(x) -> str:  # type: ignore[no-untyped-def]
        """Doc."""
        return str(x)

    async def starred(*x: str) -> str:
        """Doc."""
        return str(x)

    def plain(x: str) -> str:
        """Doc."""
        return x

    with pytest.raises(ValueError, match="no description"):
        tool(bare)
    with pytest.raises(TypeError, match="Argument 'x' of the tool 'untyped' needs one of these types"):
        tool(untyped)
    with pytest.raises(TypeError, match="must be one that has a name"):
        tool(starred)
    with pytest.raises(TypeError, match="must be an async function"):
        tool(plain)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"name": "a b!"}, "must be 1 to 64 letters"),
        ({"description": " "}, "no description"),
        ({"price_usd": -1.0}, "must be finite and not negative"),
    ],
)
def test_a_subclass_with_a_spec_that_cannot_be_offered_is_refused(figures: dict[str, Any], said: str):
    parameters = {"type": "object", "properties": {}, "required": []}

    class Own(Tool):
        spec = ToolSpec(**{"name": "own", "description": "Does it.", "parameters": parameters} | figures)

        def __init__(self) -> None:
            pass

    with pytest.raises(ValueError, match=said):
        plain_entry(Own(), PriceList("p", "2026-01-01", "", {}), Replay(None))


def test_errors_are_of_three_kinds():
    errors: list[Exception] = [ValueError("No such city.")]

    @tool(name="sometimes", price_usd=0.5)
    async def fails() -> str:
        """Fails."""
        raise errors[-1]

    result = execute(fails, {})
    assert (result.text, result.is_error, result.usage[0].cost_usd) == ("No such city.", True, 0.5)
    errors.append(ValueError())
    assert execute(fails, {}).text == "ValueError"
    for error, said in ((TimeoutError(), "TimeoutError"), (OSError("gone"), "gone"), (InfrastructureError("o"), "o")):
        errors.append(error)
        with pytest.raises(InfrastructureError, match=said):
            execute(fails, {})
    errors.append(KeyError("a bug"))
    with pytest.raises(KeyError):
        execute(fails, {})


def test_rows_and_seconds():
    @tool
    async def slow() -> str:
        """Takes its time."""
        await asyncio.sleep(0.02)
        return "done"

    @tool(latency_s=3.0)
    async def rows() -> ToolResult:
        """Has rows and ends the task."""
        return ToolResult("done", (Usage("model", completion_tokens=7, seconds=9.0),), final="42")

    @tool
    async def timed() -> ToolResult:
        """Knows its seconds."""
        return ToolResult("done", (Usage("model", seconds=9.0),))

    (row,) = execute(slow, {}).usage
    assert 0.02 <= row.seconds < 20
    assert row.cost_usd == 0
    assert [row.seconds for row in execute(timed, {}).usage] == [9.0]
    ended = execute(rows, {})
    assert ended.final == "42"
    assert ended.usage == (Usage("rows", completion_tokens=7, seconds=3.0, price_list="menu"),)
    assert asyncio.run(slow()) == "done"  # still a function


def test_a_refused_call_costs_what_its_rows_say():
    spent = Usage("lazy", cost_usd=0.01, seconds=1.0)

    @tool(price_usd=0.5, latency_s=9.0)
    async def lazy() -> ToolResult:
        """Finds nothing to do."""
        return ToolResult("There is nothing to run.", (spent,), is_error=True, refused=True)

    assert execute(lazy, {}).usage == (spent,)
    shown = PriceList("shown", "2026-01-01", "", {"lazy": Price(call=0.02)})
    dearer = ToolExecutor([lazy.spec], {"lazy": lazy.run}, Budget(), shown)
    assert [row.cost_usd for row in asyncio.run(dearer.step(ToolCall("lazy", {}))).usage] == [0.02]

    @tool(price_usd=0.5)
    async def idle() -> ToolResult:
        """Has no rows either."""
        return ToolResult("There is nothing to run.", is_error=True, refused=True)

    assert execute(idle, {}).usage == ()


def test_a_failed_call_costs_what_its_rows_say_and_no_time():
    @tool(price_usd=0.5)
    async def fails() -> str:
        """Fails after a paid request."""
        error = InfrastructureError("down")
        error.usage = (Usage("model", cost_usd=0.01, seconds=9.0),)
        raise error

    with pytest.raises(InfrastructureError, match="down") as caught:
        execute(fails, {})
    assert caught.value.usage == (Usage("model", cost_usd=0.01),)
    with pytest.raises(ValueError, match="Two tools of the menu share a name"):
        ToolExecutor([fails.spec] * 2, {"fails": fails.run}, Budget())


async def test_budgets_count_the_price_per_call_of_a_tool_that_does_not_reserve_it(tmp_path: Path):
    """Calls that were made count, also those that failed; a refused or a replayed one does not."""

    @tool(price_usd=0.4)
    async def lookup(what: str) -> ToolResult:
        """Looks it up."""
        if what == "down":
            raise OSError("nobody answers")
        return ToolResult(f"{what}: 7", refused=what == "nothing")

    replay = Replay(tmp_path / "calls.db", "replay_or_record")
    run = Budget(Limits(usd=1.3))
    task = Budget(Limits(usd=0.9), name="trajectory", parent=run)
    record = plain_entry(lookup, PriceList("p", "2026-01-01", "", {}), replay).handler
    assert as_result(await record({"what": "a"}, task)).text == "a: 7"
    with pytest.raises(InfrastructureError):
        await record({"what": "down"}, task)
    for _ in range(2):  # and from the record
        refused = as_result(await record({"what": "nothing"}, run))
        assert (refused.text, refused.refused) == ("nothing: 7", True)
    assert (run.spent, run.reserved) == (Spending(0.8, 0, 2), Spending())
    assert as_result(await record({"what": "b"}, task)).text == OUT_OF_BUDGET
    assert as_result(await record({"what": "a"}, task)).text == "a: 7"  # from the record
    assert task.spent.calls == 2
    await record({"what": "c"}, run)
    with pytest.raises(BudgetExceeded, match=r"the run could come to 1\.6 dollars"):
        await record({"what": "d"}, run)

    @tool(price_usd=0.4)
    async def reserves(budget: Budget) -> str:
        """Reserves what it pays."""
        (await acquire(budget, Usage("reserves", cost_usd=0.01))).settle(Usage("reserves", cost_usd=0.01))
        return "done"

    await plain_entry(reserves, PriceList("p", "2026-01-01", "", {}), replay).handler({}, own := Budget())
    assert own.spent.usd == 0.01

    @tool
    async def free() -> str:
        """Is free."""
        return "done"

    await plain_entry(free, PriceList("p", "2026-01-01", "", {}), replay).handler({}, own := Budget())
    assert own.spent.calls == 0  # a limit of calls is one of paid calls
    replay.close()


def test_a_price_list_that_names_a_tool_comes_before_its_own_figures():
    @tool(price_usd=0.4, latency_s=2.0)
    async def own() -> str:
        """Has figures of its own."""
        return "done"

    def figures(**entries: Price) -> tuple:
        entry = plain_entry(own, PriceList("p", "2026-01-01", "", entries), Replay(None))
        return entry.billed, entry.spec.price_usd, entry.spec.latency_s

    assert figures(own=Price(call=0.1)) == (("own",), None, None)
    assert figures() == ((), 0.4, 2.0)
    own.listed = False
    assert figures(own=Price(call=0.1)) == ((), 0.4, 2.0)


def test_texts_and_final_answers_are_made_valid():
    assert as_result(ToolResult("\ud83d", final="\ud83d")) == ToolResult("\ufffd", final="\ufffd")


@pytest.mark.parametrize("url", ["http://HOST:PORT/v1", "http://h:99999", "http://a..b/v1", f"http://{'a' * 70}.com"])
def test_an_address_that_there_cannot_be_is_a_sentence(url: str):
    (said,) = unreachable("it", url)
    assert said.startswith(f"No server answers at {url} for it (")


def test_an_address_without_a_port_is_looked_for_at_that_of_its_scheme(monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr(base.socket, "create_connection", lambda address, _: asked.append(address) or io.BytesIO())
    for url in ("http://h/v1", "https://h/v1", "https://h:8443/v1"):
        assert unreachable("it", url) == []
    assert asked == [("h", 80), ("h", 443), ("h", 8443)]
