"""Rollouts as logs of Inspect (https://inspect.aisi.org.uk), for its viewer and its tools: a file for each step.

A task of a step is a sample, each member of its group an epoch of it.
"""

import datetime
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestra_jax.config.schema import RewardConfig
from orchestra_jax.evaluation.group_files import StoredGroup
from orchestra_jax.evaluation.results.group_page import generations, reward_terms
from orchestra_jax.io.foreign_json import valid_value
from orchestra_jax.io.untrusted import valid_text
from orchestra_jax.training.inspect.messages import known_schema
from orchestra_jax.types import Status, Task, Trajectory, Turn, Usage

if TYPE_CHECKING:
    from inspect_ai.log import EvalSample

_STOPS = {"length": "max_tokens", "abort": "unknown"}  # Inspect's names of the policy's finish reasons


def write_logs(groups: Iterable[StoredGroup], folder: Path, *, name: str, reward: RewardConfig) -> list[Path]:
    """Write `step-000012.eval` for each step. Texts are marked as untrusted, so that the viewer renders none of them.

    Args:
        groups: in the order of their steps.
        folder: made if missing.
        name: of the run; Inspect shows it as the model.
        reward: how the run weighs the terms of Eq. 2.

    Returns:
        The files.

    Raises:
        ImportError: inspect-ai is not installed.
    """
    try:
        from inspect_ai.log import write_eval_log
    except ImportError:
        raise ImportError("Logs of Inspect need inspect-ai: pip install 'orchestra-jax[inspect]'.") from None
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for step, members in itertools.groupby(groups, key=lambda group: group.step):
        samples = [sample for group in members for sample in _samples(group, name, reward)]
        file = folder / f"step-{step:06d}.eval"
        file.unlink(missing_ok=True)
        write_eval_log(_log(step, name, samples), str(file), format="eval")
        written.append(file)
    return written


def _log(step: int, name: str, samples: Sequence["EvalSample"]) -> Any:
    """Return a step's samples as a log of Inspect, with the means of those without an error."""
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalMetric, EvalResults, EvalScore, EvalSpec, EvalStats
    from inspect_ai.viewer import ViewerConfig

    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    ids = list(dict.fromkeys(str(sample.id) for sample in samples))
    whole = [sample for sample in samples if sample.error is None]

    def mean(figure: str) -> EvalScore:
        values = [float((sample.scores or {})[figure].as_float()) for sample in whole]
        metrics = {"mean": EvalMetric(name="mean", value=float(np.mean(values)))} if values else {}
        return EvalScore(name=figure, scorer=figure, metrics=metrics)

    return EvalLog(
        status="success",
        eval=EvalSpec(
            created=now,
            task=f"{name}, step {step}",
            dataset=EvalDataset(name=name, samples=len(ids), sample_ids=ids),
            model=f"orchestra_jax/{name}",
            config=EvalConfig(epochs=max((sample.epoch for sample in samples), default=1)),
            viewer=ViewerConfig(trust_content=False),
        ),
        results=EvalResults(
            total_samples=len(samples),
            completed_samples=len(whole),
            scores=[mean(figure) for figure in ("solved", "reward", "cost_usd", "seconds")],
        ),
        stats=EvalStats(started_at=now, completed_at=now),
        samples=list(samples),
    )


def _samples(group: StoredGroup, model: str, reward: RewardConfig) -> Iterator["EvalSample"]:
    """Yield a sample for each member, with the figures that the update used."""
    from inspect_ai.log import EvalError, EvalSample
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import Score

    task, terms = group.task, reward_terms(group, reward)
    for n, member in enumerate(group.members):
        messages, events = _history(member, model)
        figures = {
            "solved": bool(member.solved),
            "reward": group.rewards[n],
            "advantage": group.advantages[n],
            "cost_usd": member.cost_usd,
            "seconds": member.latency_s,
            **{f"term: {term['name']}": term["term"] for term in terms[n]},
        }
        failed = EvalError(message=valid_text(member.reason), traceback="", traceback_ansi="")
        yield EvalSample(
            id=f"{group.group:04d} {valid_text(task.id)}",
            epoch=n + 1,
            input=_asked(task),
            target=list(map(valid_text, task.answer)),
            messages=messages,
            output=ModelOutput.from_content(model, valid_text(member.answer or "")),
            scores={key: Score(value=value, answer=valid_text(member.answer or "")) for key, value in figures.items()},
            metadata={
                "step": group.step,
                "status": str(member.status),
                "reason": valid_text(member.reason),
                "family": task.family,
                "preference": task.preference.name,
                "kept": group.kept,
                "criteria": dict(member.criteria),
            },
            events=events,
            model_usage={model: _usage([row for row in member.ledger if row.role == "orchestrator"])},
            total_time=member.latency_s,
            error=failed if member.status is Status.FAILED else None,
        )


def _history(member: Trajectory, model: str) -> tuple[list[Any], list[Any]]:
    """Return the messages, and an event for each generation and call."""
    from inspect_ai.event import ModelEvent, ToolEvent
    from inspect_ai.model import ChatMessageTool, ChatMessageUser, GenerateConfig
    from inspect_ai.tool import ToolInfo, ToolParams

    tools = [
        ToolInfo(
            name=spec.name,
            description=valid_text(spec.description),
            parameters=ToolParams.model_validate(valid_value(known_schema(spec))),
        )
        for spec in member.task.tools
    ]
    messages: list[Any] = [ChatMessageUser(content=_asked(member.task))]
    events: list[Any] = []
    for number, (turn, row) in enumerate(generations(member), 1):
        output = _output(turn, row, model, number)
        events.append(
            ModelEvent(
                model=model,
                input=list(messages),
                tools=tools,
                tool_choice="auto",
                config=GenerateConfig(),
                output=output,
                working_time=row.seconds if row else None,
            )
        )
        said = output.choices[0].message
        messages.append(said)
        for call, result in zip(said.tool_calls or [], turn.results, strict=False):
            text = valid_text(result.text)
            events.append(
                ToolEvent(
                    id=call.id,
                    function=call.function,
                    arguments=call.arguments,
                    result=text,
                    failed=result.is_error or result.refused,
                )
            )
            messages.append(ChatMessageTool(content=text, tool_call_id=call.id, function=call.function))
        if turn.heard is not None:
            messages.append(ChatMessageUser(content=valid_text(turn.heard)))
    return messages, events


def _output(turn: Turn, row: Usage | None, model: str, number: int) -> Any:
    from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, ModelOutput
    from inspect_ai.tool import ToolCall

    calls = [
        ToolCall(
            id=f"call-{number}-{place}", function=valid_text(call.name), arguments=valid_value(dict(call.arguments))
        )
        for place, call in enumerate(turn.calls, 1)
    ]
    message = ChatMessageAssistant(content=valid_text(turn.text), tool_calls=calls or None, model=model)
    stop: Any = _STOPS.get(turn.finish_reason, "tool_calls" if calls else "stop")
    choices = [ChatCompletionChoice(message=message, stop_reason=stop)]
    return ModelOutput(model=model, choices=choices, usage=_usage([row] if row else []))


def _usage(rows: Sequence[Usage]) -> Any:
    from inspect_ai.model import ModelUsage

    read, written = sum(row.prompt_tokens for row in rows), sum(row.completion_tokens for row in rows)
    return ModelUsage(
        input_tokens=read,
        output_tokens=written,
        total_tokens=read + written,
        total_cost=sum(row.cost_usd for row in rows),
    )


def _asked(task: Task) -> str:
    return valid_text(f"{task.question}\n\n{task.preference.instruction}".strip())
