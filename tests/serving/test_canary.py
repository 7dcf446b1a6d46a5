"""A canary: a new policy answers a share of the conversations over HTTP, and a report compares both."""

import asyncio
import json
import re
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
import httpx
from sqlalchemy import insert

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.evaluation.decoding import decode_trajectory
from orchestra_jax.serving.canary import Canary
from orchestra_jax.serving.database import REQUESTS, ServerDatabase, opened, pico
from orchestra_jax.serving.following import Follower
from orchestra_jax.serving.opened import open_policy
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.serving.report import policies
from orchestra_jax.serving.running import serve
from orchestra_jax.serving.served import run as served_command
from orchestra_jax.serving.server import ChatServer, ServerLimits
from tests.serving.made import over_http, random_run, rows
from tests.serving.test_follow import questions

ASKED = [question for question, _ in questions(40)]


@pytest.mark.slow
async def test_a_canary_answers_its_share_and_no_answer_mixes_two_policies(tmp_path: Path):
    runs = [random_run(tmp_path / name, f"seed={seed}") for seed, name in enumerate(("run", "second", "third"))]
    followed = tmp_path / "followed"
    with Orchestrator(open_policy(runs[0], ["name=tiny", f"output_dir={tmp_path}"])) as served:
        canary = Canary(served, 0.4)
        follower = Follower(canary, followed)
        with (
            opened(served.folder / "served.db") as database,
            over_http(ChatServer(served, database, ServerLimits(), canary)) as address,
        ):
            async with httpx.AsyncClient(base_url=address, timeout=60) as http:
                await everything(http, ASKED)
                assert {row["policy"] for row in rows(database, "requests")} == {served.policy}
                take_up(follower, followed, runs[1])
                second = canary.policy
                first, again = await everything(http, ASKED), await everything(http, ASKED)
                ours = by_policy(database, first)
                assert {served.policy, second} == set(ours.values())
                assert 8 <= sum(policy == second for policy in ours.values()) <= 24  # 16 of 40, more or less
                assert by_policy(database, again) == ours  # a conversation stays where it is
                assert await longer(http, database, ASKED) == ours
                many = asyncio.create_task(everything(http, ASKED * 3))
                await asyncio.to_thread(take_up, follower, followed, runs[2])  # while they are answered
                third, ids = canary.policy, await many
                later = by_policy(database, await everything(http, ASKED))
                assert {question for question, policy in later.items() if policy == third} == {
                    question for question, policy in ours.items() if policy == second
                }  # fmt: skip
                assert len(ids) == 120  # none is lost
                await judge(http, database, third)
                figures = (await http.get("/metrics")).text
            kept = rows(database, "requests")
            told = {row["policy"]: row for row in policies(database)}
            assert policies(database, hours=0) == []
        canary.close()
        servers = replace(served.subject.cfg.rollout, engine=EngineName.sglang)
        served._opened = replace(
            served._opened, subject=replace(served.subject, cfg=replace(served.subject.cfg, rollout=servers))
        )
        with pytest.raises(ConfigError, match="let a load balancer divide"):
            Canary(served, 0.1)
    assert all(row["ended"] for row in kept)
    check_weights(kept, runs, (served.policy, second, third))
    assert list(told) == [served.policy, second, third]
    for policy, row in told.items():
        mine = [one for one in kept if one["policy"] == policy]
        assert row["requests"] == row["ended"] == len(mine)
        assert row["seconds"] == pytest.approx(sum(one["seconds"] for one in mine) / len(mine))
        assert f'orchestra_answers_total{{policy="{policy}"}} {len(mine)}.0' in figures
    assert [told[third][name] for name in ("judged", "right")] == [3, pytest.approx(2 / 3)]
    assert [told[third][end] for end in ("low", "high")] == pytest.approx([0.2077, 0.9385], abs=1e-4)
    assert told[served.policy]["right"] is None
    assert f'orchestra_verdicts_total{{policy="{third}",verdict="right"}} 2.0' in figures
    assert f'orchestra_right_share{{policy="{third}",value="high"}} 0.938' in figures


def take_up(follower: Follower, folder: Path, run: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run, folder)
    assert follower.look() is None  # it may be half written
    assert "Takes up" in (follower.look() or "")


async def posted(http: httpx.AsyncClient, messages: list[dict[str, str]]) -> str:
    found = await http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
    assert found.status_code in (200, 422), found.text  # random weights break the format
    return found.headers["x-request-id"]


async def everything(http: httpx.AsyncClient, asked: list[str]) -> list[str]:
    return await asyncio.gather(*(posted(http, [{"role": "user", "content": question}]) for question in asked))


async def longer(http: httpx.AsyncClient, database: ServerDatabase, asked: list[str]) -> dict[str, str]:
    """The policies that answer a second question of the conversations, by the first one."""
    said = [{"role": "assistant", "content": "59"}, {"role": "user", "content": ASKED[0]}]
    ids = await asyncio.gather(*(posted(http, [{"role": "user", "content": one}, *said]) for one in asked))
    return dict(zip(asked, (policy_of(database)[name] for name in ids), strict=True))


def policy_of(database: ServerDatabase) -> dict[str, str]:
    return {row["id"]: row["policy"] for row in rows(database, "requests")}


def by_policy(database: ServerDatabase, ids: list[str]) -> dict[str, str]:
    return dict(zip(ASKED, (policy_of(database)[name] for name in ids), strict=True))


async def judge(http: httpx.AsyncClient, database: ServerDatabase, policy: str) -> None:
    """Call two answers of a policy right and one wrong, one of them twice."""
    names = [name for name, who in policy_of(database).items() if who == policy]
    for name, thumbs in zip([*names[:3], names[0]], ("up", "up", "down", "up"), strict=True):
        assert (await http.post("/v1/feedback", json={"id": name, "thumbs": thumbs})).status_code == 200


def check_weights(kept: list[dict[str, Any]], runs: list[Path], names: tuple[str, ...]) -> None:
    """What was answered has the log-probs of the weights that its row names."""
    expected = {}
    for run, name in zip(runs, names, strict=True):
        with Orchestrator(open_policy(run, [])) as alone:
            task, turn = alone.posed(ASKED[0]), alone.ask(ASKED[0]).trajectory.turns[0]
            expected[name] = turn.logprobs[0]
    assert len({round(logprob, 2) for logprob in expected.values()}) == 3
    checked = 0
    for row in kept:
        found = json.loads(row["kept"])
        turns = decode_trajectory(found["trajectory"], task).turns
        assert {turn.weight_version for turn in turns} == {0}  # of its engine, which nothing else took over
        if found["task"]["question"] == ASKED[0] and turns[0].prompt_ids == turn.prompt_ids:
            assert turns[0].logprobs[0] == pytest.approx(expected[row["policy"]], abs=1e-3)
            checked += 1
    assert checked == 7  # each time that it was a conversation's first question


def test_where_no_canary_can_be_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    limits, oracle = {"max_usd": None, "max_seconds": None}, "baseline:preference_oracle"
    here = [f"output_dir={tmp_path}"]
    for options, words in (
        ({"canary": 0.1}, "--follow"), ({"canary": 1.0, "follow": "x"}, "must be a share between 0 and 1"),
        ({"canary": 0.1, "follow": "x"}, "rollout.engine=embedded"),
    ):  # fmt: skip
        assert serve(oracle, here, "127.0.0.1", 0, limits, **options) == 2
        assert words in capfd.readouterr().err


def test_the_report_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "serving").mkdir()
    command = partial(SimpleNamespace, folder=str(tmp_path), database=None, command="report")
    with opened(tmp_path / "serving" / "served.db") as database:
        assert served_command(command(hours=None)) == 0
        for number, (score, usd, policy) in enumerate(((1.0, 0.02, "old"), (0.0, 0.04, "old"), (None, None, "new"))):
            ended = {} if usd is None else {"ended": 1.0, "usd": pico(usd), "seconds": 3.0, "score": score}
            row = {"id": str(number), "begun": time.time() - 7200 * (policy == "old"), "policy": policy, **ended}
            database.do(lambda connection, row=row: connection.execute(insert(REQUESTS).values(row))).result()
    for hours in (None, 1.0):
        assert served_command(command(hours=hours)) == 0
    out, error = capsys.readouterr()
    assert error == "Nothing was asked.\n"
    for hours in (-1.0, float("nan")):
        assert served_command(command(hours=hours)) == 2
        assert f"--hours={hours:g} must be a number >= 0" in capsys.readouterr().err
    lines = [re.findall(r"[^\s│┃]+", line) for line in out.splitlines() if "│" in line]
    assert lines == [
        ["old", "2", "2", "2", "50.0", "(9.5", "to", "90.5)", "3", "3"], ["new", "1", "0", "0"],
        ["new", "1", "0", "0"],
    ]  # fmt: skip
