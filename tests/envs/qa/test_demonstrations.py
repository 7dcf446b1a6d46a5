import json
from collections import Counter

import pytest

from orchestra_jax.envs.qa.demonstrations import ANSWER_CHARS, QUERY_WORDS, answer_from, random_tool, reference_call
from orchestra_jax.rollout.parsing import parse_tool_calls, render_call
from orchestra_jax.tools import schema
from orchestra_jax.tools.answers import extract_answer
from orchestra_jax.tools.python import spec as python_spec
from orchestra_jax.tools.search import local
from orchestra_jax.types import Preference, Task, ToolCall, ToolResult

TOOLS = (python_spec.TOOL, local.TOOL)


def task(number: int = 0, question: str = "Ann has 3 pens and buys 4.5 more. How many pens has she?") -> Task:
    return Task(f"q-{number}", question, ("7.5",), TOOLS, Preference("accuracy", ""))


@pytest.mark.parametrize("question", ["Ann has 3 pens and buys 4.5 more.", 'Who wrote "Emma"?', "数は 12 です", ""])
def test_calls_are_well_formed(question: str):
    posed = task(question=question)
    for spec in posed.tools:
        call = reference_call(posed, spec.name)
        assert schema.validate_arguments(spec, call.arguments) is None
        assert parse_tool_calls(render_call(call)) == [call]
        assert json.loads(json.dumps(dict(call.arguments))) == dict(call.arguments)


def test_arguments_are_copied_from_the_question():
    posed = task()
    assert reference_call(posed, "python").arguments == {"code": "3 + 4.5"}
    words = reference_call(posed, "local_search").arguments["query"].split()
    assert words == posed.question.split()[:QUERY_WORDS]
    assert reference_call(task(question="Who wrote Emma?"), "python").arguments == {"code": "0"}


@pytest.mark.parametrize("text", ["7.5", "first line\nsecond", "x" * 500, "", "\n"])
def test_the_answer_is_the_last_result_boxed(text: str):
    answer = answer_from([ToolResult("earlier"), ToolResult(text)])
    boxed = extract_answer(answer)
    assert boxed == (text.splitlines() or [""])[0][:ANSWER_CHARS]
    assert "earlier" not in answer


def test_one_random_tool_then_the_answer():
    posed = task()
    call = random_tool(posed, [])
    assert isinstance(call, ToolCall)
    assert call == random_tool(posed, [])
    assert random_tool(posed, [ToolResult("7.5")]) == r"\boxed{7.5}"


def test_every_tool_is_drawn_about_equally_often():
    count = 1000
    drawn = Counter(call.name for n in range(count) if isinstance(call := random_tool(task(n), []), ToolCall))
    expected = count / len(TOOLS)
    assert drawn.keys() == {spec.name for spec in TOOLS}
    assert all(abs(found - expected) < 5 * expected**0.5 for found in drawn.values())
