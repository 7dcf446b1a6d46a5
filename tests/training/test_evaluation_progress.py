"""The progress of an evaluation: what is done of all, the dollars so far, the time left."""

import asyncio
import io
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from orchestra_jax.config.schema import EvaluationConfig, RunConfig
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment, quickstart_chat
from orchestra_jax.evaluation.runner import Evaluator
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.training.build import make_evaluator
from orchestra_jax.training.evaluation_progress import ShownCaps, ShownEvaluator
from tests.evaluation.test_runner import LIMITS, PRICES, ParrotEngine

CFG = replace(
    RunConfig(),
    evaluation=EvaluationConfig(questions=4, swap_questions=2, samples=2),
    rollout=replace(RunConfig().rollout, limits=LIMITS),
)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    environment = QuickstartEnvironment(RunConfig())
    yield Collector(
        environment, ChatFormat(quickstart_chat().tokenizer, compact_menu=True), LIMITS, PRICES, seconds_per_token=0.0
    )
    asyncio.run(environment.close())


def lines(
    collector: Collector, directory: Path, kind: type[ShownEvaluator] = ShownEvaluator, second: float = 1.0
) -> list[str]:
    """The lines of an evaluation without a terminal, on a clock that goes on by `second` with every trajectory."""
    cfg = replace(CFG, evaluation=replace(CFG.evaluation, turn_caps=[2, 3])) if kind is ShownCaps else CFG
    evaluator = kind(cfg, collector, ParrotEngine(collector.chat), Budget(), directory)
    out, clock = io.StringIO(), itertools.count(0.0, second)
    with evaluator.shown(lambda: 0.25, Console(file=out, force_terminal=False), lambda: next(clock)):
        asyncio.run(evaluator.evaluate("policy", "weights"))
    asyncio.run(evaluator.baselines())  # nothing of it is shown
    return out.getvalue().splitlines()


def total(collector: Collector) -> int:
    kinds = len(collector.environment.paired_preferences(2))
    return 4 * 2 + 4 + 2 * 2 * kinds  # samples, greedy, and the samples of each kind of preference


@pytest.mark.parametrize("kind", [ShownEvaluator, ShownCaps])
def test_without_a_terminal_the_end_is_told_in_a_line(collector: Collector, tmp_path: Path, kind: type[ShownEvaluator]):
    count = total(collector)
    assert lines(collector, tmp_path, kind, 0.1) == [f"evaluation {count}/{count}  eta 0:00:00  $ 0.25"]


def test_a_long_one_tells_every_half_minute_how_long_it_will_take(collector: Collector, tmp_path: Path):
    count = total(collector)
    assert lines(collector, tmp_path, second=15.0)[:2] == [
        f"evaluation 2/{count}  eta 0:{15 * (count - 2) // 60:02d}:{15 * (count - 2) % 60:02d}  $ 0.25",
        f"evaluation 4/{count}  eta 0:{15 * (count - 4) // 60:02d}:{15 * (count - 4) % 60:02d}  $ 0.25",
    ]


def test_what_an_earlier_start_made_counts_as_done_and_not_for_the_time_left(collector: Collector, tmp_path: Path):
    count = total(collector)
    lines(collector, tmp_path)
    for file in (tmp_path / "policy").iterdir():  # a kill left half of each
        kept = file.read_text().splitlines(keepends=True)
        file.write_text("".join(kept[: len(kept) // 2]))
    found = lines(collector, tmp_path, second=30.0)
    made = [re.match(rf"evaluation (\d+)/{count}  eta (\S+)", line) for line in found]
    assert all(made)
    assert made[-1][1] == str(count)
    # 4 of 8 were there. Telling so starts the clock, and making the fifth is a tick of 30 s.
    fifth = next(each for each in made if each is not None and each[1] == "5")
    left = (count - 5) * 30
    assert fifth[2] == f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"


def test_no_evaluation_but_the_commands_shows_anything(collector: Collector, capsys: pytest.CaptureFixture[str]):
    asyncio.run(Evaluator(CFG, collector, ParrotEngine(collector.chat), Budget()).evaluate())
    assert capsys.readouterr().out == ""


def test_a_run_shows_its_evaluations_on_a_terminal_but_those_amid_the_policy_steps(
    collector: Collector, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    parts = CFG, collector, ParrotEngine(collector.chat), Budget()
    assert type(make_evaluator(*parts)) is Evaluator
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    evaluator = make_evaluator(*parts)
    amid = asyncio.run(evaluator.evaluate("step 2"))
    assert capsys.readouterr().out == ""
    assert asyncio.run(evaluator.evaluate("before")) == amid
    count = total(collector)
    assert f"{count}/{count}" in capsys.readouterr().out
