"""What is served is what was evaluated, item by item: answers, dollars and seconds."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.envs.base import Baseline
from orchestra_jax.envs.baselines import baseline
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.money.budgets import Budget
from orchestra_jax.serving.opened import OpenPolicy
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.training.build import make_collector
from tests.envs.recorded.made import MODELS, config, made_rows
from tests.serving.made import client, command

# So much that most questions are answered with calls; whether they are right does not matter here.
LEAST_TRAINING = (
    "steps=1", "model.family=tests.training.micro:OneLayer", "warm_start.steps=80", "warm_start.batch_size=32",
    "warm_start.check_every=80", "warm_start.demonstrations=800", "algorithm.tasks_per_step=2",
    "evaluation.questions=4", "evaluation.swap_questions=0", "evaluation.greedy=false", "logger.names=[jsonl]",
)  # fmt: skip


async def test_a_recorded_world_answers_its_questions_by_their_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("starlette", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
    from orchestra_jax.serving.database import opened as opened_database

    table = tmp_path / "table.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in made_rows()))
    cfg = replace(config(str(table)), name="recorded", output_dir=str(tmp_path))
    cfg = replace(cfg, evaluation=replace(cfg.evaluation, preferences=True))
    environment = make_environment(cfg)
    tasks = environment.held_out(12)
    policy = baseline(environment, "cheapest_first", tasks, 3).script
    evaluated = await make_collector(cfg, environment, None).play(policy, tasks, budget=Budget(), silent=True)

    def checked(*_: object) -> object:
        from orchestra_jax.training.subject import Subject

        return Subject("random", cfg, baseline="cheapest_first")

    monkeypatch.setattr("orchestra_jax.serving.opened.checked_settings", checked)
    monkeypatch.setattr("orchestra_jax.serving.opened._subject", checked)
    with Orchestrator.load("random") as orchestrator:
        opened: OpenPolicy = orchestrator._opened
        orchestrator._opened = replace(opened, engine=Baseline("random", policy))
        with opened_database(tmp_path / "served.db") as database:
            async with client(orchestrator, database) as http:

                async def posted(question: str, **more: object) -> Any:
                    body = {"model": "recorded", "messages": [{"role": "user", "content": question}]}
                    return await http.post("/v1/chat/completions", json={**body, **more})

                async def asked(question: str, wish: str) -> tuple[str, float, float]:
                    told = (await posted(question, orchestra={"wish": wish})).json()
                    said = told["choices"][0]["message"]["content"]
                    return said, told["orchestra"]["cost_usd"], told["orchestra"]["seconds"]

                named = orchestrator.ask(tasks[0]).calls[0]
                served = await asyncio.gather(*(asked(task.question, task.preference.instruction) for task in tasks))
                new = await posted("How much is 1 + 1000?")
    assert len({wish.preference.instruction for wish in tasks}) > 4
    assert served == [(found.answer, found.cost_usd, found.latency_s) for found in evaluated]
    assert named.model in MODELS
    assert any(cost > 0 for _, cost, _ in served)
    assert (new.status_code, "were never asked this" in new.text) == (400, True)
    await environment.close()


@pytest.mark.release  # `make test` compares a scripted policy (above) and the tokens (test_orchestrator.py)
def test_a_trained_policy_answers_a_hundred_held_out_questions_as_evaluate_has_it(tmp_path: Path):
    # Compiled as a run does: so many steps take less time than the tests' quick compilation would save.
    command("train", f"output_dir={tmp_path}", *LEAST_TRAINING, XLA_FLAGS="")
    greedy = ("evaluation.temperature=0", "evaluation.greedy=false", "evaluation.benchmarks=[held_out]")
    command("evaluate", f"policy={tmp_path}", "evaluation.questions=100", *greedy)
    file = tmp_path / "evaluation" / "trajectories" / "policy" / "held_out.t0.jsonl"
    evaluated = {row["id"]: row for row in map(json.loads, file.read_text().splitlines())}
    with Orchestrator.load(tmp_path) as orchestrator:
        tasks = orchestrator._opened.environment.held_out(100)

        async def all_at_once() -> list:
            return await asyncio.gather(*(orchestrator.aask(task) for task in tasks))

        served = asyncio.run(all_at_once())
    assert len(evaluated) == 100
    for task, answer in zip(tasks, served, strict=True):
        row = evaluated[task.id]
        assert (answer.answer, answer.cost_usd, answer.seconds) == (row["answer"], row["cost_usd"], row["latency_s"])
    assert sum(bool(answer.calls) for answer in served) > 50
    assert len({answer.answer for answer in served}) > 10
