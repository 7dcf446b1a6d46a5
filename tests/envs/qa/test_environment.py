"""The QA environment: what counts as an answer and as equal, and episodes with real tools."""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.config.schema import (
    ConfigError,
    DataConfig,
    EnvConfig,
    PricingConfig,
    RandomPricesConfig,
    RunConfig,
    SourceConfig,
)
from orchestra_jax.config.tools import LocalSearchConfig, MenuRule, SandboxConfig, ToolsConfig
from orchestra_jax.data.sources import load_tasks
from orchestra_jax.envs.base import Environment, Episode, initial_messages
from orchestra_jax.envs.qa.environment import QAEnvironment, QAEpisode
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.answers import extract_answer, matches, parse_number
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.tools.python import spec as python_spec
from orchestra_jax.types import Preference, Task, ToolCall


@pytest.fixture
def cfg(tmp_path: Path) -> RunConfig:
    questions, passages = tmp_path / "questions.jsonl", tmp_path / "passages.jsonl"
    rows = [{"question": f"How much is {n} * 7?", "answer": str(7 * n)} for n in range(6)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = {"Oslo": "Capital of Norway.", "Rome": "Capital of Italy."}
    passages.write_text("".join(json.dumps({"title": t, "text": s}) + "\n" for t, s in texts.items()))
    tools = ToolsConfig(
        names=["python", "local_search"], search=LocalSearchConfig(str(passages)), sandbox=SandboxConfig(workers=1)
    )
    return RunConfig(env=EnvConfig(name="qa"), tools=tools, data=DataConfig(path=str(questions), eval_questions=2))


def test_messages_carry_the_preference(cfg: RunConfig):
    environment = QAEnvironment(cfg)
    task = replace(environment.held_out(1)[0], preference=Preference("fast", "Be quick."))
    episode = environment.reset(task, Budget())
    system, user = episode.messages
    assert "\\boxed{}" in system["content"]
    assert user == {"role": "user", "content": "How much is 4 * 7?\n\nBe quick."}
    assert [spec.name for spec in episode.tools] == ["python", "local_search"]
    assert initial_messages(task) == [user]
    asyncio.run(environment.close())


def test_a_served_policy_offers_the_wishes_of_its_training_alone(cfg: RunConfig):
    for told, wishes in ((True, ["best", "cheap", "fast"]), (False, [])):
        environment = QAEnvironment(replace(cfg, data=replace(cfg.data, preferences=told)))
        assert sorted(environment.wishes()) == wishes
        if not told:
            with pytest.raises(ValueError, match="not trained on the wish 'cheap': write a sentence of your own"):
                environment.pose("How much is 4 * 7?", "cheap")
        spoken = environment.pose("How much is 4 * 7?", "Spend little.").preference
        assert spoken.instruction == "Spend little."
        asyncio.run(environment.close())


def test_an_answer_tool_changes_how_the_policy_is_told_to_end(cfg: RunConfig):
    environment = QAEnvironment(replace(cfg, tools=replace(cfg.tools, names=["python", "answer"])))
    system, _ = environment.reset(environment.held_out(1)[0], Budget()).messages
    assert system["content"].endswith("end by calling answer.")
    asyncio.run(environment.close())


def test_tasks_are_those_of_the_seed_however_they_are_asked_for(cfg: RunConfig):
    one, other = QAEnvironment(cfg), QAEnvironment(cfg)
    assert list(one.held_out(9)) == [*other.held_out(1), *other.held_out(2)[1:]]
    assert len(one.held_out(9)) == 2
    assert one.demonstrations() == other.demonstrations()
    assert next(one.train_tasks(3)) == next(other.train_tasks(3))


async def test_real_tools_and_observations_of_wrong_calls(cfg: RunConfig):
    environment = QAEnvironment(cfg)
    episode = environment.reset(environment.held_out(1)[0], Budget())
    assert isinstance(environment, Environment)
    assert isinstance(episode, Episode)
    given = {"python": {"code": "6 * 7"}, "local_search": {"query": "capital of Norway"}, "browser": {}}
    python, search, unknown = [await episode.step(ToolCall(*call)) for call in given.items()]
    raised, bad = [await episode.step(ToolCall("python", each)) for each in ({"code": "1 / 0"}, {"source": "1"})]
    await environment.close()
    assert (python.text, python.is_error) == ("42", False)
    assert search.text.splitlines()[0] == "Oslo: Capital of Norway."
    assert (raised.text, raised.is_error) == ("ZeroDivisionError: division by zero", True)
    assert [len(result.usage) for result in (python, search, raised)] == [1, 1, 1]
    assert unknown.text == "Unknown tool 'browser'; the available tools are: python, local_search."
    assert bad.text == "The arguments of python lack the required 'code'."
    assert all(result.is_error and result.usage == () for result in (unknown, bad))


async def test_score():
    task = Task("q", "How much is 6 * 7?", ("42", "forty-two"), (), Preference("fast", "Be quick."))
    episode = QAEpisode(task, ToolExecutor((), {}, Budget()), Budget(), "")
    assert await episode.score("It is\n\\boxed{42.0}")
    assert await episode.score("Forty-two.")
    assert not await episode.score("43")


def test_a_menu_that_cannot_be_served_is_refused():
    async def run(_: Mapping[str, Any], budget: Budget) -> str:
        return ""

    with pytest.raises(ValueError, match="No handler for tool 'python'"):
        ToolExecutor((python_spec.TOOL,), {}, Budget())
    with pytest.raises(ValueError, match="share a name"):
        ToolExecutor((python_spec.TOOL,) * 2, {"python": run}, Budget())


@pytest.mark.skipif("ORCHESTRA_DATA" not in os.environ, reason="needs ORCHESTRA_DATA")
def test_real_references_match_themselves():
    root = Path(os.environ["ORCHESTRA_DATA"])
    for file in ("qa_sets/gsm8k_test.jsonl", "frames/frames.jsonl", "qa_sets/NQ-open.dev.jsonl"):
        questions = load_tasks(root / file)
        for question in questions:
            assert all(matches(extract_answer(reference), question.answer) for reference in question.answer), question
    gsm8k = [question.answer[0] for question in load_tasks(root / "qa_sets/gsm8k_test.jsonl")]
    assert all(parse_number(answer) is not None for answer in gsm8k)


def test_evaluation_has_seeds_of_its_own(cfg: RunConfig):
    tools = replace(cfg.tools, menu=MenuRule(subset=True, fewest=1))
    cfg = replace(cfg, tools=tools, pricing=PricingConfig(randomise=RandomPricesConfig(low=0.5, high=2.0)))

    def posed(cfg: RunConfig) -> tuple[Sequence[Task], Sequence[Task]]:
        environment = QAEnvironment(cfg)
        held_out, trained = environment.held_out(9), next(environment.train_tasks(4))
        asyncio.run(environment.close())
        return held_out, trained

    held_out, trained = posed(cfg)
    for other in (replace(cfg, seed=1), replace(cfg, warm_start=replace(cfg.warm_start, demonstrations=1))):
        assert posed(other)[0] == held_out
    assert posed(replace(cfg, seed=1))[1] != trained
    assert posed(replace(cfg, evaluation=replace(cfg.evaluation, seed=8)))[0] != held_out
    assert {task.extra["instance"]["prices"]["list"] for task in held_out} == {"quickstart"}
    assert all(task.extra["instance"]["prices"]["seed"] is None for task in held_out)  # never random
    assert all(task.extra["instance"]["prices"]["seed"] for task in trained)
    plain, _ = posed(replace(cfg, evaluation=replace(cfg.evaluation, preferences=False)))
    assert [task.preference for task in plain] == [Preference("accuracy", "")] * 2


def test_a_run_tells_what_it_trains_and_evaluates_on(cfg: RunConfig):
    told = QAEnvironment.forecast(cfg) or ""
    assert told.startswith(f"Questions: trains on {cfg.data.path} (auto); evaluates on 2 of them, held out.")
    mixture = [SourceConfig("general_thought", "GT")]  # type: ignore[arg-type]
    data = DataConfig(mixture=mixture, eval_source="hle", eval_path="cais/hle")  # type: ignore[arg-type]
    told = QAEnvironment.forecast(replace(cfg, data=data)) or ""
    assert told == "Questions: trains on GT (general_thought); evaluates on cais/hle (hle)."


def with_questions(cfg: RunConfig, *lines: str, **data: Any) -> RunConfig:
    path = Path(str(cfg.data.path))
    path.write_text("".join(line + "\n" for line in lines))
    tools = replace(cfg.tools, names=["local_search"])
    return replace(cfg, tools=tools, data=replace(cfg.data, **data))


GOOD = ('{"question": "q", "answer": "a"}', '{"question": "r", "answer": "b"}', '{"question": "s", "answer": "c"}')


def test_rows_that_are_skipped_are_counted_in_a_sentence(cfg: RunConfig, capsys: pytest.CaptureFixture[str]):
    lines = (GOOD[0], "{", *GOOD[1:], '{"question": 5, "answer": "a"}')
    with pytest.raises(ConfigError, match="line 2: not valid JSON"):
        QAEnvironment(with_questions(cfg, *lines))
    environment = QAEnvironment(with_questions(cfg, *lines, on_bad_row="skip", eval_questions=1))
    assert [task.question for task in environment.held_out(9)] == ["s"]
    told = capsys.readouterr().out
    assert told.startswith(f"Skipped 2 rows (data.on_bad_row=skip), first: {cfg.data.path!r}, line 2: not valid JSON")
    assert told.count("\n") == 1
    asyncio.run(environment.close())


def test_one_question_cannot_be_held_out(cfg: RunConfig):
    one = with_questions(cfg, GOOD[0])
    with pytest.raises(
        ConfigError, match=r"questions\.jsonl has one question, so none can be held out: set data\.eval"
    ):
        QAEnvironment(one)
    for free in (replace(one, evaluation=replace(one.evaluation, questions=0)), with_questions(one, *GOOD[:2])):
        environment = QAEnvironment(free)
        assert len(next(environment.train_tasks(3))) == 3
        asyncio.run(environment.close())


def test_simulated_experts_need_a_wrong_answer(cfg: RunConfig):
    simulated = {"guesser": {"skill": {"*": 0.5}}}
    with pytest.raises(ConfigError, match="have the answer a, so no simulated expert could be wrong"):
        QAEnvironment(with_questions(replace(cfg, tools=replace(cfg.tools, simulated=simulated)), GOOD[0], GOOD[0]))
