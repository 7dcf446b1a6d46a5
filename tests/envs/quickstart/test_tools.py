"""The tools of the quickstart world really work."""

import asyncio
import builtins

import numpy as np
import pytest

from orchestra_jax.envs.quickstart.demonstrations import NO_IDEA, read_answer
from orchestra_jax.envs.quickstart.environment import quickstart_chat
from orchestra_jax.envs.quickstart.facts import CHANCES, COMPOUND, EXPERTS, FAMILIES
from orchestra_jax.envs.quickstart.preferences import draw_preference
from orchestra_jax.envs.quickstart.world import QuickstartWorld, draw_offers
from orchestra_jax.money.budgets import Budget
from orchestra_jax.types import Task
from tests.envs.quickstart.posed import distinct, full_menus, right, success_probability, use


def test_the_words_of_a_policy_spell_no_program_that_could_do_harm():
    # Why a machine without isolation may run the quickstart all the same (QuickstartEnvironment).
    tokenizer = quickstart_chat().tokenizer
    pieces = {tokenizer.decode([index]).strip().replace("\u2060", "") for index in range(len(tokenizer))}

    def spelled(word: str) -> bool:
        return not word or any(piece and word.startswith(piece) and spelled(word[len(piece) :]) for piece in pieces)

    assert spelled("system.")
    harmless = {"abs", "all", "any", "id", "int", "len", "max", "min", "not", "ord", "pow", "set", "sum"}
    functions = {name for name in dir(builtins) if name[0].islower()} - harmless
    assert [word for word in sorted({"import", "while", "lambda", "__", *functions}) if spelled(word)] == []


def test_python_answers_arithmetic_and_nothing_else(world: QuickstartWorld, environment):
    arithmetic = distinct(world, "arith", 150)
    for task, result in zip(arithmetic, use(environment, [(task, "python") for task in arithmetic]), strict=True):
        assert right(task, result)
        assert not result.is_error
    others = [task for family in ("lookup", "compare") for task in distinct(world, family, 20)]
    results = use(environment, [(task, "python") for task in others])
    assert all(result.is_error and read_answer(result) is None for result in results)


def test_searches_find_every_fact_and_the_local_copy_is_wrong_where_it_is_stale(world: QuickstartWorld, environment):
    rng = np.random.default_rng(0)
    menu = world.menu(["lookup"], draw_offers("eval", rng), rng, full=True)
    preference = draw_preference("accuracy", "eval", ["lookup"], menu, rng)
    posed = {key: world.pose("fact", world.lookup(*key), menu, preference) for key in world.facts}
    web = use(environment, [(task, "web_search") for task in posed.values()])
    assert [key for (key, task), result in zip(posed.items(), web, strict=True) if not right(task, result)] == []
    local = use(environment, [(task, "local_search") for task in posed.values()])
    wrong = {key for (key, task), result in zip(posed.items(), local, strict=True) if not right(task, result)}
    assert wrong == {key for key, value in world.facts.items() if world.local_facts[key] != value}
    stale = 1 - CHANCES["local_search"]
    assert abs(len(wrong) / len(posed) - stale) < 4.5 * (stale * (1 - stale) / len(posed)) ** 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_are_as_good_as_their_skill_table(world: QuickstartWorld, environment, family: str):
    posed = distinct(world, family, 700)
    for expert in EXPERTS:
        solved = sum(map(right, posed, use(environment, [(task, expert) for task in posed])))
        skill = CHANCES[expert] if family == "compare" else 0.0
        assert abs(solved - skill * len(posed)) < 4.5 * (skill * (1 - skill) * len(posed)) ** 0.5 + 1


def test_a_search_of_the_wrong_kind_never_answers(world: QuickstartWorld, environment):
    for family in ("arith", "compare", *COMPOUND):
        posed = distinct(world, family, 60)
        for tool in ("local_search", "web_search"):
            assert success_probability(tool, family) == 0.0
            found = sum(map(right, posed, use(environment, [(task, tool) for task in posed])))
            assert found == 0


def test_calls_are_charged_what_the_menu_says(world: QuickstartWorld, environment):
    pairs = [(task, spec.name) for task in full_menus(world, 8) for spec in task.tools]
    for (task, tool), result in zip(pairs, use(environment, pairs), strict=True):
        (spec,) = (spec for spec in task.tools if spec.name == tool)
        (row,) = result.usage
        assert (row.name, row.cost_usd, row.seconds) == (tool, spec.price_usd, spec.latency_s)


def test_a_tool_that_is_not_on_the_menu_answers_nothing(environment, tasks: dict[str, list[Task]]):
    task = next(t for t in tasks["eval"] if t.family == "arith" and "web_search" not in {s.name for s in t.tools})
    (result,) = use(environment, [(task, "web_search")])
    assert result.is_error
    assert result.usage == ()


def test_only_the_exact_answer_is_right(environment, tasks: dict[str, list[Task]]):
    task = tasks["eval"][0]
    episode = environment.reset(task, Budget())
    answers = (task.answer[0], f" {task.answer[0]} ", task.answer[0] + "0", "", NO_IDEA)
    assert [asyncio.run(episode.score(answer)) for answer in answers] == [True, True, False, False, False]
