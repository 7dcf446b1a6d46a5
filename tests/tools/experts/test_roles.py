"""Every role of the paper against a local OpenAI-compatible server."""

import asyncio
import sys

import pytest

from orchestra_jax.config.roles import Role
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools import schema
from orchestra_jax.tools.answers import extract_answer
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.tools.experts.judge import JUDGE_SYSTEM, Judge
from orchestra_jax.tools.experts.roles import NO_CODE, NO_QUERY, STOP, UserSimulator, expert_tool, python_block
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import InfrastructureError, ToolCall, ToolResult, Usage
from tests.tools.openai_stub import PRICES


@pytest.fixture
def client(make):
    return make(max_tokens=60, context_tokens=2000)


async def found(arguments, budget: Budget) -> ToolResult:
    return ToolResult(f"results for {arguments['query']}", (Usage("web_search", cost_usd=0.01),))


def test_specs_can_be_offered(client):
    offers = [
        expert_tool(Role.query_writer, client),
        expert_tool(Role.code_writer, client),
        expert_tool(Role.math, client),
        expert_tool(Role.generalist, client, name="expert-1"),
    ]
    for (spec, _), argument in zip(offers, ("question", "task", "problem", "question"), strict=True):
        check_spec(spec)
        assert spec.price_usd is None  # priced by tokens
        assert schema.validate_arguments(spec, {argument: "x", "context": "y"}) is None
        assert schema.validate_arguments(spec, {"context": "y"}) is not None
    assert [spec.name for spec, _ in offers] == ["small", "small", "small", "expert-1"]
    assert expert_tool(Role.math, client, description="Mine.")[0].description == "Mine."


def test_a_name_that_no_tool_may_have():
    prices = type(PRICES)("p", "d", "s", {"qwen2.5-math-7b": PRICES.entries["small"]})
    spec, _ = expert_tool(Role.math, ExpertClient(Expert("qwen2.5-math-7b", "m", "http://h/v1"), prices))
    assert spec.name == "qwen2-5-math-7b"
    check_spec(spec)


@pytest.mark.parametrize(
    ("reply", "query"),
    [
        ("<think>hm</think>The distance is missing. <answer>moon distance</answer>", "moon distance"),
        ('"moon distance"', "moon distance"),
        ("<answer>" + "x" * 900 + "</answer>", "x" * 400),
    ],
)
async def test_the_query_writer_searches(stub, client, reply, query):
    stub.says(reply)
    _, handle = expert_tool(Role.query_writer, client, found)
    result = await handle({"question": "How far is the moon?", "context": "We know the sun."}, Budget())
    assert result.text == f"Query: {query}\nresults for {query}"
    assert not result.is_error
    assert [row.name for row in result.usage] == ["small", "web_search"]
    sent = stub.bodies[0]["messages"][1]["content"]
    assert sent == "Context:\nWe know the sun.\n\nQuestion: How far is the moon?"
    _, alone = expert_tool(Role.query_writer, client)
    assert (await alone({"question": "How far?"}, Budget())).text == query


@pytest.mark.parametrize("reply", ["", "First I would think.\nThen search.", "<think>endless"])
async def test_a_query_writer_without_a_query(stub, client, reply):
    stub.says(reply)
    _, handle = expert_tool(Role.query_writer, client, found)
    result = await handle({"question": "How far?"}, Budget())
    assert (result.text, result.is_error, result.refused, len(result.usage)) == (NO_QUERY, True, True, 1)


async def test_the_code_writer_runs_its_code(stub, client):
    stub.says("Here:\n```python\nprint('sum', 2 + 3)\n```\nThat is it.")

    async def run(arguments, budget: Budget) -> ToolResult:
        command = sys.executable, "-c", arguments["code"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        return ToolResult(output.decode().strip(), (Usage("python", seconds=0.1),))

    _, handle = expert_tool(Role.code_writer, client, run)
    result = await handle({"task": "Add 2 and 3."}, Budget())
    assert result.text == "```python\nprint('sum', 2 + 3)\n```\nOutput:\nsum 5"
    assert not result.is_error
    assert [row.name for row in result.usage] == ["small", "python"]


async def test_the_code_writers_errors_are_observations(stub, client):
    async def broken(arguments, budget: Budget) -> ToolResult:
        return ToolResult("ZeroDivisionError", (Usage("python", seconds=1.0),), is_error=True)

    stub.says("```\n1/0\n```", "I cannot write code.")
    _, handle = expert_tool(Role.code_writer, client, broken)
    result = await handle({"task": "Divide."}, Budget())
    assert (result.is_error, result.refused) == (True, False)
    assert result.text.endswith("Output:\nZeroDivisionError")
    result = await handle({"task": "Divide."}, Budget())
    assert (result.text, result.is_error, result.refused, len(result.usage)) == (NO_CODE, True, True, 1)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na = 1\n```\nor\n```py\nb = 2\n```", "b = 2"),
        ("```json\n{}\n```\n```\nc = 3\n```", "c = 3"),
        ("```Python title=x\nd = 4\n", "d = 4"),  # cut at the token limit
        ("```python\n\n```", None),
        ("```json\n{}\n```", None),
        ("print(1)", None),
    ],
)
def test_python_block(text, code):
    assert python_block(text) == code


@pytest.mark.parametrize("role", [Role.math, Role.generalist])
async def test_models_that_answer(stub, client, role):
    stub.says("<think>6 * 7</think>It is \\boxed{42}.", "<think>" + "long " * 100, "word " * 100)
    spec, handle = expert_tool(role, client)
    (argument,) = spec.parameters["required"]
    budget = Budget()
    result = await handle({argument: "6 * 7?"}, budget)
    assert (result.text, result.is_error) == ("It is \\boxed{42}.", False)
    assert extract_answer(result.text) == "42"
    for text in ("The model gave no answer.", ("word " * 60).strip()):
        result = await handle({argument: "6 * 7?"}, budget)
        assert result.text == f"{text}\n[the reply was cut at the model's token limit]"
        assert result.is_error == text.startswith("The model")
    assert budget.spent.calls == 3
    assert result.usage[0].role == "tool"


async def test_a_long_context_is_cut_and_the_question_kept(stub, client):
    _, handle = expert_tool(Role.generalist, client)
    await handle({"question": "Who won?", "context": "line of context. " * 2000}, Budget())
    system, user = stub.bodies[0]["messages"]
    assert system["content"].startswith("Answer the question")
    assert user["content"].startswith("Context:\nline of")
    assert user["content"].endswith("Question: Who won?")
    assert len(user["content"]) < 6000


@pytest.mark.parametrize(
    ("reply", "correct"),
    [
        ('<think>{"verdict": "incorrect"}</think>{"verdict": "correct"}', True),
        ('{"reason": "Same number.", "verdict": "correct"}', True),
        ('<think>hm</think>```json\n{"reason": "It says {42}.", "verdict": "incorrect"}\n```', False),
    ],
)
async def test_the_judge(stub, client, reply, correct):
    stub.says(reply)
    verdict = await Judge(client).judge("How far?", "384k km", ["384400 km", "384,000 km"], budget=Budget())
    assert verdict.correct is correct
    assert [row.role for row in verdict.usage] == ["judge"]
    system, user = (message["content"] for message in stub.bodies[0]["messages"])
    assert system == JUDGE_SYSTEM
    mark = user.split()[0]
    assert user.splitlines() == [
        f"{mark} question", "| How far?", f"{mark} reference answer", "| 384400 km", f"{mark} reference answer",
        "| 384,000 km", f"{mark} candidate answer", "| 384k km", f"{mark} end", "", "Grade the candidate answer.",
    ]  # fmt: skip


async def test_a_judge_without_a_verdict_is_no_wrong_answer(stub, client):
    stub.says("Who knows.")
    with pytest.raises(InfrastructureError, match=r"The judge 'small' gave no verdict in 2 samples"):
        await Judge(client).judge("q", "a", ["b"], budget=Budget())
    with pytest.raises(ValueError, match="no reference answer"):
        await Judge(client).judge("q", "a", [], budget=Budget())


async def test_the_user_simulator(stub, client):
    stub.says("I want to cancel {my} flight.", f"Thanks!\n{STOP}")
    user = UserSimulator(client, "You are Ann and want to cancel flight {X1}.")
    first = await user.reply([], budget=Budget())
    assert (first.text, first.done) == ("I want to cancel {my} flight.", False)
    conversation = [
        {"role": "system", "content": "the agent's policy"},
        {"role": "user", "content": first.text},
        {"role": "assistant", "content": "Done."},
        {"role": "tool", "content": "internal"},
    ]
    last = await user.reply(conversation, budget=Budget())
    assert (last.text, last.done) == ("Thanks!", True)
    assert [row.role for row in last.usage] == ["user_simulator"]
    system, *seen = stub.bodies[1]["messages"]
    assert "cancel flight {X1}" in system["content"]
    assert STOP in system["content"]
    assert [message["role"] for message in seen] == ["user", "assistant", "user"]
    assert [message["content"] for message in seen[1:]] == [first.text, "Done."]


async def test_a_writer_whose_search_fails_is_paid_once_and_its_row_is_told_once(stub, client):
    failures = iter([InfrastructureError("The search is down."), TimeoutError()])

    async def search(arguments, budget: Budget) -> ToolResult:
        if (failure := next(failures, None)) is not None:
            raise failure
        return await found(arguments, budget)

    stub.says("<answer>moon distance</answer>", "<answer>sun distance</answer>")
    spec, handle = expert_tool(Role.query_writer, client, search)
    budget = Budget()
    executor = ToolExecutor([spec], {spec.name: handle}, budget)
    call = ToolCall(spec.name, {"question": "How far is the moon?"})
    with pytest.raises(InfrastructureError, match="The search is down") as failed:
        await executor.step(call)
    assert [row.name for row in failed.value.usage] == ["small"]
    assert failed.value.usage[0].seconds == 0  # the time of what failed is not the trajectory's
    with pytest.raises(TimeoutError):
        await executor.step(call)
    again = await executor.step(call)
    assert again.text.startswith("Query: moon distance\n")
    assert [row.name for row in again.usage] == ["web_search"]
    assert budget.spent.calls == len(stub.bodies) == 1
    another = await executor.step(call)  # a further call is one of its own
    assert another.text.startswith("Query: sun distance\n")
    assert [row.name for row in another.usage] == ["small", "web_search"]


async def test_a_writer_whose_search_is_cut_tells_its_row_with_the_next_try(stub, client):
    async def search(arguments, budget: Budget) -> ToolResult:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return await found(arguments, budget)

    stub.says("<answer>moon distance</answer>")
    _, handle = expert_tool(Role.query_writer, client, search)
    begun, budget = asyncio.Event(), Budget()
    first = asyncio.create_task(handle({"question": "How far?"}, budget))
    await begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    result = await handle({"question": "How far?"}, budget)
    assert [row.name for row in result.usage] == ["small", "web_search"]
    assert len(stub.bodies) == 1
