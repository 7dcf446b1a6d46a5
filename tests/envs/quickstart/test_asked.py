"""Questions of users in the quickstart's world: every question of the world is read back as what it is."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.envs.quickstart.asked import WISHES, posed
from orchestra_jax.envs.quickstart.facts import FAMILIES, TOOL_NAMES
from orchestra_jax.envs.quickstart.plans import able_tools
from orchestra_jax.envs.quickstart.world import QuickstartWorld

WORLD = QuickstartWorld(0)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_every_question_of_the_world_is_read_back(split: str):
    families = set()
    for index in range(300):
        task = WORLD.task(split, index)
        found = posed(WORLD, TOOL_NAMES, f" {task.question}\n", task.preference.instruction)
        assert (found.question, found.answer, found.family) == (task.question, task.answer, task.family)
        assert found.extra["steps"] == task.extra["steps"]
        assert found.preference.instruction == task.preference.instruction
        assert found.extra["distractors"]
        assert task.answer[0] not in found.extra["distractors"]
        families.add(found.family)
    assert families == set(FAMILIES)


def test_the_menu_is_the_same_for_all_and_without_a_wish_it_is_to_be_right():
    asked = [posed(WORLD, TOOL_NAMES[:3], question, None) for question in ("What is 2 * 3?", "What is 4 * 5 - 1?")]
    assert asked[0].tools == asked[1].tools
    assert {spec.name for spec in asked[0].tools} == set(TOOL_NAMES[:3])
    assert asked[0].preference.instruction == WISHES["best"]
    assert posed(WORLD, TOOL_NAMES, "What is 2 * 3?", "keep the cost low").preference.instruction == WISHES["cheap"]
    assert posed(WORLD, TOOL_NAMES, "What is 2 * 3?", "").preference.instruction == ""
    assert replace(asked[0], tools=()).answer == ("6",)


@pytest.mark.parametrize(
    "question",
    [
        "What is 2 * 3 + 4 + 5?", "What is 200 * 3?", "What is 17 * 23?",
        "What is 2 * 3 - 7?", "What is __import__('os')?", "Where was Nobody Nowhere born?",
        "Anna is older than Anna. Who is older?", "Anna is older than Zed. Who is older?",
        "How old are Nobody Nowhere and Anna Adler together?", "Who is the boss of the boss of Anna Adler?",
        "", "{name}",
    ],
)  # fmt: skip
def test_another_question_is_refused_with_examples(question: str):
    with pytest.raises(ValueError, match="knows no such question: ask one of its own, such as 'Where was"):
        posed(WORLD, TOOL_NAMES, question, None)


def test_the_budgets_of_the_examples_pay_for_any_tool_that_can_answer():
    text = Path(__file__).resolve().parents[3].joinpath("docs", "serve.md").read_text()
    question, dollars = re.findall(r'ask\.py outputs/quickstart "(.*?)".* --max-usd ([0-9.]+)', text)[0]
    limits = re.findall(r'max_usd"?[=:] ?([0-9.]+)(?:, "?max_seconds"?[=:] ?([0-9.]+))?', text)
    able = able_tools(posed(WORLD, TOOL_NAMES, question, None), "arith")
    assert max(spec.price_usd or 0.0 for spec in able) <= min(float(usd) for usd in (dollars, *dict(limits)))
    assert max(spec.latency_s or 0.0 for spec in able) <= min(float(seconds) for _, seconds in limits if seconds)
