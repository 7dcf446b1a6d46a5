"""Idle shares: of devices that wait for tools or for an update, by the generations under way."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.rollout import RolloutConfig, ServerOptions
from orchestra_jax.engines.base import Generation, SamplingParams
from orchestra_jax.rl import groups
from orchestra_jax.training import idle
from orchestra_jax.training.idle import WatchedEngine, idle_shares
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.main import run
from tests.training.micro import score_by_index
from tests.training.test_trainer import MICRO, config

SEPARATE = RolloutConfig(engine=EngineName.sglang)
SHARED = replace(SEPARATE, server=ServerOptions(share_gpus=True))
# The first phase begins at 100, the last one ends at 140.
TIMES = {
    "time/save": 4.0, "time/rollout": 20.0, "time/score": 1.0, "time/update": 10.0, "time/sync": 4.0, "time/other": 1.0,
}  # fmt: skip


class Ended:
    """An engine whose generations end when they are told to."""

    def __init__(self) -> None:
        self.ends: dict[int, asyncio.Future[Generation]] = {}

    async def generate(self, prompt: Any, params: Any, *, session: int | None = None) -> Generation:
        self.ends[prompt[0]] = asyncio.get_running_loop().create_future()
        return await self.ends[prompt[0]]

    def open_session(self) -> int:
        return 7


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(now=0.0)
    monkeypatch.setattr(idle, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


async def played(clock: SimpleNamespace, *events: tuple[float, int, str]) -> WatchedEngine:
    """An engine after these events: a time, the number of a generation, and what happens to it."""
    engine = Ended()
    watched, under_way = WatchedEngine(engine), list[asyncio.Task[Generation]]()
    for clock.now, number, what in events:
        if what == "begins":
            under_way.append(asyncio.create_task(watched.generate([number], SamplingParams(1))))
        elif what == "ends":
            engine.ends[number].set_result(Generation((1,), (0.0,), "stop", 0))
        else:
            engine.ends[number].set_exception(RuntimeError("the server is gone"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    for task in under_way:
        if task.done():
            task.exception()
        else:
            task.cancel()
    assert watched.open_session() == 7  # everything else is the engine's own
    return watched


ROLLOUT = (  # from 104 to 124: busy for 4 + 6 seconds, where two overlap and one fails
    (105.0, 1, "begins"), (106.0, 2, "begins"), (107.0, 1, "ends"), (109.0, 2, "fails"),
    (116.0, 3, "begins"), (122.0, 3, "ends"),
)  # fmt: skip


@pytest.mark.parametrize("rollout", [RolloutConfig(), SHARED])
async def test_devices_of_the_engine_wait_for_tools_in_every_layout(clock: SimpleNamespace, rollout: RolloutConfig):
    found = idle_shares(await played(clock, *ROLLOUT), TIMES, 140.0, rollout)
    assert found == {"idle/generate": pytest.approx(0.5)}


async def test_servers_beside_the_trainer_wait_for_its_update_and_it_for_them(clock: SimpleNamespace):
    found = idle_shares(await played(clock, *ROLLOUT), TIMES, 140.0, SEPARATE)
    assert found == pytest.approx({
        "idle/generate": 0.5, "idle/save": 1.0, "idle/score": 1.0, "idle/update": 1.0, "idle/other": 1.0,
        "idle/trainer": 0.75,
    })  # fmt: skip


async def test_rollouts_that_run_ahead_keep_servers_busy_during_the_update(clock: SimpleNamespace):
    ahead = ((102.0, 1, "begins"), (109.0, 1, "ends"), (120.0, 2, "begins"), (129.0, 2, "ends"))
    found = idle_shares(await played(clock, *ahead), TIMES, 140.0, SEPARATE)
    assert (found["idle/save"], found["idle/generate"]) == pytest.approx((0.5, 0.55))
    assert (found["idle/score"], found["idle/update"]) == pytest.approx((0.0, 0.6))


async def test_a_generation_that_has_not_ended_counts_until_the_end_of_the_phase_and_in_the_next_step(
    clock: SimpleNamespace,
):
    engine = Ended()
    watched = WatchedEngine(engine)
    clock.now = 114.0
    task = asyncio.create_task(watched.generate([1], SamplingParams(1)))
    await asyncio.sleep(0)
    first = idle_shares(watched, TIMES, 140.0, SEPARATE)
    assert (first["idle/generate"], first["idle/update"]) == pytest.approx((0.5, 0.0))
    clock.now = 146.0
    engine.ends[1].set_result(Generation((1,), (0.0,), "stop", 0))
    await task
    second = idle_shares(watched, {"time/rollout": 8.0, "time/update": 2.0}, 150.0, SEPARATE)
    assert (second["idle/generate"], second["idle/update"]) == pytest.approx((0.25, 1.0))


async def test_an_evaluation_is_told_and_a_phase_without_seconds_is_not(clock: SimpleNamespace):
    times = {"time/evaluate": 10.0, "time/save": 0.0, "time/rollout": 0.0, "time/update": 10.0}
    found = idle_shares(await played(clock, (121.0, 1, "begins"), (128.0, 1, "ends")), times, 140.0, RolloutConfig())
    assert found == {"idle/evaluate": pytest.approx(0.3)}
    assert idle_shares(Ended(), times, 140.0, RolloutConfig()) == {}  # nobody has watched it


def test_a_run_tells_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(groups, "reward_groups", score_by_index)
    own = ("steps=1", "warm_start.steps=0", "evaluation.questions=0", "rollout.limits.max_turns=2")
    run(config(tmp_path, *MICRO, *own, "logger.speed=true"))
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert 0 <= row["idle/generate"] < 1
    assert [name for name in row if name.startswith("idle/")] == ["idle/rollout", "idle/generate"]
