"""env=recorded on a made table: no test number is in a menu, unseen models stay unseen, calls cost what lists say."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.figures import figures
from orchestra_jax.config.schema import ConfigError, RunConfig, WarmStartConfig
from orchestra_jax.envs import baselines
from orchestra_jax.envs.recorded.environment import EVAL, PRICES, RecordedEnvironment, unseen_recorded
from orchestra_jax.envs.recorded.environment import UNSEEN as UNSEEN_MENUS
from orchestra_jax.envs.recorded.offer import NO_CODE, SAME, code_of, cut
from orchestra_jax.envs.registry import environment_class
from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.types import Task, ToolCall, ToolResult
from tests.envs.recorded.made import CHEAP, CODE, HOUSE, MODELS, STRONG, UNSEEN, config, is_right, made_rows, write


def play(environment: RecordedEnvironment, name: str, tasks: Sequence[Task]) -> tuple[float, float, int]:
    """Accuracy, dollars a question and calls of a baseline."""
    script = baselines.baseline(environment, name, tasks, 4).script

    async def one(task: Task) -> tuple[bool, float, int]:
        episode, results = environment.reset(task, Budget()), list[ToolResult]()
        while isinstance(said := script(task, results), ToolCall):
            results.append(await episode.step(said))
        spent = sum(row.cost_usd for result in results for row in result.usage)
        return bool(await episode.score(said)), spent, len(results)

    async def every() -> list[tuple[bool, float, int]]:
        return [await one(task) for task in tasks]

    solved, dollars, calls = zip(*asyncio.run(every()), strict=True)
    return sum(solved) / len(tasks), sum(dollars) / len(tasks), sum(calls)


def called(environment: RecordedEnvironment, task: Task, key: str, **arguments: str) -> ToolResult:
    """The result of one call of a tool by its key in the catalogue."""
    names = {key: name for name, key in task.extra["instance"]["tools"].items()}
    return asyncio.run(environment.reset(task, Budget()).step(ToolCall(names[key], arguments)))


def everything_shown(environment: RecordedEnvironment) -> list:
    """All that a policy can read before its first call, in training and evaluation, and what demonstrations show."""
    stream = environment.train_tasks(16)
    tasks = [*next(stream), *next(stream), *environment.demonstrations().tasks]
    tasks += [task for offer in (EVAL, UNSEEN_MENUS, PRICES) for task in environment.posed(offer, 8)]
    return [(task.id, task.tools, environment.reset(task, Budget()).messages) for task in tasks]


def test_no_number_of_the_other_splits_is_in_what_a_policy_reads(table: Path):
    honest = RecordedEnvironment(config(str(table), python=False))
    held_back = {*honest.splits["validation"], *honest.splits["test"]}

    def forged(ids: set[str]) -> RecordedEnvironment:
        rows = made_rows()
        for row in rows:
            if row["id"] in ids:
                row |= {"correct": not row["correct"], "output": "x" * 99, "answer": "x" * 99}
                row |= {"tokens": 900, "latency": 70.0, "cost": 9.0}
        return RecordedEnvironment(config(str(write(table.with_name("forged.jsonl"), rows)), python=False))

    shown = everything_shown(honest)
    assert everything_shown(forged(held_back)) == shown
    # The same forgery of one training question is seen.
    assert everything_shown(forged({honest.splits["train"][0]})) != shown


def test_descriptions_are_the_evidence_of_the_training_split(table: Path):
    environment = RecordedEnvironment(config(str(table), python=False))
    rows = [row for row in made_rows() if row["model"] == STRONG and row["id"] in environment.splits["train"]]
    shares = []
    for kind in ("code", "sum"):
        own = [row["correct"] for row in rows if row["family"] == kind]
        shares.append(str(round(100 * sum(own) / len(own))))
    known = environment.evidence[STRONG]
    assert known.description == "/".join(shares)
    task = environment.held_out(1)[0]
    texts = [spec.description for spec in task.tools]
    tokens = known.prompt_tokens, known.completion_tokens
    listed = round(3 * round(tokens[0]) + 15 * round(tokens[1]))  # dollars per million questions
    assert any(text.startswith(f"{known.description} ${float(f'{listed:.2g}'):.0f} ") for text in texts)
    assert any(" $2000 " in text for text in texts)  # not listed: $.002 a question, as its rows say
    assert [int(text.split("$")[1].split()[0]) for text in texts] == sorted(
        int(text.split("$")[1].split()[0]) for text in texts
    )
    assert {spec.name for spec in task.tools} == {"expert-1", "expert-2", "expert-3"}
    assert not any(
        model in json.dumps([text, list(spec.parameters)]) for model in MODELS for spec in task.tools for text in texts
    )


def test_unseen_models_and_prices_are_in_their_parts_alone(table: Path):
    cfg = config(str(table), python=False)
    environment = RecordedEnvironment(cfg)
    stream = environment.train_tasks(50)
    trained = [*next(stream), *next(stream), *environment.demonstrations().tasks, *environment.held_out(99)]
    offered = {key for task in trained for key in task.extra["instance"]["tools"].values()}
    assert offered == {f"generalist/{model}" for model in (STRONG, CHEAP, HOUSE)}
    assert {task.extra["instance"]["prices"]["list"] for task in trained} == {"recorded-2024"}
    parts = unseen_recorded(environment, cfg)
    assert {task.id for tasks in parts.values() for task in tasks} == set(environment.splits["test"])
    assert {key for task in parts["unseen_models"] for key in task.extra["instance"]["tools"].values()} == {
        f"generalist/{UNSEEN}"
    }
    assert {task.extra["instance"]["prices"]["list"] for task in parts["unseen_prices"]} == {"recorded-swapped"}
    assert not {task.id for task in trained[:100]} & set(environment.splits["test"])


def test_a_call_costs_its_tokens_at_the_list_and_takes_them_at_the_stated_speed(table: Path):
    environment = RecordedEnvironment(config(str(table), python=False))
    task = environment.held_out(1)[0]
    number = int(task.id[1:])
    (row,) = called(environment, task, f"generalist/{STRONG}").usage
    assert row.cost_usd == pytest.approx((50 * 3 + (10 + number) * 15) / 1e6)
    assert (row.prompt_tokens, row.completion_tokens, row.price_list) == (50, 10 + number, "recorded-2024")
    assert row.seconds == pytest.approx((10 + number) / 60, rel=1e-3)
    (other,) = called(environment, task, f"generalist/{CHEAP}").usage  # a hundred tokens a second by the list
    assert other.seconds == pytest.approx((10 + number) / 100)
    (own,) = called(environment, task, f"generalist/{HOUSE}").usage
    assert (own.cost_usd, own.seconds) == (0.002, 3.0)


def test_a_trajectorys_allowance_refuses_a_recorded_call_and_the_run_pays_nothing(table: Path):
    environment = RecordedEnvironment(config(str(table), python=False))
    task = environment.held_out(1)[0]
    strong = (50 * 3 + (10 + int(task.id[1:])) * 15) / 1e6
    run = Budget(name="run")
    limits = {"strong": Limits(usd=1.5 * strong), "own": Limits(usd=0.003)}
    for kind, model in (("strong", STRONG), ("own", HOUSE)):
        names = {key: name for name, key in task.extra["instance"]["tools"].items()}
        episode = environment.reset(task, Budget(limits[kind], name="trajectory", parent=run))
        first, second = (asyncio.run(episode.step(ToolCall(names[f"generalist/{model}"], {}))) for _ in range(2))
        assert (first.refused, len(first.usage)) == (False, 1)
        assert (second.refused, second.is_error, second.usage) == (True, True, ())
    assert (run.spent.usd, run.spent.calls) == (0.0, 0)


def test_baselines_that_are_played_come_to_the_figures_of_the_table(table: Path):
    environment = RecordedEnvironment(config(str(table), python=False, unseen=[]))
    tasks, splits = environment.held_out(99), environment.splits
    prices = environment._catalogues[EVAL].book.base
    recording = environment.recording
    told = figures(recording.of(splits["test"]), prices, recording.of(splits["train"]))
    for name in ("best", "best_per_family", "cheapest", *(f"expert/{model}" for model in MODELS)):
        accuracy, dollars, calls = play(environment, name, tasks)
        assert (accuracy, 100 * dollars, calls) == (told[name].accuracy, pytest.approx(told[name].cents), len(tasks))
    assert play(environment, "oracle", tasks)[0] == told["oracle"].accuracy
    assert play(environment, "cheapest_first", tasks)[2] > len(tasks)


def test_code_of_a_question_is_run_by_the_real_sandbox(table: Path):
    environment = RecordedEnvironment(config(str(table)))
    tasks = environment.held_out(99)
    code = next(task for task in tasks if task.family == "code")
    number = int(code.id[1:])
    result = called(environment, code, "python")
    assert (environment.said(code, result), result.is_error) == (f"[{number}, 'a']", False)
    assert called(environment, code, "python", code="print(6 * 7)").text.strip() == "42"
    total = next(task for task in tasks if task.family == "sum")
    assert called(environment, total, "python").text == NO_CODE
    assert play(environment, "code_first", [code])[0] == 1.0
    asyncio.run(environment.close())
    assert code_of(CODE.format(3)) == "def f(x):\n    return [x, 'a']\nf(3)"
    assert code_of("[PYTHON]\nprint(1)\n[/PYTHON]") is None


def test_a_full_observation_shows_the_output_and_says_its_answer(table: Path):
    environment = RecordedEnvironment(config(str(table), python=False, observation="full"))
    task = environment.held_out(1)[0]
    result = called(environment, task, f"generalist/{STRONG}")
    assert result.text.startswith('{"reasoning"')
    short = RecordedEnvironment(config(str(table), python=False))
    assert environment.said(task, result) == called(short, short.held_out(1)[0], f"generalist/{STRONG}").text


@pytest.mark.parametrize("observation", ["answer", "full"])
def test_an_answer_that_another_tool_gave_before_is_marked_and_handed_over_without_the_mark(
    table: Path, observation: str
):
    cfg = config(str(table), python=False, unseen=[], observation=observation)
    environment = RecordedEnvironment(replace(cfg, tools=replace(cfg.tools, relay=True)))
    agreed = 0
    for task in environment.held_out(99):
        number, tools = int(task.id[1:]), task.extra["instance"]["tools"]
        one, other = (name for name, key in tools.items() if key.partition("/")[2] in (STRONG, HOUSE))
        said = {is_right(model, number) for model in (STRONG, HOUSE)}

        async def results(task: Task = task, calls: Sequence[str] = (one, one, other, "relay")) -> list[ToolResult]:
            episode = environment.reset(task, Budget())
            return [await episode.step(ToolCall(name, {})) for name in calls]

        first, again, second, handed = asyncio.run(results())
        assert not first.text.endswith(SAME)
        assert again.text == first.text  # the same tool tells nothing new
        assert second.text.endswith(SAME) == (len(said) == 1)
        assert handed.final == second.text.removesuffix(SAME)
        assert environment.said(task, second) == handed.final if observation == "answer" else True
        agreed += second.text.endswith(SAME)
    assert agreed


def test_answers_that_only_begin_alike_or_are_cut_are_not_marked(table: Path):
    cut_off, texts = 130 * "y", {STRONG: ("3", "{}1"), HOUSE: ("3/2", "{}2"), CHEAP: ("3.0", "z")}
    rows = [
        without_reference(row) | {"output": texts.get(row["model"], ("x", "x"))[int(row["id"][1:]) % 2].format(cut_off)}
        for row in made_rows()
    ]
    environment = RecordedEnvironment(config(str(write(table, rows)), python=False, unseen=[]))
    for task in environment.held_out(99):
        names = {key.partition("/")[2]: name for name, key in task.extra["instance"]["tools"].items()}

        async def results(task: Task = task, names: dict[str, str] = names) -> list[str]:
            episode = environment.reset(task, Budget())
            return [(await episode.step(ToolCall(names[model], {}))).text for model in (STRONG, HOUSE, CHEAP)]

        marked = [text.endswith(SAME) for text in asyncio.run(results())]
        assert marked == [False, False, int(task.id[1:]) % 2 == 0]


def test_demonstrations_begin_with_various_tools_and_preferences_are_posed_in_pairs(table: Path):
    environment = RecordedEnvironment(config(str(table), python=False))
    told = environment.demonstrations()
    assert len(told.tasks) == 4
    assert {told.script(task, []).name for task in told.tasks} <= {"expert-1", "expert-2", "expert-3"}
    with_sandbox = RecordedEnvironment(replace(config(str(table)), warm_start=WarmStartConfig(demonstrations=400)))
    told_too = with_sandbox.demonstrations()
    offered = [task for task in told_too.tasks if any(spec.name == "python" for spec in task.tools)]
    for task in told_too.tasks:
        begins = told_too.beginnings(task)
        assert begins[0][0] == told_too.script(task, [])
        assert sum(share for _, share in begins) == pytest.approx(1)
    assert any(len(told_too.beginnings(task)) > 1 for task in told_too.tasks)
    silent, first = ToolResult("none", is_error=True), list[bool]()
    for task in offered:
        names = [told_too.script(task, [silent] * count).name for count in range(min(3, len(task.tools) - 1))]
        assert len(set(names)) == len(names)
        if code_of(task.question) is None:
            assert "python" not in names
        else:
            first.append(names[0] == "python")
    assert len(first) > 50
    assert all(first)
    pairs = environment.paired_preferences(3)
    assert [[task.id for task in tasks] for tasks in pairs.values()] == [[t.id for t in environment.held_out(3)]] * 3
    assert pairs["low_cost"][0].preference.compute == 1.0
    assert environment.largest_menu() == 3


def limited(path: Path, turns: int, calls: int, relay: bool = False) -> RunConfig:
    cfg = config(str(path), python=False)
    limits = replace(cfg.rollout.limits, max_turns=turns, max_calls=calls)
    return replace(cfg, rollout=replace(cfg.rollout, limits=limits), tools=replace(cfg.tools, relay=relay))


@pytest.mark.parametrize(
    ("turns", "calls", "relay", "most"),
    [(9, 9, False, 3), (3, 9, False, 2), (9, 1, False, 1), (9, 9, True, 3), (9, 2, True, 1)],
)
def test_a_demonstration_ends_within_the_turns_and_calls_of_the_policy(
    table: Path, turns: int, calls: int, relay: bool, most: int
):
    told = RecordedEnvironment(limited(table, turns, calls, relay)).demonstrations()
    silent = ToolResult("none", is_error=True)
    steps = [told.script(told.tasks[0], [silent] * count) for count in range(most + 1)]
    assert [isinstance(step, ToolCall) for step in steps] == [True] * most + [False]


@pytest.mark.parametrize(("turns", "calls", "relay", "limit"), [(1, 9, False, "turns"), (9, 1, True, "calls")])
def test_limits_without_room_for_an_answer_are_refused(table: Path, turns: int, calls: int, relay: bool, limit: str):
    (problem,) = RecordedEnvironment.problems(limited(table, turns, calls, relay))
    assert problem.endswith(f"set rollout.limits.max_{limit}=2 or more.")
    assert RecordedEnvironment.problems(limited(table, 2, 2, relay)) == []


def test_a_long_question_is_read_without_its_middle_and_asked_whole(table: Path):
    for text in ("How much is it? " + 300 * "x" + " Say it.", 100 * "é" + "?"):
        rows = [row | {"question": f"{row['id']} {text}"} for row in made_rows()]
        environment = RecordedEnvironment(config(str(write(table, rows)), python=False, read=80))
        task = environment.held_out(1)[0]
        read = environment.reset(task, Budget()).messages[-1]["content"]
        begun, _, ended = read.partition(" ... ")
        assert len(read.encode()) <= 80
        assert task.question.startswith(begun)
        assert task.question.endswith(ended.strip())
        assert len(begun) > len(ended) > 10
        assert text in task.question
    assert cut("short", 80) == "short"
    assert cut(400 * "y", None) == 400 * "y"


def without_reference(row: dict) -> dict:
    return {key: value for key, value in row.items() if key != "answer"}


def test_without_references_right_is_what_a_right_model_said(table: Path):
    rows = [without_reference(row) for row in made_rows()]
    environment = RecordedEnvironment(config(str(write(table, rows)), python=False))
    tasks = environment.held_out(99)
    asked = {row["id"]: row["answer"] for row in made_rows()}
    assert all(task.answer in ((asked[task.id],), ()) for task in tasks)
    assert play(environment, "best", tasks)[0] > 0.5


def test_without_references_a_text_of_wrong_models_alone_is_wrong(table: Path):
    """A wrong sentence may name a right model's number; the table's word counts, and a long right text is whole."""
    long = f"Because {'of this and that ' * 9}it is {{}}."
    rows = [
        without_reference(row) | {"output": long.format(1) if row["correct"] else "It is 1 of 2."}
        for row in made_rows()
    ]
    environment = RecordedEnvironment(config(str(write(table, rows)), python=False, unseen=[], observation="full"))
    tasks = environment.held_out(99)
    for model in MODELS:
        expected = sum(is_right(model, int(task.id[1:])) for task in tasks) / len(tasks)
        assert play(environment, f"expert/{model}", tasks)[0] == pytest.approx(expected)


@pytest.mark.parametrize("observation", ["answer", "full"])
@pytest.mark.parametrize("end", ["", "\nIs there anything else?"])
def test_long_answers_without_references_are_right_if_the_table_says_so(table: Path, observation: str, end: str):
    """They are shown in part alone, and models may end with the same words."""
    rows = [
        without_reference(row) | {"output": f"{row['model']} on {row['id']}: {60 * 'word '}{row['correct']}.{end}"}
        for row in made_rows()
    ]
    environment = RecordedEnvironment(config(str(write(table, rows)), python=False, unseen=[], observation=observation))
    tasks = environment.held_out(99)
    for model in MODELS:
        right = [is_right(model, int(task.id[1:])) for task in tasks]
        assert play(environment, f"expert/{model}", tasks)[0] == np.mean(right)
    episode = environment.reset(tasks[0], Budget())  # where nobody was asked
    assert not asyncio.run(episode.score("something else"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"observation": "some"}, "observation must be answer or full"),
        ({"unseen": ["gpt-9"]}, "unseen names gpt-9"),
        ({"unseen": list(MODELS)}, "names every model"),
        ({"unseen_prices": "recorded"}, "is a list that training has"),
        ({"wish": 1}, "not wish"),
        ({"read": 7}, "read must be a number of bytes >= 40 or null, not 7"),
        ({"path": "nowhere.csv"}, "No recorded answers at nowhere.csv"),
    ],
)
def test_what_cannot_be_used_is_told_in_a_sentence(table: Path, options: dict, said: str):
    cfg: RunConfig = config(**{"path": str(table), "python": False, **options})
    with pytest.raises(ConfigError, match=said):
        environment_class(cfg)(cfg)
