"""Feedback on answers, the log that training reads, and the world that trains on it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
import httpx

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment
from orchestra_jax.envs.quickstart.served import ServedQuickstart
from orchestra_jax.envs.recorded.readers import read_recording
from orchestra_jax.evaluation.decoding import decode_trajectory
from orchestra_jax.money.budgets import Budget
from orchestra_jax.serving.database import ServerDatabase, opened
from orchestra_jax.serving.feedback import logged, write_log
from orchestra_jax.serving.keys import add_key
from orchestra_jax.serving.orchestrator import Orchestrator
from tests.serving.made import client, python, scripted

SUM = "What is 7 * 8 + 3?"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrator]:
    with scripted(tmp_path_factory.mktemp("served"), python, "name=tiny") as orchestrator:
        yield orchestrator


@pytest.fixture
def database(tmp_path: Path) -> Iterator[ServerDatabase]:
    with opened(tmp_path / "served.db") as found:
        yield found


async def asked(http: httpx.AsyncClient, question: str, **more: Any) -> str:
    body = {"model": "tiny:cheap", "messages": [{"role": "user", "content": question}], **more}
    found = await http.post("/v1/chat/completions", json=body)
    return found.json()["id"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"thumbs": "up"}, 200, None),
        ({"score": 0.25}, 200, None),
        ({"correct": "59", "thumbs": "down"}, 200, None),
        ({}, 400, None),
        ({"thumbs": "left"}, 400, "thumbs"),
        ({"thumbs": ["up"]}, 400, "thumbs"),
        ({"thumbs": "up", "score": 1}, 400, "score"),
        ({"score": 2}, 400, "score"),
        ({"score": True}, 400, "score"),
        ({"correct": " "}, 400, "correct"),
        ({"correct": "x" * 10_001}, 400, "correct"),
        ({"stars": 5}, 400, "stars"),
        ({"id": 3, "thumbs": "up"}, 400, "id"),
        ({"id": "chatcmpl-other", "thumbs": "up"}, 404, "id"),
    ],
)
async def test_feedback_is_kept_or_refused_by_the_name_of_its_field(
    served: Orchestrator, database: ServerDatabase, body: dict, status: int, param: str | None
):
    async with client(served, database) as http:
        found = await http.post("/v1/feedback", json={"id": await asked(http, SUM), **body})
    assert found.status_code == status, found.text
    if status != 200:
        assert found.json()["error"]["param"] == param
        assert found.json()["error"]["message"].endswith(".")


async def test_only_the_key_that_asked_may_judge(served: Orchestrator, database: ServerDatabase):
    keys = [add_key(database, name, None, None) for name in ("anna", "boris")]
    async with client(served, database) as http:
        anna, boris = ({"authorization": f"Bearer {key}"} for key in keys)
        http.headers.update(anna)
        said = {"id": await asked(http, SUM), "thumbs": "up"}
        other = await http.post("/v1/feedback", json=said, headers=boris)
        assert (other.status_code, "asked no request" in other.text) == (404, True)
        assert (await http.post("/v1/feedback", json=said, headers={"authorization": ""})).status_code == 401
        assert (await http.post("/v1/feedback", json=said)).status_code == 200


async def test_the_log_has_what_was_asked_and_judged_and_the_trajectory_as_it_was_played(
    served: Orchestrator, database: ServerDatabase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    async with client(served, database) as http:
        for question, said in ((SUM, {"thumbs": "up"}), ("What is 2 * 3?", {"correct": "7"}), ("What is 2 * 4?", None)):
            name = await asked(http, question)
            if said is not None:
                await http.post("/v1/feedback", json={"id": name, **said})
        await asked(http, "What is 2 * 5?", orchestra={"keep": False})
    assert write_log(database, str(tmp_path / "log.jsonl"), whole=False) == (2, 1)
    assert write_log(database, str(tmp_path / "all.jsonl"), whole=True) == (3, 1)
    with pytest.raises(ConfigError, match=r"' cannot be written \(No such file or directory\): name another file"):
        write_log(database, str(tmp_path / "nowhere" / "log.jsonl"), whole=True)
    capsys.readouterr()
    assert write_log(database, "-", whole=True) == (3, 1)
    assert capsys.readouterr().out == (tmp_path / "all.jsonl").read_text()  # a file behind it keeps what it had
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["question"], line["wish"], line["answer"], line["said"]) for line in lines] == [
        (SUM, "Keep the cost low.", "59", "59"), ("What is 2 * 3?", "Keep the cost low.", "7", "6"),
    ]  # fmt: skip
    assert lines[0]["calls"] == [{"tool": "python", "arguments": {"code": "7 * 8 + 3"}, "result": "59"}]
    task = served.posed(SUM, "cheap")
    played = decode_trajectory(lines[0]["trajectory"], task)
    assert (played.answer, played.tool_names, played.cost_usd) == ("59", ["python"], lines[0]["usd"])
    assert len(list(logged(database))) == 3

    cfg = compose("+experiment=served", f"env.options.path={tmp_path / 'log.jsonl'}")
    assert ServedQuickstart.problems(cfg) == []
    world = ServedQuickstart(cfg)
    tasks = {task.question: task for task in next(world.train_tasks(2))}
    assert tasks.keys() == {SUM, "What is 2 * 3?"}
    assert (tasks[SUM].preference.compute, tasks[SUM].preference.instruction) == (0.5, "Keep the cost low.")
    episode = world.reset(tasks["What is 2 * 3?"], Budget())
    assert [await episode.score(answer) for answer in ("6", "7")] == [False, True]  # the users say what is right
    held_out = world.held_out(1)[0]
    assert await world.reset(held_out, Budget()).score(held_out.answer[0])
    assert [task.id for task in world.held_out(3)] == [task.id for task in QuickstartEnvironment(cfg).held_out(3)]
    await world.close()


@pytest.mark.parametrize(("answer", "right"), [(r"So it is \boxed{59}.", True), ("The answer is 58", False)])
async def test_the_correct_answer_is_looked_for_in_what_was_said_as_an_evaluation_does(
    database: ServerDatabase, tmp_path: Path, answer: str, right: bool
):
    with scripted(tmp_path, lambda task, results: answer, "name=tiny") as orchestrator:
        async with client(orchestrator, database) as http:
            await http.post("/v1/feedback", json={"id": await asked(http, SUM), "correct": "59"})
    assert [line["score"] for line in logged(database)] == [float(right)]


def test_a_log_that_cannot_be_trained_on_is_one_sentence(tmp_path: Path, database: ServerDatabase):
    for name in ("served.db", "log.jsonl"):  # the database itself, and a log that nobody has written
        cfg = compose("+experiment=served", f"env.options.path={tmp_path / name}")
        assert "orchestra-jax served RUN write" in ServedQuickstart.problems(cfg)[0]
    with pytest.raises(ValueError, match=r"model\.path=RUN/policy"):
        read_recording(tmp_path / "served.db")
    for text, words in (
        ("", "has no question whose right answer is known"), ("{", "line 1"),
        ('{"question": "Who is the pope?", "answer": "x"}', "knows no such question"),
        ('{"question": "What is 2 * 3?"}', "answer"),
    ):  # fmt: skip
        (tmp_path / "log.jsonl").write_text(text)
        with pytest.raises(ConfigError, match=words):
            ServedQuickstart(cfg)
