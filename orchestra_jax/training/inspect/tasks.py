"""`inspect eval orchestra_jax/frames --model openai/gpt-5`: a benchmark with our tools, prices, loop and score.

The model of Inspect is the policy of our collector: menus, limits, the reading of its output, budgets and the ledger
are those of experiments/evaluate.py. A trajectory that failed for infrastructure reasons is an error of its sample, no
score.
"""

import asyncio
import atexit
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.registry import environment_class, make_environment
from orchestra_jax.evaluation.benchmarks import chosen_tasks, in_parts
from orchestra_jax.money import run_budget as spending
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.messages import WholeReply
from orchestra_jax.training.build import make_collector
from orchestra_jax.training.inspect.messages import arguments_text, to_inspect, tool_info
from orchestra_jax.types import Status, Task, ToolSpec, Trajectory, Usage

FIGURES = ("solved", "valid", "cost_usd", "seconds", "calls")


class InspectEngine:
    """The model of an Inspect sample as a `rollout.messages.MessageEngine`; one for each conversation."""

    def __init__(self, model: Any) -> None:
        self._model, self.said = model, list[Any]()

    async def converse(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSpec],
        *,
        budget: Budget,
        max_tokens: int,
        temperature: float,
        sample: tuple[int, ...],
    ) -> WholeReply | None:
        """Ask Inspect's model. Inspect retries, and ends the sample in an error if that fails."""
        from inspect_ai.model import GenerateConfig

        config = GenerateConfig(max_tokens=max_tokens, temperature=temperature)
        infos = [tool_info(spec) for spec in tools]
        output = await self._model.generate(to_inspect(messages, self.said), tools=infos, config=config)
        if output.error:
            raise RuntimeError(output.error)
        if output.stop_reason == "model_length":
            return None
        message = output.message
        self.said.append(message)
        used = output.usage
        cached = (used.input_tokens_cache_read or 0) if used else 0
        row = Usage(
            "orchestrator",
            "orchestrator",
            # Inspect counts tokens that were read from a cache, or written to it, apart.
            prompt_tokens=used.input_tokens + cached + (used.input_tokens_cache_write or 0) if used else 0,
            cached_tokens=cached,
            completion_tokens=used.output_tokens if used else 0,
        )
        thought = (
            "\n".join(part.reasoning for part in message.content if getattr(part, "type", "") == "reasoning")
            if not isinstance(message.content, str)
            else ""
        )
        calls = [(call.id, call.function, arguments_text(call)) for call in message.tool_calls or []]
        cut = output.stop_reason == "max_tokens"
        return WholeReply(message.text, thought, calls, "length" if cut else "stop", (row,))

    async def close(self) -> None:
        """Inspect ends its models."""


def benchmark_task(name: str, settings: str = "") -> Any:
    """Return a benchmark of conf/benchmark as an Inspect task, at temperature 0 unless `settings` say otherwise.

    Raises:
        ConfigError: it lacks something, such as its data.
    """
    import inspect_ai
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.solver import solver

    cfg = compose(f"+benchmark={name}", f"output_dir=outputs/inspect-{name}", *settings.split(), name="evaluate")
    if problems := environment_class(cfg).problems(cfg):
        raise ConfigError("\n".join(problems))
    environment = make_environment(cfg)

    def close() -> None:
        with contextlib.suppress(Exception):  # its connections were those of an event loop that is gone
            asyncio.run(environment.close())

    atexit.register(close)
    asked: list[tuple[str, Task]] = [
        (part, task)
        for benchmark, tasks in chosen_tasks(environment, cfg).items()
        for part, some in in_parts(benchmark, tasks).items()
        for task in some
    ]
    collector = make_collector(cfg, environment, None)
    budget = Budget(spending.limits(cfg.budget, "run"), name="run")
    samples = [
        Sample(
            id=f"{part} {task.id}",
            input="\n\n".join(filter(None, (task.question, task.preference.instruction))),
            target=list(task.answer),
            metadata={"place": place, "benchmark": part, "family": task.family},
        )
        for place, (part, task) in enumerate(asked)
    ]

    @solver(name="orchestrate")
    def orchestrate() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            from inspect_ai.model import ModelOutput, get_model

            engine = InspectEngine(get_model())
            place = state.metadata["place"]
            (found,) = await collector.collect(
                engine,
                [asked[place][1]],
                budget=budget,
                temperature=cfg.evaluation.temperature,
                seed=(cfg.evaluation.seed, state.epoch),
                numbers=[place],
            )
            if found.status is Status.FAILED:
                raise RuntimeError(f"Failed for infrastructure reasons: {found.reason}")
            state.messages = state.messages + _told(found, engine.said)
            state.output = ModelOutput.from_content(str(state.model), found.answer or "")
            state.metadata |= {"figures": figures(found), "status": str(found.status), "reason": found.reason}
            return state

        return solve

    return inspect_ai.Task(
        dataset=MemoryDataset(samples, name=name), solver=orchestrate(), scorer=_scorer(), name=f"orchestra_jax_{name}"
    )


def figures(found: Trajectory) -> dict[str, float]:
    """Return the FIGURES of a trajectory."""
    values = found.solved, found.completed, found.cost_usd, found.latency_s, len(found.calls)
    return dict(zip(FIGURES, map(float, values), strict=True))


def _scorer() -> Any:
    """Return a scorer that repeats the figures of our environment; no model is asked again."""
    from inspect_ai.scorer import Score, mean, scorer, stderr

    @scorer(metrics={name: [mean(), stderr()] for name in FIGURES}, name="orchestra_jax")
    def ours() -> Any:
        async def score(state: Any, target: Any) -> Any:
            return Score(value=state.metadata["figures"], answer=state.output.completion)

        return score

    return ours()


def _told(found: Trajectory, said: Sequence[Any]) -> list[Any]:
    """Return the messages after the first: the model's, the results of its calls, and the user's."""
    from inspect_ai.model import ChatMessageTool, ChatMessageUser

    messages = list[Any]()
    for message, turn in zip(said, found.turns, strict=False):
        messages.append(message)
        ids = [call.id for call in message.tool_calls or []]
        for place, (call, result) in enumerate(zip(turn.calls, turn.results, strict=False)):
            name = ids[place] if place < len(ids) else f"text-{place}"
            messages.append(ChatMessageTool(content=result.text, tool_call_id=name, function=call.name))
        if turn.heard is not None:
            messages.append(ChatMessageUser(content=turn.heard))
    return messages
