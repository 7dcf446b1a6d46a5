"""Trajectories as readable text: question, turns, calls, answer and cost."""

from collections.abc import Sequence
from pathlib import Path

from orchestra_jax.types import ToolSpec, Trajectory


def transcript(trajectory: Trajectory) -> str:
    """Return one trajectory as plain text."""
    task = trajectory.task
    lines = [
        f"task {task.id}   family {task.family or '-'}   preference {task.preference.name}",
        f"question   {task.question}",
        f"preference {task.preference.instruction}",
        "menu       " + "; ".join(_offer(spec) for spec in task.tools),
        f"reference  {' | '.join(task.answer)}",
    ]
    if instance := task.extra.get("instance"):
        stands_for = "; ".join(f"{name} = {key}" for name, key in instance["tools"].items() if name != key)
        drawn = "".join(f"{name} {instance[name]}   " for name in ("seed", "prices") if name in instance)
        lines.append(f"instance   {drawn}{stands_for}".rstrip())
    lines.append("")
    for number, turn in enumerate(trajectory.turns, 1):
        lines.append(f"[turn {number}] {turn.text}")
        lines += [f"    -> {call.name}: {result.text}" for call, result in zip(turn.calls, turn.results, strict=False)]
        lines += [] if turn.heard is None else [f"    user: {turn.heard}"]
    ending = f"{trajectory.status}: {trajectory.reason}" if trajectory.reason else str(trajectory.status)
    verdict = "solved" if trajectory.solved else "not solved"
    charged = f"${trajectory.cost_usd:.6f}   {trajectory.latency_s:.2f} s"
    lines += [f"    {name}: {wrong}" for name, wrong in trajectory.criteria.items() if wrong]
    lines += ["", f"{ending}   answer {trajectory.answer!r}   {verdict}   {charged}"]
    return "\n".join(lines)


def _offer(spec: ToolSpec) -> str:
    price = "by use" if spec.price_usd is None else f"${spec.price_usd:g}"
    return f"{spec.name} {price}" + ("" if spec.latency_s is None else f" {spec.latency_s:g} s")


def write_transcripts(directory: Path, step: int, trajectories: Sequence[Trajectory]) -> None:
    """Write the transcripts of one step into `directory/step-<n>.txt`. A repeated step replaces its file."""
    if not trajectories:
        return
    directory.mkdir(parents=True, exist_ok=True)
    text = ("\n" + "-" * 100 + "\n").join(transcript(trajectory) for trajectory in trajectories)
    (directory / f"step-{step:06d}.txt").write_text(text + "\n")
