"""What a rehearsal puts in the place of providers, questions and vocabulary."""

import asyncio
import itertools
import json
import os
from pathlib import Path

import pytest

from benchmarks.rehearsal.copies import write_copies
from benchmarks.rehearsal.providers import Providers, slow_tail
from benchmarks.rehearsal.replies import OPENINGS
from orchestra_jax.config.compose import compose
from orchestra_jax.config.roles import Role
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.data.sources import load_tasks
from orchestra_jax.envs.conversation import Conversation
from orchestra_jax.envs.mixture import MixtureEnvironment
from orchestra_jax.money import price_files
from orchestra_jax.money.budgets import Budget
from orchestra_jax.preparation import paper
from orchestra_jax.preparation.made import Wanted
from orchestra_jax.preparation.written import Writing, write
from orchestra_jax.synthesis.wordings import PREFERENCES, TARGETS
from orchestra_jax.tools.experts.cards import api_fields
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.tools.experts.judge import Judge
from orchestra_jax.tools.experts.roles import expert_tool
from orchestra_jax.tools.search.dense import DenseIndex
from orchestra_jax.tools.search.web import TavilySearch
from orchestra_jax.types import ToolCall
from tests.isolation import available

PRICES = price_files.load(Path(__file__).parents[3] / "conf" / "pricing" / "paper_train.yaml")
needs_data = pytest.mark.skipif("ORCHESTRA_DATA" not in os.environ, reason="ORCHESTRA_DATA is not set")


def test_a_slow_tail_is_heavy_and_drawn_by_its_seed():
    drawn = list(itertools.islice(slow_tail(0), 2000))
    assert drawn == list(itertools.islice(slow_tail(0), 2000))
    assert drawn[:9] != list(itertools.islice(slow_tail(1), 9))
    # As Pareto has it: a half within twice the shortest, one in ten beyond ten times; none beyond the longest.
    assert 0.2 <= min(drawn) < 0.21
    assert 0.45 < sum(seconds < 0.4 for seconds in drawn) / 2000 < 0.55
    assert 0.08 < sum(seconds > 2.0 for seconds in drawn) / 2000 < 0.12
    assert max(drawn) == 20.0


async def test_each_answer_of_a_provider_takes_the_next_delay():
    delays = iter([0.0, 0.0, 0.0])
    async with Providers(PRICES, delays) as providers:
        client = ExpertClient(Expert("gpt-5", "gpt-5", f"{providers.url}/v1", **api_fields("gpt-5")), PRICES)
        for _ in range(2):
            await client.chat([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}], budget=Budget())
        await client.close()
    assert len(list(delays)) == 1


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


@pytest.fixture(scope="module")
def data(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data that a rehearsal prepares of its copies, but for what models write."""
    copies, data = (tmp_path_factory.mktemp(name) for name in ("copies", "data"))
    write_copies(copies, {"ORCHESTRA_DATA": str(data_dir)})
    assert paper.prepare(paper.PARTS, data, copies, Wanted(), say=lambda text: None) == []
    return data


def test_copies_are_real_questions_with_what_is_set_aside_of_them(data: Path):
    training, evaluation = load_tasks(data / "general_thought"), load_tasks(data / "hle")
    assert {question.family for question in training} >= {"gsm8k", "bridge"}
    assert (len(training), len(evaluation)) == (400, 200)
    counts = {name: part["counts"] for name, part in json.loads((data / paper.ACCOUNT).read_text()).items()}
    assert counts["general_thought"]["set aside: blank reference answer"] == 1
    assert counts["general_thought"]["further answers to a question"] == 1
    assert counts["hle"]["with a picture"] == 1
    assert (counts["toolscale"]["kept"], counts["retrieval_index"]["kept"]) == (48, 200)


async def test_passages_are_found_by_their_own_vectors(data: Path):
    async with Providers(PRICES) as providers:
        opened = DenseIndex.load(data / "retrieval_index", embedder_url=f"{providers.url}/v1")
        passage = opened.passages[7]
        found = await opened.nearest(await opened.embedder.embed([passage.text], "passage"), 1)
        await opened.close()
        assert [hit.passage for hit in found[0]] == [passage]
        assert providers.embedded == 1


@needs_data
def test_files_of_the_readers_own_are_asked_for_and_taken(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"set GENERAL_THOUGHT_PATH to .* or ORCHESTRA_DATA"):
        write_copies(tmp_path, {})
    with pytest.raises(ConfigError, match="gsm8k_train"):
        write_copies(tmp_path, {"ORCHESTRA_DATA": str(tmp_path)})
    own = tmp_path / "own.jsonl"
    own.write_text('{"question_id": 1, "question": "Who?", "reference_answer": "Ada", "task": "mine"}\n')
    write_copies(
        tmp_path / "copies", {"ORCHESTRA_DATA": os.environ["ORCHESTRA_DATA"], "GENERAL_THOUGHT_PATH": str(own)}
    )
    (question,) = load_tasks(tmp_path / "copies/GeneralThought-430K")
    assert (question.question, question.family) == ("Who?", "mine")


async def test_wordings_of_every_wish_are_read_as_they_were_meant(tmp_path: Path):
    async with Providers(PRICES) as providers:
        common = {"base_url": f"{providers.url}/v1", "api_key_env": None, "max_tokens": 400}
        experts = tmp_path / "experts.yaml"
        experts.write_text(json.dumps({"defaults": common, "experts": {"gpt-5": None, "gpt-5-mini": None}}))
        writing = Writing(experts, "gpt-5", "gpt-5-mini", 5.0, requests=len(TARGETS))
        assert await asyncio.to_thread(write, ("preferences",), tmp_path, writing) == []
        assert sum(calls for _, _, calls in providers.billed.values()) == 4 * len(TARGETS)
    rows = [json.loads(line) for line in (tmp_path / "preferences" / PREFERENCES).read_text().splitlines()]
    assert len(rows) == 3 * len(TARGETS)
    assert all(row["instruction"].startswith(OPENINGS) for row in rows)


async def test_the_papers_run_draws_and_plays_both_halves(data: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("TOOLSCALE_REPO", "TOOLSCALE_PATH", "GENERAL_THOUGHT_PATH", "HLE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("QWEN3_TOKENIZER", f"{os.environ['ORCHESTRA_DATA']}/qwen3-tokenizer")
    monkeypatch.setenv("ORCHESTRA_DATA", str(data))
    options = [] if available() else ["tools.sandbox.isolation=none"]
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
