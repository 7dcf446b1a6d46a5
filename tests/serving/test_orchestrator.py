"""Answers of a policy in Python: they are those of training and evaluation, and every dollar is accounted for."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import orchestra_jax as oj
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.base import ToolEpisode
from orchestra_jax.money.bill import bill
from orchestra_jax.money.budgets import Budget, BudgetExceeded
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.reservations import acquire
from orchestra_jax.serving.answers import Answer, CallStep
from orchestra_jax.serving.asking import Account, AskedEpisode, Purse, QuestionError, Surroundings
from orchestra_jax.serving.orchestrator import Orchestrator
from orchestra_jax.tools.base import tool
from orchestra_jax.tools.executor import ToolExecutor, ToolHandler
from orchestra_jax.tools.relay import RELAY, relaying
from orchestra_jax.types import InfrastructureError, Preference, Status, Task, ToolCall, ToolResult, ToolSpec, Usage
from tests.serving.made import CALLED, ask_dear, calling, qa_settings, random_run, scripted
from tests.tools.openai_stub import StubOpenAI


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def served(run: Path) -> Iterator[Orchestrator]:
    with oj.Orchestrator.load(run) as orchestrator:
        yield orchestrator


def sampled(answer: Answer) -> list[tuple[int, ...]]:
    assert answer.trajectory is not None
    return [turn.sampled_ids for turn in answer.trajectory.turns]


def test_the_tokens_are_those_of_a_rollout_and_many_at_once_change_none(run: Path, served: Orchestrator):
    cfg = oj.load_run(run).config
    tasks = served._opened.environment.held_out(5)
    alone = [served.ask(task) for task in tasks]
    for task, answer in zip(tasks[:2], alone, strict=False):
        played = oj.play(cfg, run, task)
        assert answer.trajectory is not None
        assert [(turn.prompt_ids, turn.sampled_ids) for turn in answer.trajectory.turns] == [
            (turn.prompt_ids, turn.sampled_ids) for turn in played.turns
        ]
        assert answer.trajectory.turns[0].logprobs == pytest.approx(played.turns[0].logprobs, abs=1e-4)
        assert (answer.status, answer.reason, answer.cost_usd) == (played.status, played.reason, played.cost_usd)

    async def together() -> list[Answer]:
        return await asyncio.gather(*(served.aask(task) for task in tasks))

    assert [sampled(answer) for answer in asyncio.run(together())] == [sampled(answer) for answer in alone]
    assert served._opened.engine._open == set()


def test_a_seed_gives_the_same_words_again(served: Orchestrator):
    def words(**options: Any) -> list[tuple[int, ...]]:
        return sampled(served.ask("What is 7 * 8?", temperature=1.0, **options))

    first = words(seed=7)
    assert words() != words()
    assert words(seed=7) == first != words(seed=8)


def test_a_conversation_stands_before_its_question(served: Orchestrator):
    earlier = [{"role": "user", "content": "What is 3 * 4?"}, {"role": "assistant", "content": "12"}]
    found = served.ask("What is 7 * 8?", wish="cheap", history=earlier)
    assert found.trajectory is not None
    said = served._opened.chat.spelled(found.trajectory.turns[0].prompt_ids)
    assert "user What is 3 * 4?<|im_end|><|im_start|> assistant12<|im_end|><|im_start|> user What is 7 * 8?" in said
    assert said.endswith("Keep the cost low.<|im_end|><|im_start|> assistant")
    assert served.posed("What is 7 * 8?", " ") == served.posed("What is 7 * 8?")  # no wish


@pytest.mark.parametrize(
    ("question", "options", "sentence"),
    [
        ("Who is the pope?", {}, "The quickstart's world knows no such question"),
        (" ", {}, "The question is empty"),
        ("What is 7 * 8?", {"wish": "be zesty"}, "The policy has no word 'zesty"),
        ("What is 7 * 8?", {"max_usd": -1}, "max_usd must be at least 0, not -1"),
        ("What is 7 * 8?", {"max_seconds": float("nan")}, "max_seconds must be at least 0"),
        ("What is 7 * 8?", {"history": [{"role": "system", "content": "x"}]}, "the role user, assistant or tool"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(served: Orchestrator, question: str, options: dict, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        served.ask(question, **options)


def test_a_folder_is_opened_once_and_an_unknown_policy_or_world_is_refused(run: Path, served: Orchestrator, tmp_path):
    with pytest.raises(ConfigError, match="Another run is at work"):
        Orchestrator.load(run)
    with pytest.raises(ConfigError, match="is neither a checkpoint"):
        Orchestrator.load(tmp_path / "nowhere", f"output_dir={tmp_path}")
    with pytest.raises(ConfigError, match="did you mean"):
        Orchestrator.load("baseline:do_nothing", "sed=3", f"output_dir={tmp_path}")


@pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")
async def test_a_closed_orchestrator_says_so(tmp_path: Path):
    closed = await asyncio.to_thread(Orchestrator.load, "baseline:do_nothing", f"output_dir={tmp_path}")
    await asyncio.to_thread(closed.close)
    for asked in (closed.ask, lambda question: list(closed.stream(question))):
        with pytest.raises(ValueError, match=r"^This orchestrator is closed: open its policy again with Orchestrator"):
            asked("What is 7 * 8?")
    with pytest.raises(ValueError, match=r"^This orchestrator is closed"):
        await closed.aask("What is 7 * 8?")


def test_an_own_token_beyond_the_limit_is_not_sampled(run: Path, tmp_path: Path):
    prices = ["pricing.orchestrator_input=1000", "pricing.orchestrator_output=10000"]  # a prompt is 5 cents, a word 1
    with Orchestrator.load(run, *prices, f"output_dir={tmp_path}") as orchestrator:
        stopped = orchestrator.ask("What is 7 * 8?", max_usd=0.05)
        assert (stopped.answer, stopped.limit, stopped.cost_usd) == (None, "max_usd", 0.0)
        assert "max_usd is 0.05" in stopped.reason
        whole = orchestrator.ask("What is 7 * 8?", max_usd=1.0)
        assert whole.limit == ""
        assert 0.05 < whole.cost_usd <= 1.0
    assert sum(row.cost_usd for row in whole.ledger) == whole.cost_usd


def test_a_limit_of_tokens_ends_the_answer_and_the_first_ones_are_those_without_it(served: Orchestrator):
    whole = served.ask("What is 7 * 8?")
    written = sum(row.completion_tokens for row in whole.ledger)
    cut = served.ask("What is 7 * 8?", max_tokens=written - 1)
    assert (cut.answer, cut.limit, cut.status) == (None, "max_tokens", Status.NO_ANSWER)
    assert sum(row.completion_tokens for row in cut.ledger) == written - 1
    same = served.ask("What is 7 * 8?", max_tokens=written + 1)
    assert (sampled(same), same.status, same.limit) == (sampled(whole), whole.status, "")


@pytest.mark.parametrize("most", [None, 0.2, 0.0])
def test_a_call_that_is_too_dear_is_refused_and_the_policy_goes_on(tmp_path: Path, most: float | None):
    def large(task: Task, results: list[ToolResult]) -> ToolCall | str:
        return results[-1].text if results else ToolCall("expert_large", {})

    with scripted(tmp_path, large) as orchestrator:
        found = orchestrator.ask("Anna is older than Boris. Who is younger?", max_usd=most)
    assert found.trajectory is not None
    (price,) = (spec.price_usd for spec in found.trajectory.task.tools if spec.name == "expert_large")
    if most == 0:
        assert (found.cost_usd, found.calls[0].refused, "budget" in str(found.answer)) == (0.0, True, True)
    else:
        assert (found.answer, found.cost_usd, found.calls[0].usd) == ("Boris", price, price)
        assert price
    assert found.trace.splitlines()[-1].startswith("1 call, ")
    assert (found.status, sum(row.cost_usd for row in found.ledger)) == (Status.COMPLETED, found.cost_usd)


@pytest.mark.parametrize("most", [None, 0.5, 0.8, 1.0])
async def test_calls_of_one_turn_share_the_limit_exactly(most: float | None):
    """A paid call of 40 cents beside one that costs 30 cents by the menu, and nobody asks for."""
    spent = Budget()
    account = Account(most, PriceList("none", "", "", {}), Purse(spent), lambda step: None)
    free = ToolSpec("listed", "Costs by the menu.", {"type": "object", "properties": {}}, price_usd=0.3)
    made = list[str]()

    class Both:
        messages, tools = [{"role": "user", "content": "Why?"}], (free,)

        async def step(self, call: ToolCall) -> ToolResult:
            made.append(call.name)
            row = Usage(call.name, cost_usd=0.4 if call.name == "paid" else 0.3)
            if call.name == "paid":
                reservation = await acquire(account.budget, row)
                await asyncio.sleep(0.01)
                reservation.settle(row)
            else:
                await asyncio.sleep(0.02)  # the paid one has ended
            return ToolResult("done", (row,))

    episode = AskedEpisode(Both(), account, Surroundings())
    names = ("paid", "listed", "paid")
    results = await asyncio.gather(*(episode.step(ToolCall(name, {})) for name in names))
    whole = {None: 1.1, 0.5: 0.4, 0.8: 0.7, 1.0: 0.7}[most]
    assert sum(row.cost_usd for result in results for row in result.usage) == pytest.approx(whole)
    assert account.usd == pytest.approx(whole)
    if most is not None:
        assert account.usd <= most
        assert made.count("listed") == (0 if most == 0.5 else 1)  # what is too dear is not made
    assert spent.spent.usd == pytest.approx(0.8 if most is None else 0.4)


@pytest.mark.parametrize("paid", [True, False])
@pytest.mark.parametrize("most", [None, 1.0])
async def test_what_a_failed_call_paid_counts_once(most: float | None, paid: bool):
    """The model behind a writer was paid, or its recorded answer read, and then its search failed."""
    purse, row, tries = Purse(Budget()), Usage("model", cost_usd=0.2), list[str]()
    account = Account(most, PriceList("none", "", "", {}), purse, lambda step: None)

    class Writer:
        messages, tools = [{"role": "user", "content": "Why?"}], ()

        async def step(self, call: ToolCall) -> ToolResult:
            tries.append(call.name)
            if len(tries) > 1:
                return ToolResult("found")
            if paid:
                (await acquire(account.budget, row)).settle(row)
            error = InfrastructureError("The search is down.")
            error.usage = (row,)
            raise error

    episode = AskedEpisode(Writer(), account, Surroundings())
    with pytest.raises(InfrastructureError):
        await episode.step(ToolCall("writer", {}))
    await episode.step(ToolCall("writer", {}))
    assert account.usd == pytest.approx(0.2)
    assert (account.ledger, [step.usd for step in account.steps]) == ([row], [0.2, 0.0])
    assert (purse.paid.spent.usd, purse.own.spent.usd) == ((0.2, 0.0) if paid else (0.0, 0.2))


@pytest.mark.parametrize(
    ("calls", "final"),
    [
        ([("dear", {}), ("relay", {})], None),
        ([("dear", {}), ("relay", {"tool": "dear"})], None),
        ([("dear", {}), ("relay", {"tool": ["dear"]})], None),
        ([("cheap", {}), ("dear", {}), ("relay", {})], "cheap says so"),
        ([("dear", {}), ("cheap", {}), ("relay", {"tool": "dear"})], None),
        ([("dear", {}), ("cheap", {}), ("relay", {"tool": "cheap"})], "cheap says so"),
    ],
)
async def test_a_result_that_was_too_dear_is_not_handed_over(calls: list, final: str | None):
    def recorded(name: str, usd: float) -> ToolHandler:
        async def call(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
            return ToolResult(f"{name} says so", (Usage(name, cost_usd=usd),))  # what it costs is known afterwards

        return call

    class World(ToolEpisode):
        async def score(self, answer: str) -> bool:
            return False

    tools = tuple(replace(RELAY, name=name, terminal=False) for name in ("cheap", "dear"))
    executor = ToolExecutor((*tools, RELAY), relaying({"cheap": recorded("cheap", 0.1), "dear": recorded("dear", 9.0)}),
                            Budget())  # fmt: skip
    account = Account(1.0, PriceList("none", "", "", {}), Purse(Budget()), lambda step: None)
    task = Task("t", "Why?", (), executor.tools, Preference("", ""))
    episode = AskedEpisode(World(task, executor, [{"role": "user", "content": "Why?"}]), account, Surroundings())
    for name, arguments in calls:
        found = await episode.step(ToolCall(name, arguments))
    assert (found.final, found.refused) == (final, final is None)
    assert account.usd == pytest.approx(0.1 * sum(name == "cheap" for name, _ in calls))


def test_paid_calls_stand_in_the_bill_and_stop_at_the_budgets(tmp_path: Path):
    settings = qa_settings(tmp_path)
    with scripted(tmp_path, ask_dear, *settings, "budget.run_usd=1.0") as orchestrator:
        assert orchestrator.ask("Why?").answer == "It is 4."
        small = orchestrator.ask("Why not?", max_usd=0.3)
        assert (small.calls[0].refused, small.cost_usd) == (True, 0.0)
        assert orchestrator.ask("Why me?", max_usd=0.4).cost_usd == 0.4
        with pytest.raises(BudgetExceeded, match=r"could come to 1\.2 dollars, but its budget is 1"):
            orchestrator.ask("Why now?")
    with scripted(tmp_path, ask_dear, *settings, "budget.run_usd=1.0") as again, pytest.raises(BudgetExceeded):
        again.ask("Why?")
    paid, in_flight = bill(again.folder)
    assert ([calls for _, _, calls in paid.values()], in_flight) == ([2], {})


LOOKUP = ToolSpec("lookup", "Looks up.", {"type": "object", "properties": {"query": {"type": "string"}}})
AFTER = [CALLED, {"role": "tool", "content": "12", "tool_call_id": "c1"}]


def test_a_call_of_the_callers_tool_ends_the_answer_and_its_result_is_read(served: Orchestrator, tmp_path: Path):
    def script(task: Task, results: list[ToolResult]) -> ToolCall | str:
        wrong = ToolCall("lookup", {"query": 7})
        return ToolCall("lookup", {"query": "7"}) if results else wrong

    with scripted(tmp_path, script) as orchestrator:
        found = orchestrator.ask("What is 7 * 8?", tools=[LOOKUP])
        assert (found.answer, found.status, found.tool_calls) == (
            None, Status.COMPLETED, (ToolCall("lookup", {"query": "7"}),),
        )  # fmt: skip
        assert "'query'" in found.trajectory.turns[0].results[0].text
    found = served.ask("What is 7 * 8?", tools=[LOOKUP], after=AFTER)
    said = served._opened.chat.spelled(found.trajectory.turns[0].prompt_ids)
    assert "; lookup 0 0" in said
    assert said.endswith(
        '<tool_call>\n{"name": "lookup", "arguments": {"query": "7"}}\n</tool_call><|im_end|>'
        "<|im_start|> user<tool_response> 12</tool_response><|im_end|><|im_start|> assistant"
    )
    for tools, sentence in (
        ([replace(LOOKUP, name="python")], "There is a tool 'python' already"),
        ([LOOKUP, LOOKUP], "There is a tool 'lookup' already"),
        ([replace(LOOKUP, name="zesty")], "The policy has no word 'zesty'. Give the tool the name of one"),
        ([replace(LOOKUP, parameters={"type": "object", "properties": {"x": {"$ref": "http://a/b"}}})], "'lookup'"),
    ):
        with pytest.raises(QuestionError, match=sentence):
            served.ask("What is 7 * 8?", tools=tools)


async def test_a_model_behind_an_address_is_asked_and_paid_within_the_limit(tmp_path: Path, stub: StubOpenAI):
    stub.reply = lambda body: "Eight."
    settings = [*qa_settings(tmp_path), "pricing.name=paper", f"output_dir={tmp_path}"]
    endpoint = "evaluation.endpoint.model=gpt-5-mini"
    orchestrator = await asyncio.to_thread(Orchestrator.load, stub.url, *settings, endpoint)
    said = {**CALLED, "content": ""}
    found = await orchestrator.aask("Why?", wish="cheap", tools=[LOOKUP], after=[said, AFTER[1]])
    poor = await orchestrator.aask("Why not?", max_usd=1e-9)
    await asyncio.to_thread(orchestrator.close)
    assert (found.answer, found.cost_usd > 0, found.ledger[0].completion_tokens) == ("Eight.", True, 1)
    roles = [message["role"] for message in stub.bodies[0]["messages"]]
    assert roles == ["system", "user", "assistant", "tool"]
    assert stub.bodies[0]["messages"][2]["tool_calls"] == CALLED["tool_calls"]
    assert [each["function"]["name"] for each in stub.bodies[0]["tools"]] == ["dear", "lookup"]
    assert (poor.answer, poor.limit, poor.cost_usd, len(stub.bodies)) == (None, "max_usd", 0, 1)
    paid, _ = bill(orchestrator.folder)
    assert [calls for _, _, calls in paid.values()] == [1]
    with pytest.raises(ConfigError, match="No server answers"):
        Orchestrator.load("http://127.0.0.1:9/v1", *settings, endpoint)


ASKED = threading.Event()


@tool
async def slow(question: str) -> str:
    """Never answers."""
    ASKED.set()
    await asyncio.Event().wait()
    return ""


async def test_the_turns_of_a_model_behind_an_address_are_in_an_answer_that_a_limit_ended(
    tmp_path: Path, stub: StubOpenAI
):
    stub.reply = lambda body: '<tool_call>{"name": "slow", "arguments": {"question": "Why?"}}</tool_call>'
    settings = [*qa_settings(tmp_path, f"{__name__}:slow"), "pricing.name=paper", f"output_dir={tmp_path}"]
    endpoint = "evaluation.endpoint.model=gpt-5-mini"
    orchestrator = await asyncio.to_thread(Orchestrator.load, stub.url, *settings, endpoint)
    late = await orchestrator.aask("Why?", max_seconds=2)
    await asyncio.to_thread(orchestrator.close)
    assert (late.answer, late.limit, len(stub.bills)) == (None, "max_seconds", 1)
    (turn,) = late.ledger
    assert (turn.prompt_tokens, turn.completion_tokens) == (stub.bills[0].prompt, stub.bills[0].completion)
    assert turn.cost_usd == late.cost_usd > 0


def test_a_cancelled_question_pays_its_bill_and_frees_its_place(tmp_path: Path):
    async def cancelled(orchestrator: Orchestrator) -> None:
        ASKED.clear()
        asked = asyncio.create_task(orchestrator.aask("Why?"))
        await asyncio.to_thread(ASKED.wait, 60)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    with scripted(tmp_path, calling("dear", "slow"), *qa_settings(tmp_path, f"dear,{__name__}:slow")) as orchestrator:
        asyncio.run(cancelled(orchestrator))
        late = orchestrator.ask("Why?", max_seconds=0.2)
        assert (late.answer, late.limit, late.cost_usd) == (None, "max_seconds", 0.4)
        assert [(step.tool, step.usd) for step in late.calls] == [("dear", 0.4), ("slow", 0.0)]
    paid, _ = bill(orchestrator.folder)
    assert [calls for _, _, calls in paid.values()] == [2]


def test_a_dead_tool_is_no_wrong_answer(tmp_path: Path):
    settings = [*qa_settings(tmp_path, "broken"), "rollout.limits.retries=1"]
    with scripted(tmp_path, calling("broken"), *settings) as orchestrator:
        found = orchestrator.ask("Why?")
    assert (found.answer, found.status, found.reason) == (None, Status.FAILED, "Its server is down.")
    assert [step.result for step in found.calls] == ["failed: Its server is down."] * 2


def test_a_stream_tells_each_call_twice_and_ends_with_the_answer(tmp_path: Path):
    async def told(orchestrator: Orchestrator) -> list[CallStep | Answer]:
        return [step async for step in orchestrator.astream("Why?")]

    with scripted(tmp_path, ask_dear, *qa_settings(tmp_path)) as orchestrator:
        for found in (list(orchestrator.stream("Why?")), asyncio.run(told(orchestrator))):
            begun, ended, answer = found
            assert (begun, begun.result) == (CallStep(0, "dear", {"question": "Why?"}), None)
            assert ended == replace(begun, result="It is 4.", usd=0.4, seconds=ended.seconds)
            assert (answer.answer, answer.calls) == ("It is 4.", (ended,))
        with pytest.raises(TypeError, match="There is no option 'max_money'; here are after, history"):
            next(orchestrator.stream("Why?", max_money=1))


def test_a_judge_is_not_asked_and_a_known_question_has_the_menu_of_evaluation(tmp_path: Path):
    with scripted(tmp_path, ask_dear, *qa_settings(tmp_path)) as orchestrator:
        known = orchestrator._opened.environment.held_out(1)[0]
        posed = orchestrator.posed(known.question, known.preference.instruction)
        assert (posed.id, posed.answer, posed.tools, posed.extra) == (known.id, known.answer, known.tools, known.extra)
        other = orchestrator.posed("Why?", "cheap")
        assert (other.answer, other.preference.instruction) == ((), orchestrator.wishes["cheap"])
        assert [orchestrator.posed("Why?", wish).preference.instruction for wish in (None, "", " ")] == ["", "", ""]
        found = orchestrator.ask(known)
        assert (found.answer, found.trajectory.solved) == (f"It is {len(known.question)}.", False)


def test_a_world_that_poses_its_tasks_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Closed:
        async def close(self) -> None:
            """Own nothing."""

        def reset(self, task: Task, budget: Budget) -> None:
            """Begin nothing."""

    monkeypatch.setattr("orchestra_jax.serving.opened.make_environment", lambda cfg: Closed())
    with pytest.raises(ConfigError, match="takes no questions of users"):
        Orchestrator.load("baseline:do_nothing", f"output_dir={tmp_path}")
