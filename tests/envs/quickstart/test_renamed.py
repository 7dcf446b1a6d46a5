"""The quickstart's world with tools under other names."""

import asyncio
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice

import pytest
from rich.console import Console

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.quickstart import unseen
from orchestra_jax.envs.quickstart.environment import PAIRED_KINDS, QuickstartEnvironment
from orchestra_jax.envs.quickstart.facts import TOOL_NAMES, original
from orchestra_jax.envs.quickstart.plans import able_tools, best_plan, step_kinds
from orchestra_jax.envs.quickstart.renamed import COLOURS, NAMES, ROLES, UNSEEN, RenamedQuickstart
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.evaluation.calls import called_tools
from orchestra_jax.models.tokenizer import UNKNOWN
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.training.loggers.live import FamilyTable
from orchestra_jax.training.loggers.transcripts import transcript
from orchestra_jax.types import ToolCall
from tests.envs.quickstart.posed import names, use
from tests.rl.trajectories import trajectory, turn

CFG = compose("+experiment=new_tools", "evaluation.swap_questions=8", "warm_start.demonstrations=1000")
TRAINED, HELD_OUT = (set(chain(*NAMES[split])) for split in ("train", "eval"))


@pytest.fixture(scope="module")
def environment() -> Iterator[RenamedQuickstart]:
    made = make_environment(CFG)
    assert isinstance(made, RenamedQuickstart)
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(RenamedQuickstart.chat(CFG).tokenizer, compact_menu=True)


def test_figures_and_the_live_table_count_a_tool_under_its_usual_name(environment: RenamedQuickstart) -> None:
    table, console = FamilyTable(), Console(file=io.StringIO(), width=100, height=40)
    posed = [*islice(environment.train_tasks(32), 4)]
    rollouts = [
        trajectory(task, turn([1], [2], " ".join(spec.name for spec in task.tools)), turn([3], [4]))
        for task in chain(*posed)
    ]
    for task, rollout in zip(chain(*posed), rollouts, strict=True):
        assert called_tools(rollout) == [original(spec) for spec in task.tools]
        for spec in task.tools:
            if spec.name in TRAINED:
                assert f"{spec.name} = {original(spec)}" in transcript(rollout)
    table.add(rollouts)
    with console.capture() as shown:
        console.print(table)
    first = [line.split()[0] for line in shown.get().partition("first call, %")[2].splitlines() if line.split()]
    assert set(first) & (TRAINED | HELD_OUT) == set()
    assert set(first) & set(TOOL_NAMES) == {original(task.tools[0]) for task in chain(*posed)}


def test_held_out_names_are_new_pairs_of_words_that_training_has() -> None:
    assert (len(TRAINED), len(HELD_OUT)) == (112, 28)
    assert TRAINED.isdisjoint(HELD_OUT)
    for some in (TRAINED, HELD_OUT):
        colours, roles = (set(words) for words in zip(*(name.split("-") for name in some), strict=True))
        assert (colours, roles) == (set(COLOURS), set(ROLES))


def test_training_shows_half_of_them_under_names_that_evaluation_never_has(environment: RenamedQuickstart) -> None:
    shown = environment.demonstrations()
    posed = [*chain(*islice(environment.train_tasks(32), 20)), *shown.tasks[:300], *shown.gate]
    found = [spec.name for task in posed for spec in task.tools]
    other = [name for name in found if name not in TOOL_NAMES]
    assert len(other) / len(found) == pytest.approx(0.5, abs=0.05)
    assert set(other) <= TRAINED
    assert len(set(other)) > 100
    assert all(len(names(task)) == len(task.tools) for task in posed)  # no two tools share a name
    assert set().union(*map(names, environment.held_out(64))) == set(TOOL_NAMES)


def test_everything_but_names_is_that_of_the_usual_world(environment: RenamedQuickstart) -> None:
    usual = QuickstartEnvironment(CFG)
    for before, after in zip(next(usual.train_tasks(32)), next(environment.train_tasks(32)), strict=True):
        usual_names = {spec.name: original(spec) for spec in after.tools}
        assert tuple(replace(spec, name=original(spec)) for spec in after.tools) == before.tools
        wanted = {usual_names[name]: weight for name, weight in after.preference.tools.items()}
        assert (
            replace(after, tools=before.tools, preference=replace(after.preference, tools=wanted), extra=before.extra)
            == before
        )
    asyncio.run(usual.close())


def test_menus_of_new_tools_differ_in_names_alone(environment: RenamedQuickstart) -> None:
    usual, parts = unseen.unseen_prices(environment, CFG), unseen.unseen_tools(environment, CFG)
    for wish in PAIRED_KINDS:
        for before, after in zip(usual[f"usual_{wish}"], parts[f"renamed_{wish}"], strict=True):
            assert replace(after, tools=before.tools, extra=before.extra) == before
            assert tuple(replace(spec, name=original(spec)) for spec in after.tools) == before.tools
            assert set(TOOL_NAMES) - names(after) == set(UNSEEN)
            assert names(after) - set(TOOL_NAMES) <= HELD_OUT
    menus = [[task.tools for task in parts[f"renamed_{wish}"]] for wish in PAIRED_KINDS]
    assert menus == [menus[0]] * len(PAIRED_KINDS)


def test_a_renamed_tool_works_as_before_and_the_best_plan_names_it(environment: RenamedQuickstart) -> None:
    usual, parts = unseen.unseen_prices(environment, CFG), unseen.unseen_tools(environment, CFG)
    for before, after in zip(usual["usual_cost"], parts["renamed_cost"], strict=True):
        new = {old.name: spec.name for old, spec in zip(before.tools, after.tools, strict=True)}
        results = [
            use(environment, [(task, name) for name in some]) for task, some in ((before, new), (after, new.values()))
        ]
        assert [result.text for result in results[0]] == [result.text for result in results[1]]
        assert [new[name] for name in best_plan(before)] == list(best_plan(after))
        changed = sum(old in UNSEEN for old in best_plan(before))
        assert unseen.followed(before, after, best_plan(after)) == [True] * changed
        assert unseen.followed(before, after, best_plan(before)) == [False] * changed


def test_demonstrations_compare_tools_that_can_do_the_next_step(environment: RenamedQuickstart) -> None:
    shown, chosen = environment.demonstrations(), Counter[str]()
    assert shown.think is not None
    for task in shown.tasks[:300]:
        call, kind = shown.script(task, []), step_kinds(task)[0]
        assert isinstance(call, ToolCall)
        able = [spec.name for spec in able_tools(task, kind)]
        words = shown.think(task, []).removeprefix("first ").split(" ")
        assert words[0] == next(iter(able_tools(task, kind))).description.split(":")[0]
        figures = [int(word) for word in words if word.isdigit()]
        assert {word for word in words[2:] if not word.isdigit()} <= set(able)
        assert not figures or figures[2] == min(figures[:2])
        assert call.name in able
        chosen[next(original(spec) for spec in task.tools if spec.name == call.name)] += 1
    assert set(chosen) == set(TOOL_NAMES)  # of the tools that can, any


def test_the_figure_that_is_said_again_is_no_figure_of_the_menu(environment: RenamedQuickstart) -> None:
    shown, read = environment.demonstrations(), Counter[bool | None]()
    assert shown.think is not None
    for task in shown.tasks[:300]:
        call, said = shown.script(task, []), shown.think(task, [])
        assert isinstance(call, ToolCall)
        read[shown.reads_menu(task, f"<think> {said}</think>", call.name)] += 1
    assert set(read) == {True, None}  # None: the wish is about neither cents nor seconds


def test_menus_that_do_not_say_what_a_tool_can_do_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"set \+benchmark=new_tools"):
        unseen.unseen_tools(object(), CFG)  # type: ignore[arg-type]


def test_a_line_of_the_menu_begins_with_what_the_tool_does(environment: RenamedQuickstart, chat: ChatFormat) -> None:
    unknown = chat.tokenizer.convert_tokens_to_ids(UNKNOWN)
    posed = [*next(environment.train_tasks(32)), *chain(*unseen.unseen_tools(environment, CFG).values())]
    for task in posed:
        episode = environment.reset(task, Budget())
        prompt = chat.prompt_ids(episode.messages, episode.tools)
        assert unknown not in prompt
        for spec in task.tools:
            does = spec.description.split(":")[0]
            figures = f"{round(100 * (spec.price_usd or 0))} {round(spec.latency_s or 0)}"
            assert f"; {does} {'local ' * spec.local}{spec.name} {figures}" in chat.decode(prompt)
            assert len(chat.encode(f" {spec.name}")) == (2 if "-" in spec.name else 1)
