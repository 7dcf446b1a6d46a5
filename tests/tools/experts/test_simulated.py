"""Simulated experts: rates of their skill table, the same answer for ever."""

from dataclasses import replace

import pytest

from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.answers import matches
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.tools.experts.simulated_tool import FallibleExpert, SimulatedTool, near_numbers, simulated_experts
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import InfrastructureError, Preference, Task, ToolCall

QUESTIONS = [f"question {i}" for i in range(4000)]


def test_skill_is_the_share_of_right_answers():
    expert = FallibleExpert("large", {"maths": 0.8, "facts": 0.0, "code": 1.0})
    share = {
        family: sum(expert.answer(q, "yes", family, ["no", "maybe"]) == "yes" for q in QUESTIONS) / len(QUESTIONS)
        for family in expert.skill
    }
    assert share["maths"] == pytest.approx(0.8, abs=0.025)  # four standard deviations
    assert (share["facts"], share["code"]) == (0.0, 1.0)


def test_answers_are_the_same_in_every_process():
    expert = FallibleExpert("large", {"maths": 0.5}, seed=3)
    assert [expert.knows(q, "maths") for q in QUESTIONS[:12]] == GOLDEN


def test_experts_and_seeds_are_independent_and_harder_is_nested():
    def known(name: str, skill: float, seed: int = 0) -> set[str]:
        expert = FallibleExpert(name, {"f": skill}, seed=seed)
        return {q for q in QUESTIONS if expert.knows(q, "f")}

    assert known("a", 0.3) < known("a", 0.6)
    for other in (known("b", 0.5), known("a", 0.5, seed=1)):
        assert len(known("a", 0.5) & other) / len(QUESTIONS) == pytest.approx(0.25, abs=0.03)


def test_wrong_answers_come_from_all_distractors_but_never_the_right_one():
    expert = FallibleExpert("a", {"f": 0.0})
    assert {expert.answer(q, "1", "f", ["1", "2", "3"]) for q in QUESTIONS[:100]} == {"2", "3"}


def test_errors():
    with pytest.raises(ValueError, match="no skill for 'g'"):
        FallibleExpert("a", {"f": 1.0}).knows("q", "g")
    with pytest.raises(ValueError, match="No wrong answer"):
        FallibleExpert("a", {"f": 0.0}).answer("q", "x", "f", ["x"])
    with pytest.raises(ValueError, match="within"):
        FallibleExpert("a", {"f": 1.5})
    for rate in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="failure_rate"):
            FallibleExpert("a", {"f": 0.5}, failure_rate=rate)


def test_a_star_stands_for_other_families():
    expert = FallibleExpert("a", {"f": 0.0, "*": 1.0})
    assert [expert.knows("q", family) for family in ("f", "g", "")] == [False, True, True]


def test_failures_have_their_rate_and_change_no_answer():
    sound, flaky = FallibleExpert("a", {"f": 0.5}), FallibleExpert("a", {"f": 0.5}, failure_rate=0.2)
    assert not any(sound.fails(q, 0) for q in QUESTIONS)
    assert sum(flaky.fails(q, 0) for q in QUESTIONS) / len(QUESTIONS) == pytest.approx(0.2, abs=0.025)
    assert [flaky.knows(q, "f") for q in QUESTIONS] == [sound.knows(q, "f") for q in QUESTIONS]
    # Independent of each other, of the answer, and from attempt to attempt.
    first = {q for q in QUESTIONS if flaky.fails(q, 0)}
    assert sum(flaky.fails(q, 1) for q in first) / len(first) == pytest.approx(0.2, abs=0.06)
    assert sum(flaky.knows(q, "f") for q in first) / len(first) == pytest.approx(0.5, abs=0.08)
    assert [flaky.fails(q, 0) for q in QUESTIONS] == [replace(flaky).fails(q, 0) for q in QUESTIONS]


# --- as a tool ---


def task(question: str, answer: str = "72", family: str = "maths", **extra) -> Task:
    return Task(question, question, (answer,), (), Preference("none", ""), family, extra)


def box(tool: SimulatedTool, of: Task) -> ToolExecutor:
    return ToolExecutor([tool.spec], {tool.spec.name: tool.handler(of)}, Budget())


async def test_the_tool_answers_the_task_and_is_charged_by_the_menu():
    tool = SimulatedTool(FallibleExpert("large", {"maths": 0.5}, price_usd=0.02, latency_s=7.0))
    check_spec(tool.spec)
    assert (tool.spec.price_usd, tool.spec.latency_s) == (0.02, 7.0)
    right = 0
    for question in QUESTIONS[:400]:
        each = task(question)
        result = await box(tool, each).step(ToolCall("large", {"question": "In other words?"}))
        assert [(row.name, row.cost_usd, row.seconds) for row in result.usage] == [("large", 0.02, 7.0)]
        right += matches(result.text, each.answer)
        assert (result.text == "72") == tool.expert.knows(question, "maths")
    assert right == sum(tool.expert.knows(question, "maths") for question in QUESTIONS[:400])


async def test_without_a_price_on_the_menu_the_tools_own_row_counts():
    tool = SimulatedTool(FallibleExpert("large", {"*": 1.0}, price_usd=0.02, latency_s=7.0))
    spec = replace(tool.spec, price_usd=None, latency_s=None)
    result = await ToolExecutor([spec], {"large": tool.handler(task("q"))}, Budget()).step(
        ToolCall("large", {"question": "q"})
    )
    assert [(row.cost_usd, row.seconds) for row in result.usage] == [(0.02, 7.0)]


async def test_a_new_episode_of_a_failed_question_can_succeed():
    async def fails(tool: SimulatedTool, question: str) -> bool:
        try:
            result = await tool.handler(task(question))({"question": "?"}, Budget())  # a new episode each time
        except InfrastructureError:
            return True
        return result.text != "72"

    async def outcomes() -> list[list[bool]]:
        tool = SimulatedTool(FallibleExpert("a", {"*": 1.0}, failure_rate=0.5))
        return [[await fails(tool, question) for _ in range(12)] for question in QUESTIONS[:50]]

    failed = await outcomes()
    assert failed == await outcomes()
    assert all(set(each) == {True, False} for each in failed)


async def test_where_wrong_answers_come_from():
    ignorant = SimulatedTool(FallibleExpert("a", {"*": 0.0}), ["Nairobi", "Mombasa"])

    async def wrong(answer: str, **extra) -> str:
        return (await ignorant.handler(task("q", answer, **extra))({}, Budget())).text

    assert await wrong("7", distractors=["7", "9"]) == "9"
    assert await wrong("7") in near_numbers("7")
    assert await wrong("Nairobi") == "Mombasa"
    with pytest.raises(ValueError, match="no distractors"):
        SimulatedTool(ignorant.expert).handler(task("q", answer="Nairobi"))
    with pytest.raises(ValueError, match="no reference answer"):
        ignorant.handler(replace(task("q"), answer=()))


@pytest.mark.parametrize("right", ["0", "7", "-3", "1,234", "$3.50", "about 12 km", "1990"])
def test_near_numbers_are_wrong(right):
    wrong = near_numbers(right)
    assert len(wrong) > 2
    assert not any(matches(text, (right,)) for text in wrong)
    assert near_numbers("Lake Victoria") == []


def test_experts_of_a_config():
    given = {
        "small": {"skill": {"maths": 0.9, "*": 0.25}, "price_usd": 0.01, "failure_rate": 0.1},
        "large": {"skill": {"*": 0.9}, "seed": 6, "description": "A large model."},
    }
    small, large = simulated_experts(given, seed=5)
    assert small == FallibleExpert("small", {"maths": 0.9, "*": 0.25}, price_usd=0.01, seed=5, failure_rate=0.1)
    assert large.seed == 6
    assert SimulatedTool(small).spec.description == "Answers questions. Right answers: 90% in maths, 25% elsewhere."
    assert SimulatedTool(large).spec.description == "A large model."
    for bad, message in (
        ({"skill": {"*": 1}, "price": 1}, "unknown key 'price'"),
        ({"price_usd": 1}, "no skill"),
        ({"skill": {"*": 2}}, "within"),
        (0.5, "no skill"),
        (None, "no skill"),
        ({"skill": 0.5}, "no skill"),
        ({"skill": {"*": "high"}}, "no skill"),
        ({"skill": {"*": 0.5}, "price_usd": "dear"}, "price_usd=dear must be a number"),
        ({"skill": {"*": 0.5}, "failure_rate": None}, "failure_rate=None must be a number"),
        ({"skill": {"*": 0.5}, "description": 5}, "description=5 must be a text"),
    ):
        with pytest.raises(ValueError, match=message):
            simulated_experts({"a": bad}, seed=0)


GOLDEN = [False, False, True, True, True, False, True, False, True, True, False, False]
