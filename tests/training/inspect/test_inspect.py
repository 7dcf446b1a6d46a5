"""Inspect runs our benchmarks with any model, and our policies on any task; inspect-ai is there for slow tests only."""

import asyncio
import atexit
import contextlib
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment, QuickstartEpisode, quickstart_chat
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.models import checkpoint
from orchestra_jax.money.budgets import Budget
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.tools.user_turn import UserTurn
from orchestra_jax.training.build import make_collector
from orchestra_jax.training.inspect import provider, registry
from orchestra_jax.training.inspect.tasks import FIGURES, benchmark_task, figures
from orchestra_jax.types import InfrastructureError, Task, ToolCall, ToolResult, Trajectory
from tests.models.trees import drawn_params
from tests.training.micro import OneLayer

QUESTIONS = 24  # the large model knows some of them
SETTINGS = f"evaluation.benchmarks=[held_out] evaluation.questions={QUESTIONS}"


def script(task: Task, results: list[ToolResult]) -> ToolCall | str:
    """Asks the large model, or a tool that is not there, and says what it said."""
    if results:
        return results[-1].text
    return ToolCall(next((spec.name for spec in task.tools if spec.name == "expert_large"), "nobody"), {})


def played() -> list[Trajectory]:
    cfg = compose("+benchmark=quickstart", *SETTINGS.split(), name="evaluate")
    environment = QuickstartEnvironment(cfg)
    run = make_collector(cfg, environment, None).play(script, environment.held_out(QUESTIONS), budget=Budget())
    try:
        return asyncio.run(run)
    finally:
        asyncio.run(environment.close())


def test_the_entry_point_names_the_registry_and_every_benchmark_is_a_task():
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["inspect_ai"] == {"orchestra_jax": registry.__name__}
    assert {"frames", "gsm8k", "hle", "jsonl", "quickstart"} <= set(registry.BENCHMARKS)


def test_a_policy_that_nobody_closes_ends_its_engine_before_the_loop(monkeypatch: pytest.MonkeyPatch):
    ends, told = list[Callable[[], None]](), list[str]()

    @dataclass(frozen=True)
    class Subject:
        cfg: RunConfig

    @contextlib.contextmanager
    def engine_of(subject: Subject, money: None, folder: Path, processes: Processes, loop: LoopThread, chat: object):
        yield object()
        told.append(loop.run(asyncio.sleep(0, "the loop still runs")))

    monkeypatch.setattr(provider, "subject_of", lambda cfg: Subject(RunConfig()))
    monkeypatch.setattr(provider, "engine_of", engine_of)
    monkeypatch.setattr(provider, "make_chat", lambda cfg: None)
    monkeypatch.setattr(provider, "keep_compiled", lambda cfg: None)
    monkeypatch.setattr(atexit, "register", ends.append)
    provider.Policy("outputs/some")
    for end in reversed(ends):  # as Python does at its own end
        end()
    assert told == ["the loop still runs"]


@pytest.fixture
def evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a task with a model as `inspect eval` does, in a folder of its own."""
    inspect_ai = pytest.importorskip("inspect_ai")
    monkeypatch.chdir(tmp_path)

    def run(task: Any, model: Any) -> Any:
        options: dict[str, Any] = {"display": "none", "log_dir": str(tmp_path / "logs"), "fail_on_error": False}
        (log,) = inspect_ai.eval(task, model=model, **options)
        assert log.status == "success", log.error
        return {sample.metadata["place"]: sample for sample in log.samples}

    return run


def scripted_model() -> Any:
    """A model of Inspect that does what `script` does."""
    from inspect_ai.model import ModelOutput, get_model

    def answer(messages: Any, tools: Any, choice: Any, config: Any) -> Any:
        if messages[-1].role == "tool":
            return ModelOutput.from_content("mockllm/model", messages[-1].text)
        asked = next((tool.name for tool in tools if tool.name == "expert_large"), "nobody")
        return ModelOutput.for_tool_call("mockllm/model", asked, {})

    async def count(text: str) -> int:  # Inspect's own downloads a vocabulary, and the quickstart has room for few
        return 1

    model = get_model("mockllm/model", custom_outputs=answer, memoize=False)
    model.api.count_text_tokens = count
    return model


@pytest.mark.slow
def test_a_task_scores_any_model_as_we_do(evaluated: Any):
    samples = evaluated(benchmark_task("quickstart", SETTINGS), scripted_model())
    ours = played()
    assert len(samples) == len(ours) == QUESTIONS
    for place, trajectory in enumerate(ours):
        sample = samples[place]
        found, expected = sample.scores["orchestra_jax"].value, figures(trajectory)
        assert {name: found[name] for name in FIGURES if name != "seconds"} == {
            name: expected[name] for name in FIGURES if name != "seconds"
        }
        assert sample.target == list(trajectory.task.answer)
        assert [message.role for message in sample.messages] == ["user", "assistant", "tool", "assistant"]
        assert sample.messages[2].text == trajectory.turns[0].results[0].text
    assert sum(trajectory.solved for trajectory in ours) > 0


@pytest.mark.slow
def test_what_failed_for_infrastructure_reasons_is_an_error_and_no_score(evaluated: Any, monkeypatch):
    step = ToolExecutor.step

    async def breaks(self: ToolExecutor, call: ToolCall) -> ToolResult:
        if call.name == "nobody":
            return await step(self, call)
        raise InfrastructureError("the server is down")

    monkeypatch.setattr(ToolExecutor, "step", breaks)
    samples = evaluated(benchmark_task("quickstart", SETTINGS + " rollout.limits.retries=0"), scripted_model())
    failed = [sample for sample in samples.values() if sample.error is not None]
    assert len(failed) > 0
    assert all("the server is down" in sample.error.message and not sample.scores for sample in failed)
    assert all(sample.scores for sample in samples.values() if sample.error is None)


@pytest.mark.slow
def test_our_policy_says_through_inspect_what_it_says_to_us(tmp_path: Path, evaluated: Any):
    from inspect_ai.model import ChatMessageUser, get_model

    from orchestra_jax.training.inspect.provider import Policy

    registry.register()
    tokenizer = quickstart_chat().tokenizer
    config = OneLayer.preset("tiny", vocab_size=len(tokenizer))
    checkpoint.save(tmp_path / "policy", config, drawn_params(config), dtype=jnp.float32)
    model = get_model(f"orchestra/{tmp_path}/policy", settings="rollout.limits.max_new_tokens=12")
    with pytest.raises(ConfigError, match=r"takes -M settings=\.\.\., not setting"):
        get_model(f"orchestra/{tmp_path}/policy", setting="rollout.limits.max_new_tokens=12")
    samples = evaluated(benchmark_task("quickstart", SETTINGS + " rollout.limits.max_new_tokens=12"), model)
    cfg = compose("+benchmark=quickstart", *SETTINGS.split(), "rollout.limits.max_new_tokens=12", name="evaluate")
    environment = QuickstartEnvironment(cfg)
    policy = Policy(str(tmp_path / "policy"), ["rollout.limits.max_new_tokens=12"])
    work = make_collector(cfg, environment, make_chat(cfg)).collect(
        policy._engine, environment.held_out(QUESTIONS), budget=Budget(), temperature=0.0
    )
    ours = policy._loop.run(work)
    asyncio.run(environment.close())
    for place, trajectory in enumerate(ours):
        said = [m for m in samples[place].messages if m.role == "assistant"]
        assert [m.metadata["orchestra_jax"] for m in said] == [turn.text for turn in trajectory.turns]
        assert samples[place].metadata["reason"] == trajectory.reason
        usage = samples[place].model_usage[str(model)]
        assert usage.output_tokens == sum(len(turn.sampled_ids) for turn in trajectory.turns)
    # Without a seed every generation is a sample of its own, as are the epochs of a question; with one it is the same.
    words = [{"role": "user", "content": "capital of Norway"}]
    drawn = [policy._loop.run(policy.sample(words, [], 12, 1.0, seed)).text for seed in (None, None, None, 5, 5)]
    assert len(set(drawn[:3])) == 3
    assert drawn[3] == drawn[4]
    # Counting tokens downloads nothing and is the policy's own.
    count = asyncio.run(model.api.count_tokens([ChatMessageUser(content="capital of Norway")]))
    assert count == len(tokenizer("capital of Norway").input_ids)
    policy.close()
    asyncio.run(model.api.aclose())


@pytest.mark.slow
def test_what_a_user_says_stands_in_the_sample_and_is_said_to_the_model(evaluated: Any, monkeypatch):
    async def respond(self: QuickstartEpisode, text: str) -> UserTurn | None:
        self.asked = [*getattr(self, "asked", ()), text]  # type: ignore[attr-defined]
        return UserTurn("Sure?") if len(self.asked) == 1 else None  # type: ignore[attr-defined]

    monkeypatch.setattr(QuickstartEpisode, "respond", respond, raising=False)
    samples = evaluated(benchmark_task("quickstart", SETTINGS), scripted_model())
    roles = ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant"]
    for sample in samples.values():
        assert [message.role for message in sample.messages] == roles
        assert sample.messages[4].text == "Sure?"
        asked = [event.input for event in sample.events if event.event == "model"]
        assert asked[2][-1].text == "Sure?"
        assert sample.scores
