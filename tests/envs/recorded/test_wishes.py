"""What users of recorded questions wish: the settings' kinds and weights, in words that training does not have."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.data.preferences import WORDINGS
from orchestra_jax.envs.recorded.choices import PricedExpert
from orchestra_jax.envs.recorded.demonstrated import drawn, first_calls, next_model, tools_shown
from orchestra_jax.envs.recorded.environment import RecordedEnvironment
from orchestra_jax.envs.recorded.offer import mean_cost
from orchestra_jax.envs.recorded.table import Evidence
from orchestra_jax.envs.recorded.wishes import KINDS, wishes_problem, wordings_of
from orchestra_jax.money.budgets import Budget
from orchestra_jax.synthesis.near import Seen
from orchestra_jax.types import Preference, Task, ToolCall
from tests.envs.recorded.made import config, made_rows, write

WISHES = {"none": {"compute": 0.5}, "accuracy": {"compute": 0.1}, "low_cost": {"compute": 1.0}, "fast": {"latency": 1}}


@pytest.fixture
def environment(table: Path) -> RecordedEnvironment:
    return RecordedEnvironment(config(str(table), python=False, wishes=WISHES))


def test_every_kind_is_drawn_with_its_weights_and_said_but_for_none(environment: RecordedEnvironment):
    stream = environment.train_tasks(200)
    wanted = [task.preference for task in next(stream)]
    assert {each.name for each in wanted} == set(KINDS)
    for each in wanted:
        assert {"compute": each.compute, "latency": each.latency} == {"compute": 0, "latency": 0} | WISHES[each.name]
        assert (each.outcome, dict(each.tools)) == (1, {})
        assert each.instruction in (wordings_of(each.name, "train") if each.name in WORDINGS else ("",))


def test_training_says_a_wish_in_many_sentences_and_none_of_evaluation():
    held_out = [text for kind in WORDINGS for text in wordings_of(kind, "eval")]
    for kind in WORDINGS:  # of two kinds sentences may differ in one word: "Be right." and "Be cheap."
        seen = Seen(0.4)
        assert [text for text in [*held_out, *wordings_of(kind, "train")] if seen.add(text)] == []
    for kind, sentences in {"accuracy": 481, "low_cost": 473, "fast": 40}.items():
        assert len(wordings_of(kind, "train")) == sentences
        assert len(wordings_of(kind, "eval")) == 4


@pytest.mark.usefixtures("data_dir")
def test_each_word_of_a_wish_is_one_piece():
    read = RecordedEnvironment.chat(compose("+experiment=recorded")).tokenizer
    wishes = [text for kind in WORDINGS for text in wordings_of(kind, "train")]
    words = {word for text in wishes for word in re.findall(r"^[A-Za-z]+| [A-Za-z]+", text)}
    assert {word: len(pieces) for word in words if len(pieces := read.encode(word)) > 1} == {}


def test_evaluation_without_preferences_is_the_wish_that_nobody_says(environment: RecordedEnvironment):
    for task in environment.held_out(8):
        assert (task.preference.name, task.preference.instruction, task.preference.compute) == ("none", "", 0.5)
    pairs = environment.paired_preferences(4)
    assert {task.preference.compute for task in pairs["accuracy"]} == {0.1}
    assert {task.preference.latency for task in pairs["fast"]} == {1}
    assert all(task.preference.instruction in WORDINGS[kind]["eval"] for kind in pairs for task in pairs[kind])


def test_a_menu_tells_seconds_only_where_a_user_may_mind_them(table: Path):
    money = {kind: weights for kind, weights in WISHES.items() if kind != "fast"}
    for wishes, told in ((WISHES, True), (money, False), (money | {"none": {"latency": 0.1}}, True), (None, True)):
        settings = {} if wishes is None else {"wishes": wishes}
        other = RecordedEnvironment(config(str(table), python=False, **settings))
        task = other.held_out(1)[0]
        lines = [tool.description for tool in task.tools if "$" in tool.description]
        assert lines
        assert all(bool(re.search(r" [\d.]+s$", line)) is told for line in lines)
        read = other.reset(task, Budget()).messages[0]["content"]
        assert ("seconds" in read.partition("A model's line")[2]) is told
        assert ("fast" in other.paired_preferences(2)) is told


def test_a_user_of_a_served_policy_may_name_the_wishes_of_training(table: Path):
    question = "How much is 1 + 2?"
    for wishes, named in (
        (WISHES, ["best", "cheap", "fast"]), ({"none": {}, "low_cost": {"compute": 1}}, ["cheap"]),
        ({"none": {}}, []), (None, ["best", "cheap", "fast"]),
    ):  # fmt: skip
        world = RecordedEnvironment(config(str(table), python=False, **({} if wishes is None else {"wishes": wishes})))
        assert sorted(world.wishes()) == named
        for word in {"best", "cheap", "fast"} - set(named):
            with pytest.raises(
                ValueError, match=f"'{word}': write {''.join(f'{name}, or ' for name in named)}a sentence of your own."
            ):
                world.pose(question, word)
    silent = config(str(table), python=False)
    silent = replace(silent, data=replace(silent.data, preferences=False))
    assert RecordedEnvironment(silent).wishes() == {}
    assert world.pose(question, "Spend little.").preference.instruction == "Spend little."


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"rich": {}}, "maps some of none, accuracy, low_cost, fast to weights"),
        ({"none": {"money": 1}}, r"wishes\.none has the weights outcome, compute, latency"),
        ({"fast": {"latency": 2}}, r"wishes\.fast has the weight 2, which is not within \[0, 1\]"),
    ],
)
def test_wrong_wishes_are_refused_in_a_sentence(wishes, sentence, table):
    with pytest.raises(ConfigError, match=sentence):
        RecordedEnvironment(config(str(table), python=False, wishes=wishes))
    assert wishes_problem(None) is None


def test_long_questions_are_evaluated_on_and_not_trained_on(tmp_path: Path):
    rows = made_rows()
    for row in rows:
        if row["id"] in ("q1", "q2", "q3", "q5", "q6"):
            row["question"] += " Really?" * 30
    table = str(write(tmp_path / "t.jsonl", rows))
    environment = RecordedEnvironment(config(table, python=False, longest=120))
    stream = environment.train_tasks(60)
    assert max(len(task.question) for task in next(stream)) <= 120
    assert sum(map(len, environment.splits.values())) == 40
    with pytest.raises(ConfigError, match=r"longest=3 leaves no question"):
        RecordedEnvironment(config(table, python=False, longest=3))
    with pytest.raises(ConfigError, match=r"longest must be a number of characters or null, not short"):
        RecordedEnvironment(config(table, python=False, longest="short"))


def test_most_demonstrations_first_call_what_is_worth_most_to_the_user(environment: RecordedEnvironment):
    script, shown, chance = environment.demonstrations().script, dict[str, list[bool]](), dict[str, list[float]]()
    prices = environment._catalogues["train"].book.base
    usual = np.median([mean_cost(model, environment.evidence[model], prices) for model in environment.recording.models])
    evidence = drawn(environment.evidence, 3)
    for posed in next(environment.train_tasks(800)):
        task = replace(posed, extra={**posed.extra, "evidence": 3})
        priced, kind = environment.experts(task), task.preference.name
        share = {each.name: evidence[each.name].share(task.family) for each in priced}
        if kind == "fast":
            worth = {each.call.name: share[each.name] - 0.2 * math.log10(each.seconds) for each in priced}
        else:
            counts = {"accuracy": 0.013, "none": 0.055, "low_cost": 0.27}[kind]
            worth = {each.call.name: share[each.name] - counts * math.sqrt(each.usd / usual) for each in priced}
        good = [name for name in worth if worth[name] > max(worth.values()) - 0.02]
        shown.setdefault(kind, []).append(script(task, []).name in good)
        chance.setdefault(kind, []).append(len(good) / len(priced))
    assert set(shown) == {"accuracy", "none", "low_cost", "fast"}
    for kind, kept in shown.items():
        by_chance = float(np.mean(chance[kind]))
        assert np.mean(kept) > by_chance + 0.6 * (1 - by_chance), kind


def test_questions_of_a_kind_come_more_often_in_training(table: Path):
    environment = RecordedEnvironment(config(str(table), python=False, repeats={"code": 3}))
    ids = environment.splits["train"]
    codes = sum(int(name[1:]) % 4 == 0 for name in ids)
    drawn = Counter(task.extra["question"] for task in next(environment.train_tasks(len(ids) + 2 * codes)))
    assert set(drawn) == set(ids)
    assert all(n == 3 for name, n in drawn.items() if int(name[1:]) % 4 == 0)
    assert all(n == 1 for name, n in drawn.items() if int(name[1:]) % 4)
    with pytest.raises(ConfigError, match=r"names poem, and kinds here are code, sum: set env.options.repeats=null"):
        RecordedEnvironment(config(str(table), python=False, repeats={"poem": 2}))
    with pytest.raises(ConfigError, match=r"must map kinds of questions to whole numbers from 1, not \{'code': 0\}"):
        RecordedEnvironment(config(str(table), python=False, repeats={"code": 0}))


def test_menus_of_demonstrations_show_shares_of_their_own_and_others_the_true_ones(environment: RecordedEnvironment):
    true = {evidence.description for evidence in environment.evidence.values()}

    def shown(tasks: Sequence[Task]) -> list[str]:
        models = [spec for task in tasks for spec in task.tools if "$" in spec.description]
        return [spec.description.split(" $")[0] for spec in models]

    assert set(shown(next(environment.train_tasks(40)))) <= true
    assert set(shown(environment.held_out(10))) <= true
    demonstrated = environment.demonstrations()
    assert set(shown(demonstrated.gate)) <= true
    task = demonstrated.tasks[0]
    described = {each.description for each in drawn(environment.evidence, task.extra["evidence"]).values()}
    assert set(shown([task])) <= described
    assert not described & true
    others = [drawn(environment.evidence, seed) for seed in range(300)]
    for model, known in environment.evidence.items():
        assert np.mean([each[model].accuracy for each in others]) == pytest.approx(known.accuracy, abs=0.03)


def test_a_model_that_is_better_by_a_step_is_shown_e_times_as_often():
    evidence = {"good": Evidence(0.506, {}, 1, 1), "near": Evidence(0.5, {}, 1, 1), "dear": Evidence(0.5, {}, 1, 1)}
    offered = [
        PricedExpert(name, ToolCall(name.upper(), {}), usd, 1.0)
        for name, usd in (("good", 0.001), ("near", 0.001), ("dear", 0.004))
    ]
    task = Task(id="t", question="How much?", answer="1", tools=(), preference=Preference("low_cost", ""))
    shown = tools_shown(task, offered, evidence, usual_usd=0.001, most=3)
    # The usual price counts for 40 points of right answers under this wish, and four times as much for 80.
    assert list(shown) == ["GOOD", "NEAR", "DEAR"]
    assert [*shown.values()] == pytest.approx([math.e / (1 + math.e), 1 / (1 + math.e), 0], abs=1e-6)
    assert first_calls(shown) == [
        (ToolCall("GOOD", {}), pytest.approx(math.e / (1 + math.e))),
        (ToolCall("NEAR", {}), pytest.approx(1 / (1 + math.e))),
    ]


def test_who_wants_it_right_has_a_cheap_model_check_and_the_most_right_one_asked_where_they_differ():
    evidence = {
        "usual": Evidence(0.9, {}, 1, 1),
        "near": Evidence(0.89, {}, 1, 1),
        "weak": Evidence(0.6, {}, 1, 1),
        "dear": Evidence(0.96, {}, 1, 1),
    }
    offered = [PricedExpert(name, ToolCall(name.upper(), {}), 0.001, 1.0) for name in ("usual", "near", "weak")]
    offered.append(PricedExpert("dear", ToolCall("DEAR", {}), 0.009, 1.0))
    task = Task(id="t", question="How much?", answer="1", tools=(), preference=Preference("accuracy", ""))
    told = task, offered, evidence, 0.001, 3
    assert next(iter(tools_shown(*told))) == "USUAL"  # as without a wish
    assert next_model(*told, ["USUAL"], agreed=False) == "NEAR"
    assert next_model(*told, ["NEAR"], agreed=False) == "USUAL"
    assert next_model(*told, ["USUAL", "NEAR"], agreed=True) is None
    assert next_model(*told, ["USUAL", "NEAR"], agreed=False) == "DEAR"
    assert next_model(*told, ["DEAR"], agreed=False) == "USUAL"  # who is the most right one is no reason to stop
    assert next_model(*told, ["DEAR", "USUAL"], agreed=False) == "NEAR"
    near = task, [*offered[:-1], replace(offered[-1], usd=0.0011)], evidence, 0.001, 3
    assert next_model(*near, ["USUAL"], agreed=False) == "DEAR"  # it is cheap enough to check
    assert next_model(*near, ["USUAL", "DEAR"], agreed=False) == "NEAR"
    assert next_model(*told, [model.call.name for model in offered], agreed=False) is None  # all were asked
    for kind in ("none", "low_cost", "fast"):
        other = replace(task, preference=Preference(kind, ""))
        assert next_model(other, *told[1:], ["USUAL"], agreed=False) is None
    two = task, offered[-2:], evidence, 0.001, 3
    assert next(iter(tools_shown(*two))) == "DEAR"
    assert next_model(*two, ["WEAK"], agreed=False) is None
    for few in (1, 2):  # no room for a check and a third answer
        alone = *told[:-1], few
        assert next(iter(tools_shown(*alone))) == "DEAR"
        assert next_model(*alone, ["DEAR"], agreed=False) is None
