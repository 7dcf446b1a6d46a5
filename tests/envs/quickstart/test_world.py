"""The quickstart world: what is random and what is fixed, and that its texts are tokens."""

import hashlib
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from orchestra_jax.envs.quickstart.demonstrations import NO_IDEA, read_answer
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment, quickstart_chat
from orchestra_jax.envs.quickstart.facts import CHANCES, COMPOUND, FAMILIES, RIVALS, TOOL_NAMES
from orchestra_jax.envs.quickstart.plans import best_plan, expected_utility, step_kinds
from orchestra_jax.envs.quickstart.preferences import draw_preference, wordings
from orchestra_jax.envs.quickstart.world import OFFER_UNITS, QuickstartWorld, draw_offers
from orchestra_jax.models.tokenizer import UNKNOWN
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.tools.search.bm25 import NO_RESULTS
from orchestra_jax.types import Task
from tests.envs.quickstart.posed import KINDS, SPLITS, full_menus, success_probability, use


def test_policy_steps_pose_the_training_split(environment: QuickstartEnvironment) -> None:
    for task in next(environment.train_tasks(16)):
        index = int(task.id.removeprefix("train-"))
        assert [task] == environment.world.paired_tasks("train", index, 1)


# --- what the seed fixes ---------------------------------------------------------------------------------------------

FINGERPRINT = """
import hashlib
from orchestra_jax.envs.quickstart.environment import quickstart_chat
from orchestra_jax.envs.quickstart.world import (QuickstartWorld)
def fingerprint(seed):
    world = QuickstartWorld(seed)
    tasks = [world.task(split, index) for split in ("train", "eval") for index in range(40)]
    parts = tasks, world.swap_tasks(3, ("cost", "fast")), world.local_corpus, world.web_corpus
    vocabulary = sorted(quickstart_chat().tokenizer.get_vocab().items(), key=lambda item: item[1])
    return hashlib.sha256(repr((parts, vocabulary)).encode()).hexdigest()
"""


def test_the_same_seed_is_the_same_world_in_every_process():
    here: dict[str, Any] = {}
    exec(FINGERPRINT, here)
    other = subprocess.run(
        [sys.executable, "-c", f"{FINGERPRINT}\nprint(fingerprint(0))"], text=True, capture_output=True, check=True,
        env=os.environ | {"PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert other.stdout.split() == [here["fingerprint"](0)]
    assert here["fingerprint"](1) != here["fingerprint"](0)


def test_a_task_depends_on_its_index_alone(world: QuickstartWorld):
    posed = [world.task("train", index) for index in range(10)]
    assert world.task("train", 8) == posed[8]
    assert len({task.id for task in posed}) == 10


def test_a_swap_changes_nothing_but_the_preference(world: QuickstartWorld):
    kinds = ("accuracy", "cost", "fast", "local")
    for index in range(8):
        posed = world.swap_tasks(index, kinds)
        assert [task.preference.name for task in posed] == list(kinds)
        assert all(
            (t.question, t.tools, t.answer) == (posed[0].question, posed[0].tools, posed[0].answer) for t in posed
        )
        assert {spec.name for spec in posed[0].tools} == set(TOOL_NAMES)
        assert len({task.id for task in posed}) == 4


def test_an_unknown_kind_of_preference_is_refused(world: QuickstartWorld):
    with pytest.raises((ValueError, KeyError), match="kindness"):
        draw_preference("kindness", "train", ["compare"], world.task("train", 0).tools, np.random.default_rng(0))


# --- menus and preferences -------------------------------------------------------------------------------------------


def test_every_menu_has_a_tool_that_can_answer(tasks: dict[str, list[Task]]):
    for task in tasks["train"] + tasks["eval"]:
        names = [spec.name for spec in task.tools]
        assert len(names) == len(set(names)) >= 2
        for kind in step_kinds(task):
            assert max(success_probability(name, kind) for name in names) >= 0.75, (task.family, names)
    assert {task.family for task in tasks["train"]} == {task.family for task in tasks["eval"]} == set(FAMILIES)


def test_menus_differ_in_tools_order_and_prices(tasks: dict[str, list[Task]]):
    menus = [[spec.name for spec in task.tools] for task in tasks["train"]]
    assert len({frozenset(menu) for menu in menus}) > 10
    assert len({menu[0] for menu in menus}) == len(TOOL_NAMES)
    prices = [[(spec.price_usd, spec.latency_s) for spec in task.tools] for task in tasks["train"]]
    assert all(price is not None and price > 0 and latency > 0 for row in prices for price, latency in row)


def test_preference_vectors_are_within_bounds(tasks: dict[str, list[Task]]):
    kinds = Counter()
    for task in tasks["train"] + tasks["eval"]:
        preference = task.preference
        kinds[preference.name] += 1
        weights = (*preference.tools.values(), preference.outcome, preference.compute, preference.latency)
        assert all(0.0 <= weight <= 1.0 for weight in weights)
        assert preference.outcome > 0
        assert set(preference.tools) <= {spec.name for spec in task.tools}
    assert kinds.keys() == set(KINDS)


def test_no_tool_is_best_under_every_preference(world: QuickstartWorld):
    posed = full_menus(world, 4 * len(KINDS) * 8)
    best = {kind: Counter(name for t in posed if t.preference.name == kind for name in best_plan(t)) for kind in KINDS}
    assert set().union(*best.values()) == set(TOOL_NAMES)
    for name in TOOL_NAMES:
        assert any(found[name] < found.total() for found in best.values())
    # The preference alone changes the choice: the same questions, another best plan.
    swapped = [[best_plan(task) for task in world.swap_tasks(index, KINDS)] for index in range(40)]
    assert sum(len(set(choices)) > 1 for choices in swapped) >= 20


def test_any_rival_may_be_the_cheapest_and_the_fastest():
    rng = np.random.default_rng(0)
    drawn = [draw_offers("train", rng, gap=1 + n % 2) for n in range(900)]
    for rivals in RIVALS.values():
        for column in (0, 1):
            first = Counter(min(rivals, key=lambda name, o=offers, c=column: o[name][c]) for offers in drawn)
            assert stats.chisquare([first[name] for name in rivals]).pvalue > 1e-3
            for n, offers in enumerate(drawn):
                figures = sorted(offers[name][column] for name in rivals)
                assert min(np.diff(figures)) >= (1 + n % 2) * OFFER_UNITS[column]
                assert set(figures) <= {OFFER_UNITS[column] * step for step in range(1, 10)}


def test_the_best_plan_turns_round_with_the_prices(world: QuickstartWorld):
    """By hand: two look-ups and a sum under "cost", where the local search is right in .92 of its calls."""
    (task,) = next(t for n in range(99) if (t := world.swap_tasks(n, ["cost"]))[0].family == "sum")
    for cheap, dear in (("web_search", "local_search"), ("local_search", "web_search")):
        cents = {cheap: 1, dear: 9, "python": 2, "calculator": 4}
        menu = tuple(replace(spec, price_usd=cents[spec.name] / 100) for spec in task.tools if spec.name in cents)
        worth = expected_utility(replace(task, tools=menu))
        assert max(worth, key=worth.__getitem__) == (cheap, cheap, "python")
        chance = CHANCES["local_search"] ** (2 * (cheap == "local_search"))
        assert worth[cheap, cheap, "python"] == pytest.approx(chance)
        # 1 + 9 + 2 cents of 4 at least and 22 at most.
        assert worth[cheap, dear, "python"] == pytest.approx(
            CHANCES["local_search"] * (0.5 + 0.5 * (22 - 12) / (22 - 4))
        )


# --- training and evaluation do not meet -----------------------------------------------------------------------------


def test_people_of_the_splits_are_disjoint(world: QuickstartWorld, tasks: dict[str, list[Task]]):
    people = {split: set(world.people[split]) for split in SPLITS}
    assert people["train"].isdisjoint(people["eval"])
    for split in SPLITS:
        posed = [task for task in tasks[split] if task.family in ("lookup", *COMPOUND)]
        asked = {" ".join(task.extra["steps"][0][1].split()[:2]) for task in posed}
        assert asked
        assert asked <= people[split]


def test_price_lists_of_the_splits_are_disjoint():
    rng = np.random.default_rng(0)
    lists = {split: {repr(sorted(draw_offers(split, rng).items())) for _ in range(2000)} for split in SPLITS}
    assert lists["train"].isdisjoint(lists["eval"])
    assert min(map(len, lists.values())) > 1900


def test_wordings_of_the_splits_are_disjoint(tasks: dict[str, list[Task]]):
    every = {split: [text for kind in KINDS for text in wordings(kind, split)] for split in SPLITS}
    assert set(every["train"]).isdisjoint(every["eval"])
    for split in SPLITS:
        assert len(set(every[split])) == len(every[split])  # no sentence stands for two preferences
        assert all(task.preference.instruction in wordings(task.preference.name, split) for task in tasks[split])
        assert all(len(wordings(kind, split)) >= 2 for kind in KINDS)


def test_held_out_wordings_use_words_seen_in_training():
    def words(split: str) -> set[str]:
        """In their very spelling: to the tokenizer, "Keep" and "keep" have nothing in common."""
        return {word.strip(".,") for kind in KINDS for text in wordings(kind, split) for word in text.split()}

    assert words("eval") <= words("train")


def test_generated_questions_of_the_splits_are_disjoint(world: QuickstartWorld):
    rng = np.random.default_rng(0)
    for family in ("arith", "compare", *COMPOUND):
        texts = {split: {world.question(family, split, rng).text for _ in range(3000)} for split in SPLITS}
        assert texts["train"].isdisjoint(texts["eval"])
        assert len(texts["eval"]) > 50


# --- tokens ----------------------------------------------------------------------------------------------------------


def unknown_in(chat: ChatFormat, text: str) -> bool:
    return chat.tokenizer.convert_tokens_to_ids(UNKNOWN) in chat.encode(text)


def test_the_vocabulary_is_that_of_every_run_so_far():
    """A checkpoint's ids stand for these words in this order."""
    vocabulary = sorted(quickstart_chat().tokenizer.get_vocab().items(), key=lambda item: item[1])
    assert len(vocabulary) == 576
    assert hashlib.sha256(repr(vocabulary).encode()).hexdigest().startswith("176028c68631fed4")


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_every_text_of_the_world_tokenises(seed: int):
    world = QuickstartWorld(seed)
    chat = ChatFormat(quickstart_chat().tokenizer, compact_menu=True)
    texts = (
        set(world.local_corpus)
        | set(world.web_corpus)
        | {text for kind in KINDS for split in SPLITS for text in wordings(kind, split)}
    )
    rng = np.random.default_rng(5)
    for split in SPLITS:
        for family in FAMILIES:
            for _ in range(700):
                question = world.question(family, split, rng)
                texts |= {question.text, question.answer, *question.distractors}
                texts |= {words.format("Boris Kim", "12") for _, words in question.steps}
    lost = [text for text in texts if unknown_in(chat, text)]
    assert lost == []
    assert all(chat.decode(chat.encode(text)) == text for text in texts)


def test_prompts_tokenise(environment: QuickstartEnvironment, chat: ChatFormat, tasks: dict[str, list[Task]]):
    unknown = chat.tokenizer.convert_tokens_to_ids(UNKNOWN)
    for task in tasks["train"][:200] + tasks["eval"][:200]:
        episode = environment.reset(task, Budget())
        prompt = chat.prompt_ids(episode.messages, episode.tools)
        assert unknown not in prompt
        text = chat.decode(prompt)
        assert f"{task.question} {task.preference.instruction}" in text
        for spec in task.tools:
            assert f"{spec.name} {round(100 * spec.price_usd)} {round(spec.latency_s)}" in text


def test_observations_of_every_tool_tokenise(world: QuickstartWorld, environment, chat: ChatFormat):
    posed = full_menus(world, 160) + full_menus(world, 160, "train")
    pairs = [(task, tool) for task in posed for tool in TOOL_NAMES]
    results = use(environment, pairs)
    unknown = chat.tokenizer.convert_tokens_to_ids(UNKNOWN)
    lost = {result.text for result in results if unknown in chat.observation_ids([result.text])}
    assert lost == set()
    answers = {answer for result in results if (answer := read_answer(result)) is not None}
    assert not [answer for answer in answers | {NO_IDEA, NO_RESULTS} if unknown_in(chat, answer)]
