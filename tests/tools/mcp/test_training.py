"""A training step with an MCP server in the menu, and the same step from its record, with no server."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.schema import RunConfig
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rl import groups
from orchestra_jax.rollout import collector
from orchestra_jax.training.build import make_collector
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.main import run
from orchestra_jax.types import Status, Task, ToolCall, ToolResult
from tests.tools.tokenizers import save_tokenizer
from tests.tools.tool_servers import ScriptedPolicy
from tests.training.micro import score_by_index

pytest.importorskip("mcp", reason="needs the package mcp: pip install 'orchestra-jax[mcp]'")

STEP = (
    "steps=1", "model.family=tests.training.micro:OneLayer", "mesh=single", "model=tiny", "rollout=embedded",
    "rollout.limits.max_length=1024", "rollout.limits.max_new_tokens=64", "rollout.slots=4",
    "algorithm.tasks_per_step=1", "algorithm.group_size=2", "algorithm.packing=false", "algorithm.row_widths=[256]",
    "algorithm.prefix_widths=[768]", "algorithm.loss.kl_coef=0", "warm_start.steps=0", "model.random_init=true",
    "evaluation.questions=0", "checkpoint.every=1", "checkpoint.export=false", "logger.names=[jsonl]",
    "pricing.orchestrator_seconds_per_token=0", "data.eval_questions=1",
)  # fmt: skip


def script(task: Task, results: list[ToolResult]) -> ToolCall | str:
    """Has the server say the answer; for one question it has it die."""
    number = int(task.question.split()[3])
    if results:
        return f"\\boxed{{{results[-1].text}}}"
    return ToolCall("die", {}) if number == 12 else ToolCall("echo", {"text": str(7 * number)})


async def test_a_server_that_dies_in_mid_call_spoils_those_trajectories_alone(command, configured, none_left):
    cfg = configured([command()], "rollout.limits.retries=1", "data.eval_questions=4")
    environment = make_environment(cfg)

    tasks = sorted(environment.held_out(4), key=lambda task: task.question)  # the one that kills comes with others
    try:
        found = await make_collector(cfg, environment, None).play(script, tasks, budget=Budget())
    finally:
        await environment.close()
    assert len(found) == 4
    for trajectory in found:
        if "12 *" in trajectory.task.question:
            assert (trajectory.status, trajectory.completed) == (Status.FAILED, False)
            assert "failed in a call of die: Connection closed" in trajectory.reason
        else:
            assert trajectory.solved or not trajectory.completed
    assert any(trajectory.solved for trajectory in found)
    none_left()


@pytest.mark.slow
def test_a_step_is_trained_and_trained_again_from_its_record(command, configured, none_left, tmp_path, monkeypatch):
    folder = save_tokenizer(tmp_path / "tokenizer", [Path(__file__).read_text()], 400)
    entry = {"server": command(), "name": "hand", "tools": ["echo", "geo.distance"],
             "prices": {"echo": {"price_usd": 0.125}}}  # fmt: skip
    record = (f"env.tokenizer={folder}", f"replay.path={tmp_path / 'calls.db'}")
    monkeypatch.setattr(collector, "EngineSpeaker", ScriptedPolicy)
    monkeypatch.setattr(groups, "reward_groups", score_by_index)

    def trained(cfg: RunConfig) -> tuple[dict, str, dict]:
        run(cfg)
        output = Path(cfg.output_dir)
        (row,) = read_metrics(output)
        transcripts = (output / "trajectories" / "step-000001.txt").read_text()
        return row, transcripts, json.loads((output / "run.json").read_text())["starts"][0]

    live = configured([entry], *STEP, *record, "replay.mode=replay_or_record", f"output_dir={tmp_path / 'live'}")
    row, told, start = trained(live)
    none_left()
    assert (row["valid_rate"], row["grad_norm"] > 0) == (1, True)
    assert "hand_echo" in told
    assert start["mcp"] == {"hand": {"name": "by-hand", "version": "1.0", "protocol": "2025-06-18"}}
    tools = replace(live.tools, mcp=[{**entry, "server": "no-such-program"}])
    again = replace(live, tools=tools, replay=replace(live.replay, mode="replay"), output_dir=str(tmp_path / "again"))
    assert trained(again)[1] == told
