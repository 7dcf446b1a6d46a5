"""Weights that are taken up while requests go on, and the circle of serving, judging and training."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("sqlalchemy", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
import httpx
import numpy as np
from safetensors.numpy import save_file

from orchestra_jax.config.compose import compose
from orchestra_jax.envs.quickstart.world import QuickstartWorld
from orchestra_jax.models import checkpoint
from orchestra_jax.serving.database import opened
from orchestra_jax.serving.following import Follower
from orchestra_jax.serving.opened import open_policy
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.training.subject import subject_of
from tests.serving.made import MICRO, command, random_run, rows
from tests.serving.test_process import server


@pytest.mark.slow
async def test_other_weights_are_taken_up_between_turns_and_foreign_ones_are_refused(tmp_path: Path):
    run, other = random_run(tmp_path / "run"), random_run(tmp_path / "other", "seed=1")
    wide = random_run(tmp_path / "wide", "model.family=qwen3")
    folder, options = tmp_path / "followed", {"temperature": 0.0}
    with Orchestrator(open_policy(run, [])) as orchestrator:
        follower = Follower(orchestrator, folder)
        assert follower.look() is None  # nothing is there
        question = orchestrator._opened.environment.held_out(1)[0]
        before, name = await orchestrator.aask(question, **options), orchestrator.policy
        shutil.copytree(other, folder)
        assert follower.look() is None  # it may be half written
        many = [asyncio.create_task(orchestrator.aask(question, **options)) for _ in range(20)]
        said = await asyncio.to_thread(follower.look)
        assert said is not None
        assert said.startswith("Takes up the policy in")
        assert all(one.trajectory is not None for one in await asyncio.gather(*many))  # none is lost
        after = await orchestrator.aask(question, **options)
        assert orchestrator.policy != name
        assert {turn.weight_version for turn in after.trajectory.turns} == {1}
        assert follower.look() is None  # once
        shutil.rmtree(folder)
        shutil.copytree(wide, folder)
        follower.look()
        assert "another architecture" in str(await asyncio.to_thread(follower.look))
    with Orchestrator(open_policy(other, [])) as expected:
        logprobs = (await expected.aask(question, **options)).trajectory.turns[0].logprobs
    assert after.trajectory.turns[0].logprobs == pytest.approx(logprobs, abs=1e-4)
    assert before.trajectory.turns[0].logprobs != pytest.approx(logprobs, abs=1e-2)


def test_a_policy_whose_config_lacks_a_field_is_told_and_the_next_one_looked_for(tmp_path: Path):
    for name in ("served", "followed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"model_type": "qwen3"}')
        save_file({"model.norm.weight": np.ones(4, np.float32)}, tmp_path / name / "model.safetensors")
    subject = subject_of(replace(compose(name="evaluate"), policy=str(tmp_path / "served")))
    broken = SimpleNamespace(subject=subject, take_up=lambda subject: checkpoint.load(subject.name))
    follower = Follower(broken, tmp_path / "followed")
    assert follower.look() is None
    assert "followed is not taken up: KeyError('num_attention_heads')" in str(follower.look())
    assert follower.look() is None


def questions(count: int) -> Iterator[tuple[str, str]]:
    """Questions of the world's training split with their answers."""
    world = QuickstartWorld()
    for number in range(count):
        task = world.task("train", 50_000 + number)
        yield task.question, task.answer[0]


@pytest.mark.slow
def test_the_circle_of_serving_judging_training_and_taking_up(tmp_path: Path):
    """Questions with feedback, a log, training on it from the served policy, and the server goes on with that."""
    run, served, again = tmp_path / "run", tmp_path / "served", tmp_path / "again"
    random_run(run)
    words = (str(run), "name=tiny", "--follow", str(again))
    with server(served, *words) as (process, address), httpx.Client(base_url=address, timeout=60) as http:

        def asked(question: str, answer: str) -> None:
            body = {"model": "tiny", "messages": [{"role": "user", "content": question}]}
            found = http.post("/chat/completions", json=body)
            assert found.status_code in (200, 422), found.text  # random weights break the format
            said = {"thumbs": "down", "correct": answer}
            judged = http.post("/feedback", json={"id": found.headers["x-request-id"], **said})
            assert judged.status_code == 200

        for question, answer in questions(50):
            asked(question, answer)
        log = tmp_path / "log.jsonl"
        assert command("served", str(served), "write", str(log)).startswith("50 requests are in")
        train = ("+experiment=served", f"path={log}", f"model.path={run / 'policy'}", "steps=2", f"output_dir={again}")
        command("train", *train, *MICRO, "evaluation.questions=0", "algorithm.tasks_per_step=4")
        with opened(served / "serving" / "served.db") as database:
            for question, answer in questions(10_000):  # until the new weights have answered
                asked(question, answer)
                if rows(database, "requests")[-1]["policy"].startswith(str(again)):
                    break
            process.terminate()
            assert process.wait(60) == 0
            kept = rows(database, "requests")
    assert len({row["policy"] for row in kept}) == 2
    assert all(row["ended"] is not None and row["correct"] for row in kept)  # none is lost
    assert {json.loads(line)["question"] for line in log.read_text().splitlines()} == {q for q, _ in questions(50)}
    steps = [json.loads(line) for line in (again / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps if "loss" in step] == [1, 2]
