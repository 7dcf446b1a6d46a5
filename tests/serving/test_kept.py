"""Training on kept tokens: they are those that were sampled, weighed by users' words, and nothing is sampled again."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
import httpx
from sqlalchemy import insert, update

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.engines.base import Generation
from orchestra_jax.engines.embedded import EmbeddedEngine
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.rollout.sources import rollout_source
from orchestra_jax.serving.database import REQUESTS, VERDICTS, opened
from orchestra_jax.serving.kept import KeptQuickstart, KeptSource, grouped, read_kept
from orchestra_jax.serving.opened import open_policy
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.serving.server import ChatServer, ServerLimits
from orchestra_jax.training.build import make_collector
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.main import run as train
from orchestra_jax.types import Preference, Status, Trajectory
from tests.serving.made import MICRO, random_run

QUESTIONS = [f"What is {number} * 7?" for number in range(2, 10)]
Change = Callable[[dict[str, Any]], None]


@dataclass
class Served:
    """A database of a random policy's answers to QUESTIONS, all at the same wish, and what its engine sampled."""

    database: Path
    policy: Path
    sampled: list[tuple[tuple[int, ...], Generation]] = field(default_factory=list)  # with the whole prompt
    ids: list[str] = field(default_factory=list)


async def ask(served: Served, run: Path, **more: Any) -> None:
    original = EmbeddedEngine.generate

    async def generate(self: EmbeddedEngine, prompt: Any, *given: Any, **named: Any) -> Generation:
        found = await original(self, prompt, *given, **named)
        served.sampled.append((tuple(prompt), found))
        return found

    with (
        pytest.MonkeyPatch.context() as patch,
        opened(served.database) as database,
        Orchestrator(open_policy(run, ["name=tiny", f"output_dir={served.database.parent}"])) as orchestrator,
    ):
        patch.setattr(EmbeddedEngine, "generate", generate)
        app = ChatServer(orchestrator, database, ServerLimits()).app()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
            for question in QUESTIONS:
                body = {"model": "tiny:cheap", "messages": [{"role": "user", "content": question}], "temperature": 1.0}
                served.ids.append((await http.post("/v1/chat/completions", json=body | more)).headers["x-request-id"])


def change(database: Path, request: str, work: Change | None = None, **values: Any) -> None:
    """Change what is kept of a request, and columns of its row."""
    with opened(database) as found:
        one = REQUESTS.c.id == request
        text = found.do(lambda connection: connection.execute(REQUESTS.select().where(one)).one().kept).result()
        kept = json.loads(text)
        if work is not None:
            work(kept)
        found.do(
            lambda connection: connection.execute(update(REQUESTS).where(one).values(kept=json.dumps(kept), **values))
        ).result()


def answered(kept: dict[str, Any]) -> None:
    """Have it answered: random words break the format."""
    kept["trajectory"] |= {"status": "completed", "reason": "", "answer": "14"}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("kept")
    run = random_run(folder / "run") if (folder / "run").mkdir() is None else folder
    found = Served(folder / "served.db", run / "policy")
    asyncio.run(ask(found, run))
    for number, name in enumerate(found.ids):
        change(found.database, name, answered, score=float(number % 2))
    return found


@pytest.fixture
def served(asked: Served, tmp_path: Path) -> Served:
    """A copy of its own."""
    with opened(asked.database) as database:
        database.do(lambda connection: connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)") and None)
    (tmp_path / "served.db").write_bytes(asked.database.read_bytes())
    return replace(asked, database=tmp_path / "served.db")


def settings(served: Served, folder: Path, *more: str) -> RunConfig:
    return compose(
        "+experiment=kept", f"env.options.path={served.database}", f"model.path={served.policy}",
        f"output_dir={folder}", "steps=2", "evaluation.questions=0", "algorithm.tasks_per_step=2",
        "algorithm.group_size=4", "algorithm.row_widths=[192]", "algorithm.micro_tokens=1536", *MICRO, *more,
    )  # fmt: skip


def source(cfg: RunConfig, loop: LoopThread) -> KeptSource:
    world = KeptQuickstart(cfg)
    collector = make_collector(cfg, world, make_chat(cfg))
    found = rollout_source(
        cfg.algorithm, cfg.rollout, cfg.seed, collector, None, world.train_tasks(cfg.algorithm.tasks_per_step), loop
    )
    assert isinstance(found, KeptSource)
    return found


def test_what_is_trained_is_what_was_sampled_and_nothing_is_sampled(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    taken = list[Trajectory]()

    def take(self: KeptSource, *given: Any) -> Any:
        found = original(self, *given)
        taken.extend(found[0])
        return found

    async def generate(*given: object, **named: object) -> None:
        raise AssertionError("it samples")

    original = KeptSource.take
    monkeypatch.setattr(KeptSource, "take", take)
    monkeypatch.setattr(EmbeddedEngine, "generate", generate)
    train(settings(served, tmp_path / "same"))
    turns = {
        (sum((t.prompt_ids + t.sampled_ids for t in turns[:place]), ()) + turn.prompt_ids, turn.sampled_ids,
         turn.logprobs, turn.weight_version)
        for each in taken for turns in each.sequences for place, turn in enumerate(turns)
    }  # fmt: skip
    assert turns == {
        (prompt, said.token_ids, said.logprobs, said.weight_version) for prompt, said in served.sampled
    }  # every one, to the bit
    assert len(taken) == 2 * len(QUESTIONS)
    assert {each.task.question: each.solved for each in taken} == {q: bool(n % 2) for n, q in enumerate(QUESTIONS)}
    with opened(served.database) as database:
        rows = database.do(lambda connection: connection.execute(REQUESTS.select()).all()).result()
    ledgers = {json.loads(row.kept)["task"]["question"]: json.loads(row.kept)["trajectory"]["ledger"] for row in rows}
    for each in taken:
        assert [row.cost_usd for row in each.ledger] == [row["cost_usd"] for row in ledgers[each.task.question]]

    same = next(iter(read_metrics(tmp_path / "same" / "metrics.jsonl")))
    assert (same["importance/product_p01"], same["importance/product_p99"]) == pytest.approx((1.0, 1.0), abs=1e-3)
    assert same["grad_norm"] > 0
    # Other weights of the same words: each answer is weighed by the log-probs of the time.
    (tmp_path / "other").mkdir()
    other = random_run(tmp_path / "other", "seed=1")
    train(settings(replace(served, policy=other / "policy"), tmp_path / "corrected"))
    corrected = next(iter(read_metrics(tmp_path / "corrected" / "metrics.jsonl")))
    assert abs(corrected["importance/product_p50"] - 1.0) > 0.01
    assert corrected["importance/sequence_ess"] < 0.99


def test_a_source_goes_on_where_it_was(served: Served, tmp_path: Path):
    with LoopThread() as loop:
        first, second = (source(settings(served, tmp_path, "algorithm.tasks_per_step=1"), loop) for _ in range(2))
        begun = [first.take(step, 1, None)[0] for step in range(2)]
        state, after = first.get_state(), first.take(2, 1, None)[0]
        second.set_state(state)
        assert second.take(2, 1, None)[0] == after
        assert begun[0] != begun[1]


def test_answers_whose_worth_nobody_knows_are_left_out_and_counted(served: Served):
    def greedy(kept: dict[str, Any]) -> None:
        kept["temperature"] = 0.0

    def old(kept: dict[str, Any]) -> None:
        del kept["temperature"]

    def passed(kept: dict[str, Any]) -> None:
        kept["trajectory"]["answer"] = None

    def scripted(kept: dict[str, Any]) -> None:
        for turn in kept["trajectory"]["sequences"][0]:
            turn |= {"logprobs": "", "sampled_ids": ""}

    def malformed(kept: dict[str, Any]) -> None:
        kept["trajectory"] |= {"status": "malformed", "answer": None}

    names = iter(served.ids)
    for work in (greedy, old, passed, scripted):
        change(served.database, next(names), work)
    change(served.database, next(names), malformed, score=None)  # wrong without a word
    change(served.database, next(names), score=None)  # unknown
    verdict = next(names)
    change(served.database, verdict, score=None)
    with opened(served.database) as database:
        values = {"request": verdict, "judge": "gpt", "right": 1, "judged": 0.0}
        database.do(lambda connection: connection.execute(insert(VERDICTS).values(values))).result()
    found, left = read_kept(str(served.database))
    assert [each.task.question for each in found] == [QUESTIONS[4], QUESTIONS[6], QUESTIONS[7]]
    assert [each.solved for each in found] == [False, True, True]  # by its status, by the judge, by its user
    assert sorted(left.values()) == [1, 1, 1, 2]
    assert left["it was not sampled at a temperature above 0"] == 2


def test_what_cannot_be_trained_on_is_one_sentence_and_leaves_nothing(served: Served, tmp_path: Path):
    def words(kept: dict[str, Any]) -> None:
        kept["trajectory"]["sequences"][0][0]["text"] = "other words"

    def cut(kept: dict[str, Any]) -> None:
        del kept["trajectory"]["sequences"]

    def shorter(kept: dict[str, Any]) -> None:
        kept["trajectory"]["sequences"][0][0]["logprobs"] = ""

    def refused(said: str) -> None:
        with LoopThread() as loop, pytest.raises(ConfigError, match=said):
            source(settings(served, tmp_path), loop)

    before = served.database.read_bytes()
    change(served.database, served.ids[0], words)
    refused("has other words than this one: set model.path")
    with pytest.raises(SystemExit) as ended:
        train(settings(served, tmp_path / "run"))
    assert ended.value.code == 2
    assert [file.name for file in (tmp_path / "run").rglob("*") if file.is_file()] == ["run.lock"]
    change(served.database, served.ids[0], shorter)
    refused("a turn has other numbers of tokens and log-probs")
    change(served.database, served.ids[0], cut)
    refused("An answer in .* is damaged: KeyError")
    served.database.write_bytes(before)
    for name in served.ids:
        change(served.database, name, score=None)
    refused("There is no answer to train on in .*; 8 left out: nobody said whether it is right")
    change(served.database, served.ids[0], score=1.0)
    refused("No two answers in .* can be compared")
    for path in ("null", str(tmp_path / "none.db"), str(tmp_path / "log.jsonl")):
        cfg = settings(replace(served, database=path), tmp_path)
        assert "is no database of servers" in KeptQuickstart.problems(cfg)[0]
    assert KeptQuickstart.problems(settings(served, tmp_path)) == []


@pytest.fixture
def one(served: Served) -> Trajectory:
    return read_kept(str(served.database))[0][0]


def test_groups_have_one_wish_and_one_family_or_one_question(one: Trajectory):
    def made(question: str, family: str, **wish: float) -> Trajectory:
        task = replace(one.task, question=question, family=family, preference=Preference("any", question, **wish))
        return replace(one, task=task, status=Status.COMPLETED)

    sums = [made(f"sum {number}", "sum") for number in range(5)]
    cheap = [made(f"cheap {number}", "sum", compute=0.5) for number in range(3)]
    again = [made("again", "sum") for _ in range(2)]
    alone = made("where", "lookup")
    found = grouped([alone, *sums, *again, *cheap], 4, seed=0)
    assert sorted(sorted(each.task.question for each in group) for group in found) == [
        ["again", "again"], ["cheap 0", "cheap 1", "cheap 2"],
        *sorted(sorted(each.task.question for each in group) for group in found if len(group) < 4 and group[0] in sums),
    ]  # fmt: skip
    assert sorted(len(group) for group in found if group[0] in sums) == [2, 3]  # five in two groups, nobody twice
