"""Questions of users in the quickstart's world: every question of the world is read back as what it is."""

from dataclasses import replace

import pytest

from orchestra_jax.envs.quickstart.asked import WISHES, posed
from orchestra_jax.envs.quickstart.facts import FAMILIES, TOOL_NAMES
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
