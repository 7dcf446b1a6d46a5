"""Trajectories as text that one can read: what was asked, said, called, answered and charged."""

from collections.abc import Sequence
from pathlib import Path

from orchestra_jax.types import Trajectory


def transcript(trajectory: Trajectory) -> str:
    """One trajectory as plain text."""
    task = trajectory.task
    lines = [
        f"task {task.id}   family {task.family or '-'}   preference {task.preference.name}",
        f"question   {task.question}",
        f"wish       {task.preference.instruction}",
        "menu       "
        + "; ".join(f"{spec.name} {_number(spec.price_usd, '$')} {_number(spec.latency_s, 's')}" for spec in task.tools),
        f"reference  {' | '.join(task.answer)}",
        "",
    ]
    for number, turn in enumerate(trajectory.turns, 1):
        lines.append(f"[turn {number}] {turn.text}")
        lines += [f"    -> {call.name}: {result.text}" for call, result in zip(turn.calls, turn.results, strict=False)]
    lines += [
        "",
        f"{trajectory.status}{': ' + trajectory.reason if trajectory.reason else ''}   answer {trajectory.answer!r}   "
        f"{'solved' if trajectory.solved else 'not solved'}   ${trajectory.cost_usd:.6f}   {trajectory.latency_s:.2f} s",
    ]
    return "\n".join(lines)


def _number(value: float | None, unit: str) -> str:
    return f"?{unit}" if value is None else f"{value:g}{unit}"


def write_transcripts(directory: Path, step: int, trajectories: Sequence[Trajectory]) -> None:
    """Writes the transcripts of one step into `directory/step-<n>.txt`; a repeated step replaces its file."""
    if not trajectories:
        return
    directory.mkdir(parents=True, exist_ok=True)
    text = ("\n" + "-" * 100 + "\n").join(transcript(trajectory) for trajectory in trajectories)
    (directory / f"step-{step:06d}.txt").write_text(text + "\n")
