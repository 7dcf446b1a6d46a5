"""Baselines without a model: on real questions under both forms of menu, played by the collector."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestra_jax.config.choices import MenuForm
from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import ConfigError, DataConfig, EnvConfig, PricingConfig, RunConfig
from orchestra_jax.config.tools import ExpertServer, MenuRule, ToolsConfig
from orchestra_jax.envs.base import Baseline
from orchestra_jax.envs.baselines import baseline
from orchestra_jax.envs.copying import copied_call
from orchestra_jax.envs.qa.environment import SYSTEM_ALONE, QAEnvironment
from orchestra_jax.evaluation.measures import summarize, tool_shares
from orchestra_jax.evaluation.runner import Evaluator
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.tools.build import tool_problems
from orchestra_jax.tools.catalogue import Catalogue, Entry
from orchestra_jax.training.build import make_collector
from orchestra_jax.types import InfrastructureError, Preference, Status, Task, ToolResult, ToolSpec, Trajectory, Usage

# From the cheapest to the dearest call, by the paper's list.
LADDER = ("qwen2.5-math-7b", "qwen3-32b", "gpt-5-mini", "gpt-5")
EXPERTS = {"math": ["qwen2.5-math-7b"], "generalist": ["gpt-5", "gpt-5-mini", "qwen3-32b"], "code_writer": ["gpt-5"]}
BASELINES = ["do_nothing", "random", "cheapest_first", *(f"expert/{name}" for name in sorted(LADDER))]


@pytest.fixture(scope="module")
def cfg(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    questions = tmp_path_factory.mktemp("data") / "questions.jsonl"
    rows = [{"question": f"How much is {n} * 7?", "answer": str(7 * n)} for n in range(6)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tools = ToolsConfig(experts=EXPERTS, server=ExpertServer(url="http://127.0.0.1:9/v1"))
    return RunConfig(
        env=EnvConfig(name="qa"), tools=tools, data=DataConfig(path=str(questions), eval_questions=3),
        pricing=PricingConfig(name="paper"), rollout=replace(RunConfig().rollout, limits=RolloutLimits()),
    )  # fmt: skip


def says(entry: Entry, texts: Mapping[str, Any]) -> Entry:
    """The entry, whose model says the text of its name in the place of asking a server."""

    async def handler(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        if texts[entry.model] is None:
            raise InfrastructureError("the server is down")
        return ToolResult(texts[entry.model], (Usage(entry.model, prompt_tokens=1000, completion_tokens=100),))

    return replace(entry, handler=handler)


class World:
    """The environment of a config where experts say the `texts`, and its collector without tokens."""

    def __init__(self, cfg: RunConfig, **texts: Any) -> None:
        self.environment, self.cfg = QAEnvironment(cfg), cfg
        tools = self.environment._tools
        offered = Catalogue(
            [says(entry, {model: texts.get(model, r"\boxed{7}") for model in LADDER})
             for entry in tools.evaluation.entries.values()],
            tools.evaluation.book, tools.evaluation.rule,
        )  # fmt: skip
        self.environment._tools = replace(tools, evaluation=offered)
        self.tasks = self.environment.held_out(3)
        self.collector: Collector = make_collector(cfg, self.environment, None)

    def find(self, name: str, most: int = 9) -> Baseline:
        return baseline(self.environment, name, self.tasks, most)

    def play(self, name: str, most: int = 9) -> list[Trajectory]:
        return asyncio.run(self.collector.play(self.find(name, most).script, self.tasks, budget=Budget()))


def formed(cfg: RunConfig, form: str, aliases: bool = True) -> RunConfig:
    experts = EXPERTS | ({"query_writer": ["gpt-5"]} if form == "released" else {})
    return replace(cfg, tools=replace(cfg.tools, experts=experts, menu=MenuRule(form=MenuForm(form), aliases=aliases)))


def models(trajectory: Trajectory) -> list[str]:
    return [row.name for row in trajectory.ledger]


@pytest.mark.parametrize("form", ["separate", "released"])
def test_each_expert_alone_is_asked_the_question_under_any_name(cfg: RunConfig, form: str):
    world = World(formed(cfg, form), **{"gpt-5": r"So \boxed{21}"})
    (first, second, _) = run = world.play("expert/gpt-5")
    assert [t.solved for t in run] == [True, False, False]
    assert first.answer == second.answer == r"So \boxed{21}"
    assert models(first) == ["gpt-5"]  # nobody spoke for the policy
    assert first.cost_usd == pytest.approx((1000 * 1.25 + 100 * 10) / 1e6)
    assert list(tool_shares(run)["all"]) == ["generalist/gpt-5"]
    asked = first.calls[0].arguments
    assert form == "released" or asked == {"question": first.task.question}
    assert models(world.play("expert/qwen2.5-math-7b")[0]) == ["qwen2.5-math-7b"]


@pytest.mark.parametrize(
    ("texts", "asked", "answer"),
    [
        ({"qwen2.5-math-7b": "7", "qwen3-32b": r"\boxed{7.0}"}, 2, r"\boxed{7.0}"),
        ({"qwen2.5-math-7b": "I do not know.", "qwen3-32b": "8"}, 4, r"\boxed{7}"),
        ({"qwen2.5-math-7b": "7", "qwen3-32b": "8", "gpt-5-mini": "9", "gpt-5": "10"}, 4, "10"),
        ({"qwen2.5-math-7b": "7", "qwen3-32b": "8", "gpt-5-mini": "9", "gpt-5": "7"}, 4, "7"),
        ({"qwen2.5-math-7b": " ", "qwen3-32b": "6", "gpt-5-mini": "5", "gpt-5": "I can't determine it."}, 4, "5"),
        (dict.fromkeys(LADDER, "No idea, it is uncertain."), 4, "No idea, it is uncertain."),
    ],
)
def test_cheapest_first_goes_up_until_two_agree(cfg: RunConfig, texts: dict[str, str], asked: int, answer: str):
    found = World(formed(cfg, "separate"), **texts).play("cheapest_first")[0]
    assert models(found) == list(LADDER[:asked])
    assert found.answer == answer


def test_cheapest_first_where_an_answer_ends_the_task_or_calls_are_few(cfg: RunConfig):
    assert models(World(formed(cfg, "released")).play("cheapest_first")[0]) == ["qwen2.5-math-7b"]
    unsure = World(formed(cfg, "separate"), **dict.fromkeys(LADDER, "I am not sure."))
    assert models(unsure.play("cheapest_first", most=3)[0]) == list(LADDER[:3])


@pytest.mark.parametrize("form", ["separate", "released"])
def test_random_calls_one_tool_and_says_what_it_said(cfg: RunConfig, form: str):
    world = World(formed(cfg, form))
    run = world.play("random")
    assert [len(t.calls) for t in run] == [1, 1, 1]
    assert all(t.completed and "7" in str(t.answer) for t in run)
    assert world.play("random") == run


def test_doing_nothing_calls_nobody_and_no_judge(cfg: RunConfig):
    world = World(replace(cfg, tools=replace(cfg.tools, judge="gpt-5")), **dict.fromkeys(LADDER))
    run = world.play("do_nothing")
    assert {(t.status, t.answer, t.ledger) for t in run} == {(Status.NO_ANSWER, None, ())}
    assert summarize(run)["accuracy"] == summarize(run)["cost"] == 0.0


def test_a_baseline_whose_tool_always_fails_is_neither_right_nor_wrong(cfg: RunConfig):
    world = World(cfg, **dict.fromkeys(LADDER))
    evaluator = Evaluator(
        replace(cfg, evaluation=replace(cfg.evaluation, benchmarks=["held_out"])), world.collector,
        world.find("expert/gpt-5"), Budget(),
    )  # fmt: skip
    figures = asyncio.run(evaluator.evaluate())["held_out"]
    assert (figures["failed"], figures["counted"], figures["accuracy"], figures["cost"]) == (3, 0, None, None)
    rows = asyncio.run(evaluator.baselines())
    assert (rows["do_nothing"]["failed"], rows["do_nothing"]["accuracy"]) == (0, 0.0)


def test_an_unknown_baseline_is_a_sentence_with_the_list(cfg: RunConfig):
    world = World(cfg)
    with pytest.raises(ConfigError) as raised:
        world.find("strongest")
    assert str(raised.value).startswith("policy=baseline:strongest: there is none; here are ")
    assert sorted(str(raised.value).partition("here are ")[2].rstrip(".").split(", ")) == sorted(BASELINES)


def test_without_any_tool_a_policy_just_answers(cfg: RunConfig):
    alone = replace(cfg, tools=replace(cfg.tools, menu=MenuRule(form=MenuForm.none), names=["python"]))
    assert tool_problems(alone) == []
    world = World(alone)
    (system, _), tools = world.environment.reset(world.tasks[0], Budget()).messages, world.tasks[0].tools
    assert (system["content"], tools) == (SYSTEM_ALONE, ())
    assert [t.status for t in world.play("random")] == [Status.NO_ANSWER] * 3
    with pytest.raises(ConfigError, match=r"here are do_nothing, random\.$"):
        world.find("cheapest_first")
    missing = replace(cfg, tools=ToolsConfig())
    assert "tools=none means it" in tool_problems(missing)[0]


def test_arguments_are_copied_by_their_types():
    properties = {
        "question": {"type": "string"}, "code": {"type": "string"}, "count": {"type": "integer"},
        "flags": {"type": "array"}, "kind": {"enum": ["only"]}, "left": {"type": "string"},
        "note": {"type": ["string", "null"]}, "size": {"type": ["number", "null"]},
    }  # fmt: skip
    required = [name for name in properties if name != "left"]
    spec = ToolSpec("t", "d", {"type": "object", "properties": properties, "required": required})
    task = Task("q", "How much is 6 and 7.5?", ("13.5",), (spec,), Preference("accuracy", ""))
    asked = {"question": task.question, "code": "6 + 7.5", "count": 0, "flags": [], "kind": "only"}
    assert copied_call(task, "t").arguments == {**asked, "note": task.question, "size": 0}
