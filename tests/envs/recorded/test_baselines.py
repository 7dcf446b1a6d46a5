"""Policies by hand on a made table: what they ask whom, and that they know the training split alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.envs import baselines
from orchestra_jax.envs.recorded import policies, router
from orchestra_jax.envs.recorded.choices import PricedExpert, scripted
from orchestra_jax.envs.recorded.environment import RecordedEnvironment
from orchestra_jax.envs.recorded.table import Evidence
from orchestra_jax.types import Preference, Task, ToolCall, ToolResult, Usage
from tests.envs.recorded.made import CHEAP, HOUSE, MODELS, STRONG, config, made_rows, write

LEARNED = {
    "cascade_trusted",
    *(f"router{code}{wish}" for code in ("", "_code") for wish in ("", "_right", "_cheap", "_fast")),
    *(f"knn{code}{wish}" for code in ("", "_code") for wish in ("", "_right")),
}


def asked(environment: RecordedEnvironment, name: str, task: Task, says: Mapping[str, str]) -> tuple[list[str], str]:
    """What a baseline calls, by model or tool, and its answer, where each says this; one that is absent fails."""
    script, keys = environment.baselines()[name], task.extra["instance"]["tools"]
    called, results = list[str](), list[ToolResult]()
    while isinstance(said := script(task, results), ToolCall):
        called.append(keys[said.name].rpartition("/")[2] if HOUSE not in keys[said.name] else HOUSE)
        text = says.get(called[-1])
        results.append(ToolResult(text or "it failed", (Usage(called[-1]),), is_error=text is None))
    return called, said


def about(environment: RecordedEnvironment, family: str) -> Task:
    return next(task for task in environment.held_out(99) if task.family == family)


def test_every_expert_alone_stands_in_the_table_and_none_speaks_tokens(table: Path):
    environment = RecordedEnvironment(config(str(table), python=False, unseen=[]))
    found = environment.baselines()
    assert {name for name in found if name.startswith(baselines.EXPERT)} == {baselines.EXPERT + name for name in MODELS}
    assert {"random", "cheapest_first", "best", "code_cheap", "code_cheap_strong", "cascade", "oracle"} <= found.keys()
    assert baselines.baseline(environment, "cascade", environment.held_out(1), 4).silent


def test_without_scikit_learn_the_others_are_there_and_a_sentence_tells_once(table: Path, monkeypatch, capsys):
    monkeypatch.setattr(router, "available", lambda: False)
    environment = RecordedEnvironment(config(str(table), python=False))
    capsys.readouterr()  # what was read
    assert environment.baselines().keys() == environment.baselines().keys() >= {"best", "cascade", "oracle"}
    assert not environment.baselines().keys() & LEARNED
    assert capsys.readouterr().out.splitlines() == [router.NEEDS]


def test_a_cascade_asks_the_strong_one_where_two_cheaper_ones_differ():
    known = {"weak": 0.5, "cheap": 0.8, "other": 0.85, "strong": 0.95, "dear": 0.9}
    evidence = {name: Evidence(share, {"sum": share}, 1.0, 1.0) for name, share in known.items()}
    menu = [PricedExpert(name, ToolCall(name, {}), place, 1.0) for place, name in enumerate(known)]
    task = Task("1", "How much is 3 + 4?", ("7",), (), Preference("accuracy", ""), family="sum")

    def called(says: Mapping[str, str], offered: Sequence[PricedExpert]) -> tuple[list[str], str]:
        script, results = scripted(policies._agreeing(lambda _: offered, evidence), lambda each: each.text or None), []
        names = list[str]()
        while isinstance(said := script(task, results), ToolCall):
            names.append(said.name)
            results.append(ToolResult(says.get(said.name, "")))
        return names, said

    assert called({"cheap": "7", "other": "7.0"}, menu) == (["cheap", "other"], "7")
    differ = {"cheap": "7", "other": "8", "strong": "9"}
    assert called(differ, menu) == (["cheap", "other", "strong"], "9")
    assert called({"cheap": "7"}, menu) == (["cheap", "other", "strong"], "7")  # what is left where others fail
    assert called(differ, [menu[1], menu[3]]) == (["strong"], "9")  # one alone cannot be checked


def test_code_is_run_first_and_the_models_are_asked_where_it_fails(table: Path):
    environment = RecordedEnvironment(config(str(table)))
    code, total = about(environment, "code"), about(environment, "sum")
    for name in ("code_first", "code_cheap", "code_cheap_strong", "code_then_cheapest_good", "cascade"):
        assert asked(environment, name, code, {"python": "[1]"}) == (["python"], "[1]")
        called, answer = asked(environment, name, code, {STRONG: "2"})
        assert (called[0], called[-1], answer) == ("python", STRONG, "2")
        assert "python" not in asked(environment, name, total, dict.fromkeys(MODELS, "3"))[0]
    # The cheap model never gets code right: one for everything is the strong one, and by kind it is not.
    assert asked(environment, "code_then_cheapest_good", total, {CHEAP: "3"}) == ([CHEAP], "3")


def wishing(task: Task, kind: str) -> Task:
    return replace(task, preference=Preference(kind, "Please."))


def test_the_router_learns_whom_to_ask_and_heeds_the_wish(table: Path):
    pytest.importorskip("sklearn", reason="pip install 'orchestra-jax[router]'")
    environment = RecordedEnvironment(config(str(table)))
    code, total = about(environment, "code"), about(environment, "sum")
    says = dict.fromkeys(MODELS, "3") | {"python": "[1]"}
    assert environment.baselines().keys() >= LEARNED
    assert asked(environment, "router", wishing(code, "accuracy"), says)[0] == [STRONG]
    assert asked(environment, "router", wishing(total, "low_cost"), says)[0] == [CHEAP]
    assert asked(environment, "router_right", wishing(code, "low_cost"), says)[0] == [STRONG]
    assert asked(environment, "router_code", code, says) == (["python"], "[1]")
    assert asked(environment, "knn_code", code, says) == (["python"], "[1]")
    assert asked(environment, "knn_right", code, says)[0] == asked(environment, "best", code, says)[0]
    assert asked(environment, "knn", wishing(total, "low_cost"), says)[0] == [STRONG]  # so few prove nothing
    assert asked(environment, "router_code", total, says)[0] == asked(environment, "router", total, says)[0]
    assert (
        asked(environment, "router_fast", total, says)[0]
        == asked(environment, "router", wishing(total, "fast"), says)[0]
    )
    called, answer = asked(environment, "cascade_trusted", total, {CHEAP: str(int(total.id[1:]) + 2), STRONG: "4"})
    assert (called[0], answer in ("4", total.answer[0])) == (CHEAP, True)


def test_the_router_knows_the_training_split_alone(table: Path):
    pytest.importorskip("sklearn", reason="pip install 'orchestra-jax[router]'")

    def chances(rows: list[dict]) -> list[float]:
        environment = RecordedEnvironment(config(str(write(table, rows)), python=False))
        known = router.Router(environment.recording.of(environment.splits["train"]))
        tasks = environment.held_out(99)
        return [known.chance(model, task.question) for model in MODELS for task in tasks] + [
            known.trust(STRONG, task.question, "7") for task in tasks
        ]

    held_back = RecordedEnvironment(config(str(table), python=False)).splits
    kept = set(held_back["train"])
    rows = [{name: value for name, value in row.items() if name != "answer"} for row in made_rows()]
    forged = [row | {"correct": row["correct"] == (row["id"] in kept)} for row in rows]
    assert chances(forged) == chances(rows)


def test_the_router_follows_each_menu_and_its_prices(table: Path):
    pytest.importorskip("sklearn", reason="pip install 'orchestra-jax[router]'")
    environment = RecordedEnvironment(config(str(table), python=False))
    for task in next(environment.train_tasks(12)):
        offered = {choice.name for choice in environment.experts(task)}
        (called,), _ = asked(environment, "router", task, dict.fromkeys(MODELS, "3"))
        assert called in offered
