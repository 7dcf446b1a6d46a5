"""The paper's training menu in a run: recorded once, replayed without network and key, and stopped by its budget."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.money.bill import bill
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.price_book import price_book
from orchestra_jax.rollout import collector
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.tools.build import tool_problems
from orchestra_jax.tools.entries import OUT_OF_BUDGET
from orchestra_jax.tools.experts import descriptions
from orchestra_jax.tools.experts.cards import model_cards
from orchestra_jax.tools.experts.roles import ROLES
from orchestra_jax.training.build import make_collector
from orchestra_jax.training.forecast import dry_run
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.main import run
from orchestra_jax.types import Trajectory
from tests.tools.openai_stub import Bill
from tests.tools.tokenizers import save_tokenizer
from tests.tools.tool_servers import Outside, ScriptedPolicy, outside
from tests.training.test_trainer import config

ROOT = Path(__file__).resolve().parents[2]
PAPER = (
    "+experiment=hle", "env=qa", "mesh=single", "model=tiny", "model.family=tests.training.micro:OneLayer",
    "rollout=embedded", "tools=paper_train", "data=jsonl",
    "tools.evaluation.own=false", "evaluation.preferences=true", "data.eval_questions=2", "tools.server.max_tokens=64",
    "tools.menu.most=6",
    "pricing.orchestrator_seconds_per_token=0", "pricing.randomise.low=0.5", "pricing.randomise.high=2",
    "rollout.limits.max_length=1792", "rollout.slots=8", "rollout.limits.retries=0", "algorithm.packing=false",
    "algorithm.loss.kl_coef=0", "algorithm.row_widths=[256]", "algorithm.prefix_widths=[1024]",
    "algorithm.micro_tokens=2048",  # 32,768 would pad six rows to many
    "algorithm.tasks_per_step=2", "algorithm.group_size=3", "steps=2", "warm_start.steps=1",
    "warm_start.demonstrations=24", "warm_start.batch_size=2", "evaluation.questions=2", "evaluation.every=0",
    "checkpoint.every=1", "checkpoint.export=false", "logger.names=[jsonl]",
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With Qwen3's vocabulary the policy would be all head."""
    texts = [path.read_text() for path in (ROOT / "orchestra_jax" / "tools").rglob("*.py")]
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"), texts)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> list[str]:
    """Overrides with questions, passages and a tokenizer of our own."""
    folder = tmp_path_factory.mktemp("files")
    questions, passages = folder / "questions.jsonl", folder / "passages.jsonl"
    rows = [{"question": f"How much is {n} times 6, as Norway counts?", "answer": str(6 * n)} for n in range(1, 29)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    passages.write_text(json.dumps({"title": "Oslo", "text": "Capital of Norway."}) + "\n")
    short = folder / "descriptions.json"  # the cards' texts would double every prompt
    descriptions.save(short, {model: {"description": "A model."} for model in model_cards()})
    return [
        f"data.path={questions}", f"tools.search.corpus={passages}", f"env.tokenizer={tokenizer}",
        f"tools.descriptions={short}",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def servers() -> Iterator[Outside]:
    with outside() as servers:
        yield servers


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAVILY_API_KEY", "a-key")


def live(servers: Outside) -> list[str]:
    return [f"tools.server.url={servers.experts.url}", f"tools.web.url={servers.web_url}"]


@contextmanager
def scripted() -> Iterator[list[Trajectory]]:
    """A scripted policy in place of the trained one; every trajectory that is collected meanwhile."""
    found: list[Trajectory] = []
    ScriptedPolicy.begun.clear()
    whole = collector.EpisodePlayer.play

    async def kept(self: collector.EpisodePlayer, parent: Budget, on_done: Any = None) -> Trajectory:
        found.append(trajectory := await whole(self, parent, on_done))
        return trajectory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collector.EpisodePlayer, "play", kept)
        patch.setattr(collector, "EngineSpeaker", ScriptedPolicy)
        yield found


# --- whole runs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    """A finished run: its folder, the record of its calls, its trajectories, and what was billed and searched."""

    folder: Path
    record: str
    trajectories: list[Trajectory]
    bills: list[Bill]
    searches: int


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, files: list[str], servers: Outside) -> Recorded:
    folder = tmp_path_factory.mktemp("recorded")
    record = f"replay.path={folder / 'calls.db'}"
    bills, searches = len(servers.experts.bills), servers.searches
    with scripted() as seen, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAVILY_API_KEY", "a-key")
        run(config(folder / "run", *PAPER, *files, *live(servers), record, "replay.mode=replay_or_record"))
    return Recorded(folder / "run", record, seen, servers.experts.bills[bills:], servers.searches - searches)


def test_simulated_experts_answer_the_runs_questions_at_their_price(tmp_path: Path, files: list[str]):
    cfg = config(tmp_path, *PAPER, *files, "tools=simulated")
    calls = Counter[str]()
    for t in play(cfg):
        prices = {spec.name: spec.price_usd for spec in t.task.tools if spec.name in cfg.tools.simulated}
        rows = [row for row in t.ledger if row.name in prices]
        assert [row.cost_usd for row in rows] == [prices[row.name] for row in rows]
        calls.update(row.name for row in rows)
        if t.tool_names == ("expert_large",) and not t.solved:
            assert t.answer != t.task.answer[0]
    assert set(calls) == set(cfg.tools.simulated)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("+tools.simulated={a: {skill: {x: 2}}}", "within"),
        ("+tools.simulated={a b: {skill: {x: 0.5}}}", "letters"),
        ("+tools.simulated={a: {skil: 1}}", "unknown key 'skil'"),
    ],
)
def test_a_wrong_skill_table_is_told_before_anything_starts(
    tmp_path: Path, files: list[str], override: str, problem: str
):
    (found,) = tool_problems(config(tmp_path, *PAPER, *files, "tools=offline", override))
    assert problem in found


@pytest.mark.slow
def test_the_papers_menu_trains_and_every_bill_is_in_the_books(recorded: Recorded):
    seen = [t for t in recorded.trajectories if t.ledger]  # all but doing nothing
    assert all(t.completed for t in seen)
    called = {t.task.extra["instance"]["tools"][name] for t in seen for name in t.tool_names}
    assert {key.partition("/")[0] for key in called} == {*ROLES, "python", "local_search", "web_search"}
    paid = [row for t in seen for row in t.ledger if row.role == "tool"]
    assert {"gpt-5", "python", "web_search"} <= {row.name for row in paid}
    assert not any(row.name.startswith("expert") for row in paid)
    drawn, fixed = set[str](), set[str]()  # price lists of training, and of evaluation
    for t in seen:
        lists = fixed if t.task.extra["instance"]["split"] == "eval" else drawn
        lists.update(row.price_list for row in t.ledger if row.role == "tool")
    assert all("*0.5..2@" in name for name in drawn)
    assert len(drawn) > 10
    assert fixed == {price_book(config(recorded.folder, *PAPER)).base.id}
    assert any(row.role == "judge" for t in seen for row in t.ledger)
    for t in seen:
        assert set(t.task.preference.tools) <= set(t.task.extra["instance"]["tools"])

    spent = summary(recorded.folder)["spent"]
    assert spent["calls"] == len(recorded.bills) + recorded.searches
    assert spent["tokens"] == sum(bill.prompt + bill.completion for bill in recorded.bills)
    prices = price_book(config(recorded.folder, *PAPER)).base
    dollars = [
        prices.cost(b.model, prompt_tokens=b.prompt, cached_tokens=b.cached, completion_tokens=b.completion)
        for b in recorded.bills
    ]
    assert spent["usd"] == pytest.approx(math.fsum(dollars) + recorded.searches * 0.01, rel=1e-12)
    rows = read_metrics(recorded.folder)
    assert 0 < rows[0]["spend/usd"] < rows[1]["spend/usd"] <= spent["usd"]
    assert rows[1]["spend/step_usd"] == pytest.approx(rows[1]["spend/usd"] - rows[0]["spend/usd"])
    transcript = (recorded.folder / "trajectories" / "step-000001.txt").read_text()
    assert "prices " in transcript
    assert "expert-1 = " in transcript


@pytest.mark.release
def test_the_record_trains_again_without_network_and_key(
    tmp_path: Path, files: list[str], servers: Outside, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("TAVILY_API_KEY")
    billed, searches = len(servers.experts.bills), servers.searches
    with scripted() as seen:
        run(config(tmp_path, *PAPER, *files, recorded.record, "replay.mode=replay"))
    assert (len(servers.experts.bills), servers.searches) == (billed, searches)

    def told(trajectories: list[Trajectory]) -> list[str]:
        return sorted(repr((t.task.id, t.group, t.member, t.answer, t.solved, t.ledger)) for t in trajectories)

    assert told(seen) == told(recorded.trajectories)
    assert untimed(read_metrics(tmp_path)) == untimed(read_metrics(recorded.folder))
    assert summary(tmp_path)["spent"] == {"usd": 0.0, "tokens": 0, "calls": 0, "by_name": {}}


@pytest.mark.slow
def test_a_run_that_its_budget_stops_is_saved_and_goes_on(
    tmp_path: Path, files: list[str], servers: Outside, capsys: pytest.CaptureFixture[str]
):
    billed, searches = len(servers.experts.bills), servers.searches
    arguments = (*PAPER, *files, *live(servers), "warm_start.steps=0")
    with scripted():
        run(config(tmp_path, *arguments, "steps=1"))
    limit = saved_usd(tmp_path) + 0.004  # a few calls
    with scripted(), pytest.raises(SystemExit, match=r"^3$"):
        run(config(tmp_path, *arguments, f"budget.run_usd={limit}"))
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if "budget" in line]
    assert "the run could come to" in sentence
    assert "Stopped after step 1 of policy" in sentence
    assert "the same command with a higher budget.run_* continues from there." in sentence
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]
    assert limit - 0.004 < saved_usd(tmp_path) <= limit
    assert saved_calls(tmp_path) == len(servers.experts.bills) - billed + servers.searches - searches

    begun = set(ScriptedPolicy.begun)
    with scripted():
        run(config(tmp_path, *arguments, "budget.run_usd=10"))
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
    assert len(begun) == 2
    assert begun <= ScriptedPolicy.begun  # the step began anew with its own tasks
    assert saved_calls(tmp_path) == len(servers.experts.bills) - billed + servers.searches - searches
    assert summary(tmp_path)["spent"]["usd"] == saved_usd(tmp_path) > limit


# --- without training ------------------------------------------------------------------------------------------------


def play(cfg: RunConfig) -> list[Trajectory]:
    """The warm start's demonstrations."""
    environment = make_environment(cfg)
    demonstrations = environment.demonstrations()
    assert demonstrations is not None

    async def main() -> list[Trajectory]:
        made = make_collector(cfg, environment, make_chat(cfg))
        try:
            return await made.play(demonstrations.script, demonstrations.tasks, demonstrations.think, budget=Budget())
        finally:
            await environment.close()

    return asyncio.run(main())


def test_the_released_form_ends_with_the_answer_of_a_model(tmp_path: Path, files: list[str], servers: Outside):
    cfg = config(
        tmp_path, *PAPER, *files, *live(servers), "tools=released", "tools.server.max_tokens=64",
        "rollout.limits.max_length=2048",
    )  # fmt: skip
    for t in play(cfg):
        assert t.completed, t.reason
        assert [spec.name for spec in t.task.tools] == ["search", "enhance_reasoning", "answer"]
        assert t.tool_names[-1] == "answer"
        assert t.answer is not None
        assert "boxed" in t.answer
        assert len(t.tool_names) == 2
        assert all(row.cost_usd > 0 for row in t.ledger if row.role == "judge")


def test_the_answer_tool_ends_the_trajectory(tmp_path: Path, files: list[str], servers: Outside):
    names = "tools.names=[python,local_search,web_search,answer]"
    found = play(config(tmp_path, *PAPER, *files, *live(servers), names, "tools.judge=match"))
    assert all(t.completed and t.tool_names[-1] == "answer" for t in found)
    assert any("42" in str(t.answer) for t in found)
    assert {t.solved for t in found if "42" not in str(t.answer)} == {False}


def test_a_trajectorys_budget_is_told_to_its_policy(tmp_path: Path, files: list[str], servers: Outside):
    cfg = config(tmp_path, *PAPER, *files, *live(servers), "budget.trajectory_calls=0", "warm_start.demonstrations=6")
    found = play(cfg)
    assert all(t.completed for t in found)
    refused = [result for t in found for turn in t.turns for result in turn.results if result.is_error]
    assert refused
    assert all(OUT_OF_BUDGET in result.text for result in refused)
    assert all(row.cost_usd == 0 for t in found for row in t.ledger if row.name == "gpt-5" and row.role == "tool")


# --- what is missing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["tools.server.url=http://127.0.0.1:9/v1"], "No server answers at http://127.0.0.1:9/v1 for expert"),
        (["tools.server.api_key_env=NO_SUCH_KEY"], "set the environment variable NO_SUCH_KEY"),
        (["pricing.name=paper", "pricing.randomise.lists=[]"], "has no price for deepseek-r1, gemma-3-27b"),
        (["pricing.randomise.lists=[nobody]"], "pricing.randomise.lists=nobody is no price list"),
        (["tools.web.url=null", "unset"], "set the environment variable TAVILY_API_KEY"),
        (["tools.search.index=http://127.0.0.1:9"], "No server answers at http://127.0.0.1:9 for local_search"),
        (["replay.mode=replay", "replay.path=/nowhere/calls.db"], "replay.path=/nowhere/calls.db is not there"),
        (["tools.descriptions=/nowhere/d.json"], "tools.descriptions=/nowhere/d.json is not there"),
        (["tools=offline", "tools.names=[]"], "There is nothing to call"),
        (
            ["tools.names=[browser]"],
            "tools.names=browser is no known tool: use one of answer, local_search, python, web_",
        ),
    ],
    ids=["server", "key", "price", "list", "web key", "index", "record", "descriptions", "nothing", "unknown"],
)
def test_what_the_tools_lack_is_one_sentence_before_anything_is_made(
    tmp_path: Path, files: list[str], servers: Outside, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], overrides: list[str], words: str,
):  # fmt: skip
    if "unset" in overrides:
        monkeypatch.delenv("TAVILY_API_KEY")
    arguments = [text for text in (*live(servers), *overrides) if text != "unset"]
    with pytest.raises(SystemExit, match=r"^2$"):
        run(config(tmp_path / "run", *PAPER, *files, *arguments))
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("replay.mode=record", "set replay.path=FILE.db"),
        ("+tools.experts.poet=[gpt-5]", "the roles are query_writer"),
        ("tools.menu.most=1", "must be at least tools.menu.fewest=4"),
        ("tools.server.max_tokens=40000", "leaves no room for a question"),
        ("pricing.randomise.low=3", "must be at most pricing.randomise.high"),
        ("budget.run_usd=-1", "budget.run_usd=-1.0 must be at least 0"),
    ],
)
def test_what_does_not_fit_is_one_sentence(tmp_path: Path, override: str, words: str):
    with pytest.raises(ConfigError, match=words):
        config(tmp_path, *PAPER, override)


def test_a_dry_run_tells_a_steps_cost(tmp_path: Path):
    cfg = config(tmp_path, *PAPER, "tools.judge=match", "plan.calls=2", "budget.run_usd=5", "algorithm.refill=2")
    told = dry_run(cfg, price_book(cfg).base)
    assert told is not None
    # 2 calls of 2000 in at $3 and 1000 out at $8 per million, each with a search of a cent, in 6 trajectories
    assert f"${6 * 2 * (0.006 + 0.008 + 0.01):.2f} with deepseek-r1 as query_writer alone" in told
    each = [
        6 * 2 * (price_book(cfg).base.cost(model, prompt_tokens=2000, completion_tokens=1000) + search)
        for role, search in (("query_writer", 0.01), ("code_writer", 0.0), ("math", 0.0), ("generalist", 0.0))
        for model in cfg.tools.experts[role]
    ]
    assert len(each) == 23
    assert f"${(sum(each) + 6 * 2 * 0.01) / 24:.2f} with calls at random" in told  # and a search alone
    evaluations = 2 * 2 * (sum(each) + 6 * 2 * 0.01) / 24 / 6  # before and after
    assert f"(with algorithm.refill up to 3 times that), evaluations ${evaluations:.2f} besides; " in told
    assert "besides; budget.run_usd=5 ends the run" in told
    searched = config(tmp_path, *PAPER, "tools=basic")
    told = dry_run(searched, price_book(searched).base)
    # 3 searches of a cent, and a verdict of gpt-5, in 6 trajectories
    assert f"costs about ${6 * (3 * 0.01 + 0.0125):.2f} with calls at random, " in told
    assert f"${6 * (3 * 0.01 + 0.0125):.2f} with web_search alone" in told
    judged = config(tmp_path, *PAPER, "tools=basic", "tools.names=[python]")
    told = dry_run(judged, price_book(judged).base)
    assert told.startswith("Dry run: with a verdict of 2000 + 1000 tokens per trajectory a step of 6 trajectories ")
    assert "costs about $0.08 for the judge, and 2 steps $0.15 (" in told
    quickstart = config(tmp_path)
    assert dry_run(quickstart, price_book(quickstart).base) is None


def untimed(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """Return the rows without what a clock says: seconds, shares of them, anything per second, and what was spent."""
    timed = ("time/", "spend/", "share/", "idle/")
    return [
        {k: v for k, v in row.items() if k != "seconds" and not k.startswith(timed) and not k.endswith("per_s")}
        for row in rows
    ]


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def saved_usd(folder: Path) -> float:
    return float(sum(Fraction(usd) for usd, _, _ in bill(folder)[0].values()))


def saved_calls(folder: Path) -> int:
    return sum(calls for _, _, calls in bill(folder)[0].values())
