"""What an evaluation keeps is what a report reads: the same figures as from the trajectories themselves."""

import json
from pathlib import Path

import numpy as np
import pytest

from orchestra_jax.evaluation.calls import model_figures
from orchestra_jax.evaluation.results.measured import measured
from orchestra_jax.evaluation.results.tables import tables
from orchestra_jax.evaluation.trajectory_files import TrajectoryFile
from orchestra_jax.rl.groups import group_arrays
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, ToolSpec, Trajectory, Turn, Usage

KEYS = {"expert-1": "math/qwen2.5-math-7b", "expert-2": "generalist/gpt-5", "python": "python"}
OUTPUT = {"generalist/gpt-5": 10.0, "math/qwen2.5-math-7b": 0.2}


def tasks() -> list[Task]:
    """One menu of a catalogue, and one whose tools are what they are called."""
    catalogue = tuple(ToolSpec(name, "", {}) for name in KEYS)
    plain = tuple(ToolSpec(f"expert_{name}", "", {}, price_usd=usd) for name, usd in (("small", 0.01), ("large", 0.1)))
    wanted = Preference("cost", "cheap, please", {"python": 0.5, "expert_large": 0.25}, 1.0, 0.75, 0.0)
    extra = {"instance": {"seed": 1, "prices": {}, "tools": KEYS, "output_usd": OUTPUT}}
    return [Task("a", "?", ("1",), catalogue, wanted, extra=extra), Task("b", "?", ("1",), plain, wanted)]


def played(task: Task, group: int, member: int, calls: str, refused: int = 0) -> Trajectory:
    made = tuple(ToolCall(name, {}) for name in calls.split())
    results = tuple(ToolResult("", refused=number < refused) for number in range(len(made)))
    turn = Turn((1,), (2,), (-0.5,), 0, "stop", "", made, results)
    ledger = (Usage("orchestrator", "orchestrator", cost_usd=0.5, seconds=3.0),)
    return Trajectory(task, group, member, ((turn,),), Status.COMPLETED, "", "1", member == 0, ledger)


def test_a_report_of_what_is_kept_has_the_figures_of_the_trajectories(tmp_path: Path) -> None:
    posed = tasks()
    run = [
        played(posed[0], 0, 0, "expert-1 python python"), played(posed[0], 0, 1, "expert-2 expert-1", refused=1),
        played(posed[1], 1, 0, "expert_large expert_large expert_small"), played(posed[1], 1, 1, ""),
    ]  # fmt: skip
    folder = tmp_path / "run" / "evaluation"
    kept = TrajectoryFile(folder / "trajectories" / "policy" / "held_out.t1.jsonl", "weights", posed, 2, "gpt-5-mini")
    for trajectory in (run[3], run[0], run[2], run[1]):  # as they end
        kept.add(trajectory)
    (folder / "run.json").write_text(json.dumps({"config": {"data": {"source": "mine"}}, "starts": []}))

    (one,) = measured(tmp_path / "run")
    arrays = group_arrays(run, 2)
    read = [item for name in ("a", "b") for item in one.items[name]]
    for number, item in enumerate(read):
        group, member = divmod(number, 2)
        size = len(item.tools)
        assert item.tools == tuple(spec.name for spec in posed[group].tools)
        assert item.weights == tuple(arrays.preference[group][arrays.tool_mask[group]])
        assert [item.named[name] for name in item.tools] == arrays.tool_counts[group, member, :size].tolist()
        assert (item.solved, item.cost, item.seconds) == (bool(arrays.solved[group, member]), 0.5, 3.0)
    assert one.model == "gpt-5-mini"
    figures = model_figures(run, "gpt-5-mini")
    assert (figures["strongest_share"], figures["own_share"]) == (2 / 5, 0.0)
    (models,) = [table for table in tables([one]) if table.title.endswith("whom the policy asks")]
    assert (models.rows[0][2], models.rows[0][4]) == ("40.0", "0.0")
    assert one.mean(lambda item: float(item.solved)) == pytest.approx(np.mean([t.solved for t in run]))
    titles = [table.title.partition(": ")[2] for table in tables([one])]
    assert titles == ["", "several samples of a question", "calls by tool", "whom the policy asks"]
