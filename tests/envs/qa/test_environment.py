"""The QA environment: what counts as an answer and as equal, and episodes with real offline tools."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.data.sources import load_tasks
from orchestra_jax.envs.base import Environment, Episode, initial_messages
from orchestra_jax.envs.qa.environment import OFFLINE_TOOLS, QAEnvironment
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import Price, PriceList
from orchestra_jax.tools.answers import extract_answer, matches, parse_number
from orchestra_jax.tools.base import ToolExecutor, charge
from orchestra_jax.tools.menu import apply_schedule
from orchestra_jax.tools.python.sandbox import PythonSandbox
from orchestra_jax.tools.search.local import LocalIndex, Passage
from orchestra_jax.types import InfrastructureError, Preference, Task, ToolCall, ToolResult, ToolSpec, Usage

PRICES = PriceList("p", "d", "s", {"python": Price(second=1.0), "local_search": Price(call=0.25)})
INDEX = LocalIndex.build([Passage("Oslo", "Capital of Norway."), Passage("Rome", "Capital of Italy.")])


def make_task(tools: tuple[ToolSpec, ...] = OFFLINE_TOOLS) -> Task:
    return Task("q", "How much is 6 * 7?", ("42", "forty-two"), tools, Preference("fast", "Be quick."))


def step(
    calls: list[ToolCall], tools: tuple[ToolSpec, ...] = OFFLINE_TOOLS, prices: PriceList | None = None
) -> list[ToolResult]:
    async def main() -> list[ToolResult]:
        environment = QAEnvironment(sandbox=PythonSandbox(workers=1), index=INDEX, prices=prices)
        episode = environment.reset(make_task(tools), Budget())
        assert isinstance(environment, Environment)
        assert isinstance(episode, Episode)
        try:
            return [await episode.step(call) for call in calls]
        finally:
            await environment.close()

    return asyncio.run(main())


def test_messages_carry_the_preference():
    episode = QAEnvironment(index=INDEX).reset(make_task(OFFLINE_TOOLS[1:]), Budget())
    system, user = episode.messages
    assert "\\boxed{}" in system["content"]
    assert user == {"role": "user", "content": "How much is 6 * 7?\n\nBe quick."}
    assert episode.tools == OFFLINE_TOOLS[1:]
    assert initial_messages(make_task()) == [user]


def test_real_tools_and_observations_of_wrong_calls():
    python, search, raised, unknown, bad = step(
        [
            ToolCall("python", {"code": "6 * 7"}),
            ToolCall("local_search", {"query": "capital of Norway"}),
            ToolCall("python", {"code": "1 / 0"}),
            ToolCall("browser", {}),
            ToolCall("python", {"source": "1"}),
        ]
    )
    assert (python.text, python.is_error) == ("42", False)
    assert search.text.splitlines()[0] == "Oslo: Capital of Norway."
    assert (raised.text, raised.is_error) == ("ZeroDivisionError: division by zero", True)
    assert [len(result.usage) for result in (python, search, raised)] == [1, 1, 1]
    assert unknown.text == "Unknown tool 'browser'; the available tools are: python, local_search."
    assert bad.text == "The arguments of python lack the required 'code'."
    assert all(result.is_error and result.usage == () for result in (unknown, bad))


def test_the_menus_price_is_charged_first_then_the_price_list():
    calls = [ToolCall("python", {"code": "1"}), ToolCall("local_search", {"query": "Rome"})]
    menu = apply_schedule(OFFLINE_TOOLS, {"python": 0.5, "local_search": None}, {"python": 4.0, "local_search": 9.0})
    (python,), (search,) = (result.usage for result in step(calls, menu, PRICES))
    assert (python.cost_usd, python.seconds, python.price_list) == (0.5, 4.0, "menu")
    assert (search.cost_usd, search.price_list) == (0.25, "p")
    (python,), _ = (result.usage for result in step(calls, prices=PRICES))
    assert python.cost_usd == pytest.approx(python.seconds)
    assert 0 < python.seconds < 5


def test_charge_without_own_rows():
    spec = ToolSpec("t", "d", {"type": "object"})
    assert charge(spec, (), 0.3) == (Usage("t", seconds=0.3, price_list="menu"),)
    own = (Usage("model", completion_tokens=5, cost_usd=0.1, seconds=2.0),)
    assert charge(spec, own, 0.3) == own
    priced = ToolSpec("t", "d", {"type": "object"}, price_usd=0.7)
    expected = Usage("t", completion_tokens=5, cost_usd=0.7, seconds=2.0, price_list="menu")
    assert charge(priced, own, 0.3) == (expected,)


async def test_infrastructure_failures_pass_through():
    async def broken(_: Mapping[str, Any], budget: Budget) -> str:
        raise InfrastructureError("down")

    spec = ToolSpec("t", "d", {"type": "object"})
    with pytest.raises(InfrastructureError, match="down"):
        await ToolExecutor([spec], {"t": broken}, Budget()).step(ToolCall("t", {}))


async def test_score():
    episode = QAEnvironment(index=INDEX).reset(make_task(()), Budget())
    assert await episode.score("It is\n\\boxed{42.0}")
    assert await episode.score("Forty-two.")
    assert not await episode.score("43")


def test_a_menu_that_cannot_be_served_is_refused():
    with pytest.raises(ValueError, match="No handler for tool 'python'"):
        QAEnvironment(index=INDEX).reset(make_task(), Budget())
    with pytest.raises(ValueError, match="share a name"):
        QAEnvironment(index=INDEX).reset(make_task(OFFLINE_TOOLS[1:] * 2), Budget())


@pytest.mark.skipif("ORCHESTRA_DATA" not in os.environ, reason="needs ORCHESTRA_DATA")
def test_real_references_match_themselves():
    root = Path(os.environ["ORCHESTRA_DATA"])
    for file in ("qa_sets/gsm8k_test.jsonl", "frames/frames.jsonl", "qa_sets/NQ-open.dev.jsonl"):
        questions = load_tasks(root / file)
        for question in questions:
            assert all(matches(extract_answer(reference), question.answer) for reference in question.answer), question
    gsm8k = [question.answer[0] for question in load_tasks(root / "qa_sets/gsm8k_test.jsonl")]
    assert all(parse_number(answer) is not None for answer in gsm8k)
