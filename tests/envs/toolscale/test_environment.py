"""ToolScale as a world to train in: golden calls solve it, each criterion can fail alone, what is missing is told."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.envs.baselines import baseline
from orchestra_jax.envs.conversation import Conversation
from orchestra_jax.envs.toolscale import tasks
from orchestra_jax.envs.toolscale.environment import ToolScaleEnvironment
from orchestra_jax.envs.users import GREETING
from orchestra_jax.money.budgets import Budget
from orchestra_jax.types import Status, ToolCall, Trajectory
from tests.envs.played import collector
from tests.envs.toolscale import library
from tests.isolation import available
from tests.tools.openai_stub import StubOpenAI, status

ISOLATION = "auto" if available() else "none"
LEND, LOOK = ("lend", {"member_id": "M1", "book_id": "B1"}), ("get_member", {"member_id": "M1"})
ROWS = [
    *(library.row(number, [LOOK, LEND], ["1,200"]) for number in range(20)),
    library.row(20, [("add_fee", {"name": "Ada", "amount": 1.0, "times": 2.0})]),  # a column of floats
    library.row(21, [LOOK], ["Ada"]),
    library.row(22, [("lend", {"member_id": "M9", "book_id": "B1"})]),  # the authors swallow what it raises
    library.row(23, [("lend", {"member_id": "M1", "book_id": "B2"})]),
    library.row(24, [("lend", {})]),
    library.row(25, []),  # no criteria: the authors reward everybody
    library.row(26, [("nothing_such", {})]),
    {**library.row(27, []), "user_scenario": None},
]


def files(folder: Path, rows: list[dict[str, Any]]) -> tuple[str, ...]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    repo = library.write(folder / "clone")
    return (f"env.options.repo={repo}", f"env.options.rows={folder / 'rows.jsonl'}")


def config(*more: str) -> RunConfig:
    return compose("env=toolscale", "tools=none", "data=world", f"tools.sandbox.isolation={ISOLATION}", *more)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolScaleEnvironment]:
    made = ToolScaleEnvironment(config(*files(tmp_path_factory.mktemp("toolscale"), ROWS)))
    yield made
    asyncio.run(made.close())


async def play(environment: ToolScaleEnvironment, name: str) -> list[Trajectory]:
    held_out = [environment._menus.pose(task, 0, "eval") for task in environment._training + environment._evaluation]
    script = baseline(environment, name, held_out, 4).script
    return await collector(environment, config()).play(script, held_out, budget=Budget(), silent=True)


def test_what_replays_and_why_the_rest_does_not(environment: ToolScaleEnvironment) -> None:
    sifted = environment.sifted
    assert len(sifted.usable) == 22
    assert {name.partition("/")[2]: reason.partition(":")[0] for name, reason in sifted.unusable.items()} == {
        "22": "Golden call 1 (lend) failed",
        "23": "Golden call 1 (lend) failed",
        "24": "Golden call 1 (lend) failed",
        "25": "It is solved by doing nothing",
        "26": "Golden call 1 (nothing_such) failed",
    }
    assert len(sifted.broken) == 1
    assert "The ToolScale row 27 cannot be read" in sifted.broken[0]
    lines = tasks.report(sifted, {f"library/{number}": tasks.read(ROWS[number]) for number in range(27)})
    assert lines[:2] == [
        "ToolScale, library: 22 of 27 tasks can be used.",
        "ToolScale: 22 of 27 tasks can be used.",
    ]
    assert len(lines) == 2 + 5 + 1


async def test_golden_calls_solve_every_task_and_nothing_else_does(environment: ToolScaleEnvironment) -> None:
    solved = {
        name: [trajectory.solved for trajectory in await play(environment, name)] for name in ("golden", "do_nothing")
    }
    assert len(solved["golden"]) == 22
    assert all(solved["golden"])
    assert not any(solved["do_nothing"])


async def test_a_number_counts_by_its_value_and_each_criterion_can_fail_alone(
    environment: ToolScaleEnvironment,
) -> None:
    """The released check takes the commas out of what is said, not out of the fact: "1,200" was never found."""
    task = environment._menus.pose(next(t for t in environment._training if t.answer == ("1,200",)), 0, "eval")

    async def outcome(calls: list[tuple[str, dict[str, Any]]], said: str) -> dict[str, str]:
        episode = environment.reset(task, Budget())
        assert isinstance(episode, Conversation)
        for name, arguments in calls:
            await episode.step(ToolCall(name, arguments))
        assert await episode.respond(said) is None
        score = await episode.score(said)
        return {name: wrong for name, wrong in score.criteria.items() if wrong}

    assert await outcome([LOOK, LEND], "It is $1200.00 now.") == {}
    assert list(await outcome([LOOK, LEND], "It is done.")) == ["faithful"]
    extra = ("add_fee", {"name": "Bo", "amount": 1.0})
    assert list(await outcome([LOOK, LEND, extra], "1,200")) == ["executed"]
    assert list(await outcome([LOOK], "1200")) == ["executed", "complete"]


async def test_calls_of_one_turn_change_the_state_in_their_order_and_cost_nothing(
    environment: ToolScaleEnvironment,
) -> None:
    found = await play(environment, "golden")
    assert {(each.status, each.cost_usd, each.latency_s) for each in found} == {(Status.COMPLETED, 0.0, 0.0)}
    system = environment.reset(found[0].task, Budget()).messages[0]["content"]
    assert system.startswith("# Library policy")
    assert "It is Wednesday, 15 May 2024, 15:00." in system


def test_training_and_evaluation_share_no_task_and_know_it_by_the_id(environment: ToolScaleEnvironment) -> None:
    training, evaluation = ({task.id for task in each} for each in (environment._training, environment._evaluation))
    assert not training & evaluation
    assert {task.id for task in environment.held_out(100)} == evaluation
    assert training | evaluation == set(environment.sifted.usable)
    drawn = next(environment.train_tasks(8))
    assert {task.id for task in drawn} <= training
    assert environment.largest_menu() == len(drawn[0].tools)


def test_a_user_that_is_played_is_told_the_scenario(environment: ToolScaleEnvironment) -> None:
    assert next(iter(environment.sifted.usable.values())).situation == (
        "Why you ask: You want something of the library.\nHow you behave: Ask for it politely.\n"
        "What you know: You are Ada, member M1."
    )


async def test_a_user_that_a_model_plays_talks_and_one_that_is_down_is_no_score(
    tmp_path: Path, stub: StubOpenAI
) -> None:
    served = (f"tools.server.url={stub.url}", "tools.server.retries=0", "rollout.limits.retries=0")
    options = ("env.options.user=qwen3-32b", "pricing.name=paper", "+env.options.evaluate=all")
    cfg = config(*files(tmp_path, ROWS[:1]), *served, *options)
    environment = ToolScaleEnvironment(cfg)
    try:
        script = environment.baselines()["golden"]

        async def played() -> Trajectory:
            held_out = environment.held_out(1)
            (found,) = await collector(environment, cfg).play(script, held_out, budget=Budget(), silent=True)
            return found

        replies = ["I want to borrow a book.", "###STOP###"]
        stub.reply = lambda body: replies.pop(0)
        found = await played()
        assert found.task.question == GREETING
        assert found.solved
        assert next(turn.heard for turn in found.turns if not turn.calls) == "I want to borrow a book."
        assert "What you know: You are Ada, member M1." in stub.bodies[0]["messages"][0]["content"]
        assert found.cost_usd == 0.0
        stub.reply = lambda body: status(500)
        assert (await played()).status is Status.FAILED
    finally:
        await environment.close()


def test_what_is_missing_is_one_sentence_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLSCALE_REPO", raising=False)
    monkeypatch.delenv("TOOLSCALE_PATH", raising=False)
    (wrong,) = ToolScaleEnvironment.problems(config())
    assert wrong == (
        "ToolScale's tools are code of the authors' repository, which runs in the sandbox: git clone "
        "https://github.com/NVlabs/ToolOrchestra, and set env.options.repo=FOLDER (or TOOLSCALE_REPO)."
    )
    usual = files(tmp_path, ROWS)
    for option, words in {
        "env.options.user=": "env.options.user must be",
        "+env.options.evaluate=x": "must be held_out or all, not x",
        "+env.options.workers=0": "must be a number from 1, not 0",
        "+env.options.domains=bank": "must be a list of names, not bank",
        "+env.options.nothing=1": "env.options of ToolScale are repo, rows",
    }.items():
        (wrong,) = ToolScaleEnvironment.problems(config(*usual, option))
        assert words in wrong
    assert ToolScaleEnvironment.problems(config(*usual)) == []
    (wrong,) = ToolScaleEnvironment.problems(config(*usual, "env.options.rows=/nowhere.jsonl"))
    assert wrong == "env.options.rows=/nowhere.jsonl is not there: name ToolScale's tasks (or TOOLSCALE_PATH)."
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (wrong,) = ToolScaleEnvironment.problems(config(*usual, "env.options.rows=nobody/no-such-set"))
    assert wrong.startswith("env.options.rows=nobody/no-such-set: ")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be read from '.*empty' .env.options.rows."):
        ToolScaleEnvironment(config(*usual, f"env.options.rows={tmp_path / 'empty'}"))


@pytest.mark.skipif(
    not (os.environ.get("TOOLSCALE_REPO") and os.environ.get("ORCHESTRA_DATA")),
    reason="no clone of the authors' repository (TOOLSCALE_REPO)",
)
async def test_tasks_of_our_own_words_replay_in_the_released_domains(tmp_path: Path) -> None:
    """A read of the first entry of each table by every tool of one id: what replays is played and solved."""
    data = Path(os.environ["ORCHESTRA_DATA"]) / "toolscale_domains"
    rows = list[dict[str, Any]]()
    for folder in sorted(path for path in data.iterdir() if path.is_dir()):
        tools = json.loads((folder / "tools.json").read_text())
        database = json.loads((folder / "db.json").read_text())
        for tool in tools:
            needed = [each["name"] for each in tool["params"] if each["required"]]
            if tool["kind"] != "read" or len(needed) != 1:
                continue
            for table in database.values():
                row = library.row(len(rows), [(tool["name"], {needed[0]: next(iter(table))})], ["Fine"])
                row["user_scenario"]["instructions"]["domain"] = folder.name
                rows.append(row)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment = ToolScaleEnvironment(config(f"env.options.rows={tmp_path / 'rows.jsonl'}"))
    try:
        found = await play(environment, "golden")
    finally:
        await environment.close()
    assert len({each.task.family for each in found}) == 10
    assert all(each.solved for each in found)
