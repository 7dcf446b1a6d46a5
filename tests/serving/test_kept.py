"""Training on kept tokens: they are those that were sampled, weighed by users' words, and nothing is sampled again."""

import asyncio
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
import hydra
import numpy as np
from sqlalchemy import insert, update

from orchestra_jax.config.checks import load
from orchestra_jax.config.cli import register
from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.config.served_path import logs_of_any_form
from orchestra_jax.engines.base import Generation
from orchestra_jax.engines.embedded import EmbeddedEngine
from orchestra_jax.envs.recorded.own_chat import own_chat
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.io.shipped import CONF
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.serving.database import REQUESTS, VERDICTS, opened
from orchestra_jax.serving.kept import KeptSource, grouped, read_kept
from orchestra_jax.serving.kept_worlds import KeptQA, KeptRecorded, KeptWorld, in_its_world
from orchestra_jax.serving.opened import open_policy
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.training.build import make_collector, rollout_source
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.main import run as train
from orchestra_jax.training.subject import subject_of
from orchestra_jax.types import Preference, Status, Trajectory
from tests.envs.recorded.made import made_rows
from tests.serving.made import MICRO, ROOT, client, qa_settings, random_run

QUESTIONS = [f"What is {number} * 7?" for number in range(2, 10)]
Change = Callable[[dict[str, Any]], None]


@dataclass
class Served:
    """A database of a random policy's answers, all at the same wish, and what its engine sampled."""

    database: Path
    policy: Path
    sampled: list[tuple[tuple[int, ...], Generation]] = field(default_factory=list)  # with the whole prompt
    ids: list[str] = field(default_factory=list)


async def ask(served: Served, run: Path, questions: list[str], *followed: Path, wish: str = "cheap") -> None:
    """Ask; for the second half of the questions the server takes up the policy that it follows."""
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
        async with client(orchestrator, database) as http:
            for number, question in enumerate(questions):
                if followed and number == len(questions) // 2:
                    cfg = replace(orchestrator.subject.cfg, policy=str(followed[0] / "policy"))
                    await asyncio.to_thread(orchestrator.take_up, subject_of(cfg))
                body = {
                    "model": f"tiny:{wish}",
                    "messages": [{"role": "user", "content": question}],
                    "temperature": 1.0,
                }
                served.ids.append((await http.post("/v1/chat/completions", json=body)).headers["x-request-id"])


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
    run = random_run(folder / "run")
    found = Served(folder / "served.db", run / "policy")
    asyncio.run(ask(found, run, QUESTIONS))
    judge(found)
    return found


def judge(served: Served) -> None:
    """Say of every second answer that it was right."""
    for number, name in enumerate(served.ids):
        change(served.database, name, answered, score=float(number % 2))


@pytest.fixture
def served(asked: Served, tmp_path: Path) -> Served:
    """A copy of its own."""
    with opened(asked.database) as database:
        database.do(lambda connection: connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)") and None)
    (tmp_path / "served.db").write_bytes(asked.database.read_bytes())
    return replace(asked, database=tmp_path / "served.db")


def settings(served: Served, folder: Path, *more: str) -> RunConfig:
    return composed(
        "+experiment=kept", f"env.options.path={served.database}", f"model.path={served.policy}",
        f"output_dir={folder}", "steps=2", "evaluation.questions=0", "algorithm.tasks_per_step=2",
        "algorithm.group_size=4", "algorithm.micro_tokens=1536", *MICRO, *more,
    )  # fmt: skip


def composed(*words: str) -> RunConfig:
    """As experiments/train.py has it."""
    register()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return load(in_its_world(hydra.compose("config", [*words]), words)[0])


def source(cfg: RunConfig, loop: LoopThread) -> KeptSource:
    world = make_environment(cfg)
    collector = make_collector(cfg, world, make_chat(cfg))
    found = rollout_source(
        cfg.algorithm, cfg.rollout, cfg.seed, collector, None, world.train_tasks(cfg.algorithm.tasks_per_step), loop
    )
    assert isinstance(found, KeptSource)
    return found


def trained_on(cfg: RunConfig, monkeypatch: pytest.MonkeyPatch) -> list[Trajectory]:
    """Train; return the trajectories of all steps. Nothing may be sampled."""
    taken = list[Trajectory]()

    def take(self: KeptSource, *given: Any) -> Any:
        found = original(self, *given)
        taken.extend(found[0])
        return found

    async def generate(*given: object, **named: object) -> None:
        raise AssertionError("it samples")

    original = KeptSource.take
    with monkeypatch.context() as patch:
        patch.setattr(KeptSource, "take", take)
        patch.setattr(EmbeddedEngine, "generate", generate)
        train(cfg)
    return taken


def sampled(taken: list[Trajectory]) -> set[tuple[Any, ...]]:
    """Whole prompt, sampled ids, log-probs and weight version of each turn."""
    return {
        (sum((t.prompt_ids + t.sampled_ids for t in turns[:place]), ()) + turn.prompt_ids, turn.sampled_ids,
         turn.logprobs, turn.weight_version)
        for each in taken for turns in each.sequences for place, turn in enumerate(turns)
    }  # fmt: skip


def was_sampled(served: Served) -> set[tuple[Any, ...]]:
    return {(prompt, said.token_ids, said.logprobs, said.weight_version) for prompt, said in served.sampled}


def paid(taken: list[Trajectory]) -> dict[str, list[float]]:
    return {each.task.question: [row.cost_usd for row in each.ledger] for each in taken if each.ledger}


def was_paid(served: Served) -> dict[str, list[float]]:
    with opened(served.database) as database:
        rows = database.do(lambda connection: connection.execute(REQUESTS.select()).all()).result()
    kept = [json.loads(row.kept) for row in rows]
    return {each["task"]["question"]: [row["cost_usd"] for row in each["trajectory"]["ledger"]] for each in kept}


def test_what_is_trained_is_what_was_sampled_and_nothing_is_sampled(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    taken = trained_on(settings(served, tmp_path / "same"), monkeypatch)
    assert sampled(taken) == was_sampled(served)  # every one, to the bit
    assert len(taken) == 2 * len(QUESTIONS)
    assert {each.task.question: each.solved for each in taken} == {q: bool(n % 2) for n, q in enumerate(QUESTIONS)}
    assert paid(taken) == was_paid(served)
    same = next(iter(read_metrics(tmp_path / "same" / "metrics.jsonl")))
    assert (same["importance/product_p01"], same["importance/product_p99"]) == pytest.approx((1.0, 1.0), abs=1e-3)
    assert same["grad_norm"] > 0
    # Other weights of the same words: each answer is weighed by the log-probs of the time.
    other = random_run(tmp_path / "other", "seed=1")
    train(settings(replace(served, policy=other / "policy"), tmp_path / "corrected", "steps=1"))
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
    with pytest.raises(SystemExit, match=r"^2$"):
        train(settings(served, tmp_path / "run"))
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
        with pytest.raises(ConfigError, match="is no database of servers"):
            settings(replace(served, database=path), tmp_path)
    for policy in ("null", str(tmp_path)):
        with pytest.raises(ConfigError, match="is no policy of a run: name RUN/policy"):
            settings(replace(served, policy=policy), tmp_path)


def test_my_logs_takes_a_database_of_servers_as_it_takes_a_table(served: Served, tmp_path: Path):
    table, plain = tmp_path / "log.csv", tmp_path / "calls.db"
    table.write_text("question,model\n")
    with contextlib.closing(sqlite3.connect(plain)) as database:
        database.execute("CREATE TABLE calls (key TEXT)")
    (tmp_path / "torn.db").write_bytes(b"SQLite format 3 and no more")
    for path in (table, plain, tmp_path / "torn.db", tmp_path / "none.db"):
        words = ["+experiment=my_logs", f"env.options.path='{path}'"]
        assert logs_of_any_form(words) == words
    for path in (str(served.database), "postgresql://HOST/served"):
        words = [f"env.options.path='{path}'", "+experiment=my_logs", "steps=3"]
        assert logs_of_any_form(words) == [words[0], "+experiment=kept", "steps=3"]
    train_it = [sys.executable, "-m", "orchestra_jax", "train", "+experiment=my_logs", f"path={served.database}"]
    root = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    done = subprocess.run(train_it, capture_output=True, text=True, timeout=120, **root)
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("model.path= is no policy of a run: name RUN/policy of the run that was served, or ")


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


def recorded(folder: Path) -> list[str]:
    """The settings of a run on a table of one's own."""
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made_rows()))
    return [
        "+experiment=my_logs", f"env.options.path={folder / 'table.jsonl'}", "env.options.python=false",
        "warm_start.demonstrations=4",
    ]  # fmt: skip


def questions_and_answers(folder: Path) -> list[str]:
    """The settings of a run on questions, whose words are those of the recorded world."""
    chat = own_chat([f"How much is {n} + 1?" for n in range(8)], ["dear"])
    chat.tokenizer.save_pretrained(folder / "words")
    return [*qa_settings(folder)[:-1], f"model.tokenizer={folder / 'words'}", "rollout.limits.max_length=512"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "world", "questions", "weights"),
    [
        (recorded, KeptRecorded, [f"How much is {n} + 2?" for n in (1, 2, 3, 5, 6, 7)], (1.0, 0.08)),
        (questions_and_answers, KeptQA, [f"How much is {n} + 1?" for n in range(6)], (1.0, 0.0)),
    ],
)  # fmt: skip
def test_other_worlds_train_on_the_tokens_of_all_weights_at_the_prices_of_the_time(
    made: Callable[[Path], list[str]],
    world: type[KeptWorld],
    questions: list[str],
    weights: tuple[float, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    prices = ("pricing.orchestrator_input=3.0", "pricing.orchestrator_output=7.0")
    runs = [tmp_path / name for name in ("run", "next")]
    for seed, run in enumerate(runs):
        random_run(run, *made(tmp_path), *prices, f"seed={seed}")
    served = Served(tmp_path / "served.db", runs[0] / "policy")
    asyncio.run(ask(served, runs[0], questions, runs[1], wish="best"))
    judge(served)
    # What is trained has other prices today: those of the time count.
    cfg = settings(
        served, tmp_path / "kept", "steps=1", "algorithm.tasks_per_step=1", "algorithm.group_size=8",
        "pricing.orchestrator_input=30.0",
    )  # fmt: skip
    environment = make_environment(cfg)
    assert type(environment) is world
    taken = trained_on(cfg, monkeypatch)
    assert sampled(taken) == was_sampled(served)
    assert {turn.weight_version for each in taken for turn in each.turns} == {0, 1}
    assert paid(taken) == was_paid(served)
    assert all(all(bill) and bill for bill in paid(taken).values())
    assert {(each.task.preference.outcome, each.task.preference.compute) for each in taken} == {weights}
    assert next(iter(read_metrics(tmp_path / "kept" / "metrics.jsonl")))["grad_norm"] > 0
    # The policy that came out is asked, and served, in the world of the run; the database may be gone.
    served.database.unlink()
    with Orchestrator(open_policy(tmp_path / "kept")) as orchestrator:
        assert isinstance(orchestrator._opened.environment, world)
        assert orchestrator.ask(questions[0], wish="cheap").trajectory.turns


def test_who_says_nothing_and_who_says_what_nobody_says_weigh_what_the_settings_tell(tmp_path: Path):
    given = compose(*recorded(tmp_path))
    world = KeptRecorded(replace(given, env=replace(given.env, options={**given.env.options, "kept": "served.db"})))
    (task,), rng = world.held_out(1), np.random.default_rng(0)

    def weighed(words: str) -> tuple[float, float]:
        meant = world.meant(replace(task, preference=Preference("asked", words)), rng)
        assert meant.instruction == words
        return meant.outcome, meant.compute

    assert weighed("") == (0.15, 0.35)  # of conf/experiment/my_logs.yaml
    assert weighed(world.wishes()["cheap"]) == (0.0, 0.25)
    assert weighed("Take the blue one.") == (1.0, 0.08)
