"""The benchmark of docs/add_a_benchmark.md, from a folder outside the repository."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.schema import EvaluationConfig, RunConfig
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.evaluation.runner import Evaluator
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.training.build import make_collector
from tests.docs.pages import begin_with
from tests.evaluation.test_runner import ParrotEngine


def test_the_example_is_measured_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begin_with("add_a_benchmark.md", "my_benchmark.py", tmp_path, monkeypatch)
    name = "my_benchmark:by_family"
    cfg = RunConfig()
    cfg = replace(
        cfg,
        model=replace(cfg.model, tokenizer="environment"),
        evaluation=EvaluationConfig(benchmarks=[name], questions=12, greedy=False),
    )
    chat, environment = make_chat(cfg), make_environment(cfg)
    engine = ParrotEngine(chat)
    collector = make_collector(cfg, environment, chat)
    evaluator = Evaluator(cfg, collector, engine, Budget())  # type: ignore[arg-type]
    figures = asyncio.run(evaluator.evaluate())[name]
    asyncio.run(environment.close())
    asked = environment.held_out(12)
    assert figures.keys() == {task.family for task in asked}
    assert all({"accuracy", "cost", "latency"} <= part.keys() for part in figures.values())
    assert len(engine.asked) == len(asked)
