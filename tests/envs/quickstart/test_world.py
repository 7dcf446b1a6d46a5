"""The quickstart world: what is random and what is fixed, that its tools really work, and its scripts."""

import asyncio
import builtins
import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.envs.base import Environment
from orchestra_jax.envs.quickstart.demonstrations import (
    BASELINES,
    NO_IDEA,
    answer_from,
    read_answer,
    reference_call,
    shown_tools,
)
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment
from orchestra_jax.envs.quickstart.facts import (
    CHANCES,
    COMPOUND,
    EXPERTS,
    FAMILIES,
    RIVALS,
    TOOL_NAMES,
)
from orchestra_jax.envs.quickstart.plans import best_plan, expected_utility, step_kinds
from orchestra_jax.envs.quickstart.preferences import PREFERENCE_SHARES, draw_preference, wordings
from orchestra_jax.envs.quickstart.questions import QuickstartQuestion
from orchestra_jax.envs.quickstart.vocabulary import quickstart_chat
from orchestra_jax.envs.quickstart.world import OFFER_UNITS, QuickstartWorld, draw_offers
from orchestra_jax.evaluation.measures import preference_utility
from orchestra_jax.models.tokenizer import UNKNOWN
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import Price, PriceList
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.rollout.episode import OrchestratorPrice
from orchestra_jax.tools.search.bm25 import NO_RESULTS
from orchestra_jax.types import Task, ToolCall, ToolResult

SPLITS = ("train", "eval")
KINDS = tuple(PREFERENCE_SHARES)
SAMPLE = 600  # tasks of a split


@pytest.fixture(scope="module")
def world() -> QuickstartWorld:
    return QuickstartWorld(0)


@pytest.fixture(scope="module")
def environment(world: QuickstartWorld) -> Iterator[QuickstartEnvironment]:
    made = QuickstartEnvironment(RunConfig())
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module")
def chat(world: QuickstartWorld) -> ChatFormat:
    return ChatFormat(quickstart_chat().tokenizer, compact_menu=True)


@pytest.fixture(scope="module")
def collector(environment: QuickstartEnvironment, chat: ChatFormat) -> Collector:
    prices = PriceList("test", "2026-11-20", "test", {"orchestrator": Price()})
    limits = RolloutLimits(max_turns=6, max_calls=5, max_length=200, max_new_tokens=40)
    return Collector(environment, chat, limits, OrchestratorPrice(prices, "orchestrator", 0.0))


@pytest.fixture(scope="module")
def tasks(world: QuickstartWorld) -> dict[str, list[Task]]:
    return {split: [world.task(split, index) for index in range(SAMPLE)] for split in SPLITS}


def test_policy_steps_pose_the_training_split(environment: QuickstartEnvironment) -> None:
    for task in next(environment.train_tasks(16)):
        index = int(task.id.removeprefix("train-"))
        assert [task] == environment.world.paired_tasks("train", index, 1)


def success_probability(tool: str, kind: str) -> float:
    """The chance that one good call of the tool does a step of the kind."""
    return CHANCES[tool] if tool in RIVALS.get(kind, ()) else 0.0


def full_menus(world: QuickstartWorld, count: int, split: str = "eval") -> list[Task]:
    """Questions of every family and preferences of every kind under the full menu, in turn."""
    rng = np.random.default_rng(11)
    posed = []
    for index in range(count):
        family, kind = FAMILIES[index % len(FAMILIES)], KINDS[index // len(FAMILIES) % len(KINDS)]
        question = world.question(family, split, rng)
        kinds = [step for step, _ in question.steps]
        menu = world.menu(kinds, draw_offers(split, rng), rng, full=True)
        posed.append(world.pose(f"full-{index}", question, menu, draw_preference(kind, split, kinds, menu, rng)))
    return posed


def use(environment: Environment, pairs: list[tuple[Task, str]]) -> list[ToolResult]:
    """The result of each task's reference call of each tool, through the real environment."""

    async def all_of_them() -> list[ToolResult]:
        return await asyncio.gather(
            *(environment.reset(task, Budget()).step(reference_call(task, tool)) for task, tool in pairs)
        )

    return asyncio.run(all_of_them())


# --- what the seed fixes ---------------------------------------------------------------------------------------------

FINGERPRINT = """
import hashlib
from orchestra_jax.envs.quickstart.vocabulary import quickstart_chat
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
    drawn = [draw_offers("train", rng) for _ in range(900)]
    for rivals in RIVALS.values():
        for column in (0, 1):
            first = Counter(min(rivals, key=lambda name, o=offers, c=column: o[name][c]) for offers in drawn)
            assert stats.chisquare([first[name] for name in rivals]).pvalue > 1e-3
            for offers in drawn:
                figures = sorted(offers[name][column] for name in rivals)
                assert min(np.diff(figures)) >= 2 * OFFER_UNITS[column]
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
    assert len(vocabulary) == 575
    assert hashlib.sha256(repr(vocabulary).encode()).hexdigest().startswith("d5123447f2e436ee")


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


# --- the tools really work -------------------------------------------------------------------------------------------


def distinct(world: QuickstartWorld, family: str, count: int) -> list[Task]:
    """So many different questions of the family under the full menu, or as many as 8,000 draws find."""
    rng = np.random.default_rng(2)
    found: dict[str, QuickstartQuestion] = {}
    for _ in range(8000):
        question = world.question(family, "eval", rng)
        found.setdefault(question.text, question)
        if len(found) == count:
            break
    kinds = [kind for kind, _ in next(iter(found.values())).steps]
    menu = world.menu(kinds, draw_offers("eval", rng), rng, full=True)
    preference = draw_preference("accuracy", "eval", kinds, menu, rng)
    return [world.pose(f"{family}-{n}", question, menu, preference) for n, question in enumerate(found.values())]


def right(task: Task, result: ToolResult) -> bool:
    return read_answer(result) in task.answer


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


# --- scripts ---------------------------------------------------------------------------------------------------------


def test_a_reader_takes_the_last_word_that_says_something():
    fact, number = ToolResult("Alice Moreno was born in Lima."), ToolResult("157")
    error, nothing = ToolResult("NameError: x", is_error=True), ToolResult(NO_RESULTS)
    assert [read_answer(result) for result in (fact, number, error, nothing)] == ["Lima", "157", None, None]
    assert answer_from([fact, error, nothing]) == "Lima"
    assert answer_from([fact, number]) == "157"
    assert answer_from([error]) == answer_from([]) == NO_IDEA


def test_demonstrations_are_well_formed_and_think_of_each_step(collector: Collector, environment, tasks):
    shown = environment.demonstrations()
    runs = asyncio.run(collector.play(shown.script, tasks["train"][:250], shown.think, budget=Budget()))
    assert all(run.completed for run in runs)
    assert all(call.name in {s.name for s in run.task.tools} for run in runs for t in run.turns for call in t.calls)
    for run in runs:
        results = [result for turn in run.turns for result in turn.results]
        assert run.answer == answer_from(results)
        kinds = step_kinds(run.task)
        silent = read_answer(results[-1]) is None
        assert len(results) == len(kinds) or (silent and len(results) <= len(kinds))
        for kind, turn in zip(kinds, run.turns[:-1], strict=False):
            assert turn.text.startswith("<think> " + {"arith": "arithmetic"}.get(kind, kind))
        assert "<think>" not in run.turns[-1].text


def test_demonstrations_compare_figures_of_the_menu_and_take_the_lowest(environment, world: QuickstartWorld):
    shown = environment.demonstrations()
    for task in full_menus(world, len(FAMILIES) * len(KINDS) * 4, "train"):
        words, wish = shown.think(task, []).split(" ")[2:], task.preference.name
        told = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        offers = {s.name: {"cost": 100 * s.price_usd, "fast": s.latency_s}.get(wish) for s in task.tools}
        assert len(told) in ((2, 3) if wish in ("cost", "fast") else (0,))
        assert all(offers[name] == pytest.approx(figure) for name, figure in told.items())
        assert not told or told[first_call(shown.script, task)] == min(told.values())


@pytest.mark.parametrize("family", COMPOUND)
def test_the_last_call_takes_what_the_others_found(environment, world: QuickstartWorld, family: str):
    tools = {"lookup": "web_search", "arith": "python"}

    async def play(task: Task) -> None:
        results: list[ToolResult] = []
        episode = environment.reset(task, Budget())
        for kind in step_kinds(task):
            call = reference_call(task, tools[kind], results)
            results.append(await episode.step(call))
        assert all(str(read_answer(result)) in str(call.arguments) for result in results[:-1])
        assert answer_from(results) in task.answer

    for task in full_menus(world, len(FAMILIES) * 25):
        if task.family == family:
            asyncio.run(play(task))


@pytest.mark.parametrize("family", FAMILIES)
def test_demonstrations_choose_regardless_of_who_can_do_it(world: QuickstartWorld, family: str):
    """On full menus, because what a menu offers does depend on the family."""
    posed = [task for task in full_menus(world, len(FAMILIES) * 240, "train") if task.family == family]
    chosen = Counter(first_call(shown_tools(0), task) for task in posed)
    for rivals in RIVALS.values():  # a local tool is wished for, and the others are as good as each other
        remote = [name for name in rivals if name in EXPERTS]
        assert not remote or stats.chisquare([chosen[name] for name in remote]).pvalue > 1e-3
    assert all(0.5 < chosen[name] * len(TOOL_NAMES) / len(posed) < 1.8 for name in TOOL_NAMES)


def test_demonstrations_follow_the_wish(world: QuickstartWorld):
    posed = full_menus(world, len(FAMILIES) * len(KINDS) * 60, "train")

    def place(task: Task, figure: Callable[[Any], float]) -> float:
        called = next(spec for spec in task.tools if spec.name == first_call(shown_tools(0), task))
        return float(np.mean([figure(spec) < figure(called) for spec in task.tools]))

    figures = {"cost": lambda s: s.price_usd, "fast": lambda s: s.latency_s, "local": lambda s: float(not s.local)}
    for wish, figure in figures.items():
        mean = {kind: np.mean([place(t, figure) for t in posed if t.preference.name == kind]) for kind in KINDS}
        assert mean[wish] < 0.75 * mean["accuracy"]


def test_random_tools_are_of_the_seed(tasks: dict[str, list[Task]]):
    chosen = [[first_call(shown_tools(seed), task) for task in tasks["train"]] for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]


def first_call(script: Callable, task: Task) -> str:
    call = script(task, [])
    assert isinstance(call, ToolCall)
    return call.name


def test_the_oracle_serves_preferences_best(collector, tasks: dict[str, list[Task]]):
    runs = {
        name: asyncio.run(collector.play(script, tasks["eval"][:300], budget=Budget()))
        for name, script in BASELINES.items()
    }
    for played in runs.values():
        assert all(run.completed and len(run.tool_names) <= 3 for run in played)
    utility = preference_utility(list(runs.values()), list(runs.values()), "share").mean(axis=1)
    found = dict(zip(runs, utility, strict=True))
    assert all(found["preference_oracle"] >= other for other in found.values()), found
    accuracy = {name: np.mean([run.solved for run in played]) for name, played in runs.items()}
    cost = {name: np.mean([run.cost_usd for run in played]) for name, played in runs.items()}
    assert max(accuracy["random_tool"], accuracy["strongest_expert"]) < 0.5 < accuracy["cheapest_sufficient"]
    assert cost["cheapest_sufficient"] < cost["preference_oracle"]
