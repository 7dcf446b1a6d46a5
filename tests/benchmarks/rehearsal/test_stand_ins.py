"""What a rehearsal puts in the place of providers, questions and vocabulary."""

import os
from pathlib import Path

import pytest

from benchmarks.rehearsal.domain import write_domain
from benchmarks.rehearsal.providers import Providers
from benchmarks.rehearsal.questions import write_questions
from orchestra_jax.config.compose import compose
from orchestra_jax.config.roles import Role
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.data.sources import load_tasks
from orchestra_jax.envs.conversation import Conversation
from orchestra_jax.envs.mixture import MixtureEnvironment
from orchestra_jax.money import price_files
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.experts.cards import api_fields
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.tools.experts.judge import Judge
from orchestra_jax.tools.experts.roles import expert_tool
from orchestra_jax.tools.search.web import TavilySearch
from orchestra_jax.types import ToolCall
from tests.isolation import available

PRICES = price_files.load(Path(__file__).parents[3] / "conf" / "pricing" / "paper_train.yaml")
needs_data = pytest.mark.skipif("ORCHESTRA_DATA" not in os.environ, reason="ORCHESTRA_DATA is not set")


async def test_providers_bill_what_the_clients_pay(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TAVILY_API_KEY", "x")
    budget = Budget()
    async with Providers(PRICES) as providers:
        clients = {
            name: ExpertClient(Expert(name, name, f"{providers.url}/v1", **api_fields(name)), PRICES)
            for name in ("gpt-5", "llama-3.3-70b")
        }
        search = TavilySearch(PRICES, providers.url)

        async def run(arguments: dict, budget: Budget) -> str:
            return f"ran {arguments['code']}"

        for role in Role:
            follow = {"query_writer": search.search, "code_writer": run}.get(role)
            spec, handle = expert_tool(role, clients["llama-3.3-70b"], follow)
            result = await handle({spec.parameters["required"][0]: "How far is the moon?"}, budget)
            assert not result.is_error, result
        verdicts = [
            (await Judge(clients["gpt-5"]).judge("Where?", answer, ["here"], budget=budget)).correct
            for answer in map(str, range(12))
        ]
        assert 0 < sum(verdicts) < 12  # else no group would have a gradient
        for each in (*clients.values(), search):
            await each.close()
    assert budget.get_state() == providers.billed
    assert budget.by_name()["gpt-5"].calls == 12
    assert budget.by_name()["web_search"].usd == 0.01


@needs_data
def test_real_questions_come_in_the_forms_of_the_paper(tmp_path: Path):
    found = write_questions(tmp_path, os.environ)
    training, evaluation = load_tasks(found["GENERAL_THOUGHT_PATH"]), load_tasks(found["HLE_PATH"])
    assert {question.family for question in training} >= {"gsm8k", "bridge"}
    assert (len(training), len(evaluation)) == (400, 200)
    own = {"GENERAL_THOUGHT_PATH": "a", "HLE_PATH": "b"}
    assert write_questions(tmp_path, own) == own


def test_questions_that_are_not_there_are_asked_for(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"set GENERAL_THOUGHT_PATH and HLE_PATH .* or ORCHESTRA_DATA"):
        write_questions(tmp_path, {})
    with pytest.raises(ConfigError, match="gsm8k_train"):
        write_questions(tmp_path, {"ORCHESTRA_DATA": str(tmp_path)})


def test_a_clone_of_the_readers_own_is_taken_with_its_rows(tmp_path: Path):
    own = {"TOOLSCALE_REPO": "a", "TOOLSCALE_PATH": "b"}
    assert write_domain(tmp_path, own) == own
    assert write_domain(tmp_path, {"TOOLSCALE_REPO": "a"})["TOOLSCALE_REPO"] == str(tmp_path)


@needs_data
async def test_the_papers_run_draws_and_plays_both_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("TOOLSCALE_REPO", "TOOLSCALE_PATH"):
        monkeypatch.delenv(name, raising=False)
    made = write_questions(tmp_path / "questions", os.environ) | write_domain(tmp_path / "toolscale", os.environ)
    for name, value in made.items():
        monkeypatch.setenv(name, value)
    options = [] if available() else ["+env.options.toolscale.isolation=none"]
    cfg = compose("+experiment=hle", "model=tiny", "tools=none", "tools.judge=match", *options)
    assert MixtureEnvironment.problems(cfg) == []
    environment = MixtureEnvironment(cfg)
    try:
        assert len(environment._parts["toolscale"].sifted.usable) == 48  # type: ignore[attr-defined]
        drawn = [task for _ in range(4) for task in next(environment.train_tasks(16))]
        episodes = [environment.reset(task, Budget()) for task in drawn]
        talks = [isinstance(episode, Conversation) for episode in episodes]
        assert 16 < sum(talks) < 48
        conversation = episodes[talks.index(True)]
        assert not (await conversation.step(ToolCall("get_member", {"member_id": "M1"}))).is_error
        kinds = {task.extra["part"] for task in environment.held_out(20)}
        assert kinds == {"qa", "toolscale"}
    finally:
        await environment.close()
