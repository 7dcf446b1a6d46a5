"""A policy beside its own models dealt out at random, and beside rivals mixed to its cost."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.against import Alone, Outcome, Sample, at_cost, averaged, best_mix, dealt, line, report, samples_of
from orchestra_jax.api import load_run
from orchestra_jax.data.preferences import WORDINGS
from orchestra_jax.envs.recorded import router
from orchestra_jax.envs.recorded.environment import RecordedEnvironment
from orchestra_jax.evaluation.trajectory_files import TrajectoryFile
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.money.budgets import Budget
from orchestra_jax.training.build import make_collector
from tests.envs.recorded.made import CHEAP, STRONG, UNSEEN, config, made_rows
from tests.envs.recorded.made import MODELS as TABLE

SURE, EASY = "sure", "easy"  # right everywhere at 4 cents, and on the first half at 1


def outcome(right: list[float], cents: float) -> Outcome:
    return Outcome(np.array(right, float), np.full(len(right), cents))


ALONE = {SURE: outcome([1, 1, 1, 1], 4.0), EASY: outcome([1, 1, 0, 0], 1.0)}
MODELS = Alone(ALONE, {SURE: 0.9, EASY: 0.5})
MENUS = [frozenset(ALONE)] * 4


def asking(*models: str) -> list[Sample]:
    """A sample for each question that asks one model, with .5 cents for the policy's own tokens."""
    return [
        Sample(row, (name,), ALONE[name].right[row], ALONE[name].cents[row] + 0.5) for row, name in enumerate(models)
    ]


def test_a_policy_that_knows_the_question_beats_its_own_models_dealt_at_random():
    wise = asking(EASY, EASY, SURE, SURE)
    policy, random = averaged(wise, 4), dealt(wise, ALONE, MENUS)
    assert policy.right.tolist() == [1, 1, 1, 1]
    assert random.right.tolist() == [1, 1, 0.5, 0.5]
    assert policy.cost == random.cost == 3.0  # the mix and the tokens are the same
    foolish = asking(SURE, SURE, EASY, EASY)
    assert averaged(foolish, 4).right.mean() == 0.5 < dealt(foolish, ALONE, MENUS).right.mean() == 0.75


def test_a_policy_of_one_model_is_its_own_shuffle():
    always = asking(EASY, EASY, EASY, EASY)
    for one, other in zip(averaged(always, 4), dealt(always, ALONE, MENUS), strict=True):
        assert one.tolist() == other.tolist()


def test_all_calls_of_a_rollout_are_dealt_together_and_the_last_answers():
    twice = [Sample(0, (EASY, SURE), 1.0, 5.0), Sample(1, (EASY,), 1.0, 1.0)]
    random = dealt(twice, ALONE, MENUS[:2])
    assert random.right.tolist() == [1, 1]
    assert random.cents.tolist() == [3.0, 3.0]
    hard = [Sample(row + 2, *sample[1:]) for row, sample in enumerate(twice)]
    padding = [Sample(0, (), 1.0, 0.1), Sample(1, (), 0.0, 0.2)]  # no model asked: it stays
    random = dealt([*padding, *hard], ALONE, MENUS)
    assert random.right.tolist() == [1, 0, 0.5, 0.5]
    assert random.cents.tolist() == [0.1, 0.2, 3.0, 3.0]


def test_several_samples_are_averaged_and_menus_are_kept():
    samples = [Sample(0, (EASY,), 1.0, 1.0), Sample(0, (SURE,), 1.0, 4.0), Sample(1, (EASY,), 1.0, 1.0)]
    assert averaged(samples, 2).cents.tolist() == [2.5, 1.0]
    random = dealt(samples, ALONE, [MENUS[0], frozenset([EASY])])
    assert random.cents.tolist() == pytest.approx([2.0, 1.0])  # two of three asked the easy one


def test_the_best_mix_costs_what_the_policy_costs():
    name, mix = best_mix(MODELS, 2.5)
    assert name == "50 % sure, else easy"
    assert mix.cost == 2.5
    assert mix.right.tolist() == [1, 1, 0.5, 0.5]
    assert best_mix(MODELS, 9.0) == (SURE, ALONE[SURE])
    assert best_mix(MODELS, 0.5) == (EASY, ALONE[EASY])  # all are dearer
    # Training says which: here it calls the dear one no better, so that a mix wastes money.
    assert best_mix(Alone(ALONE, {SURE: 0.4, EASY: 0.5}), 2.5) == (EASY, ALONE[EASY])


def test_a_rival_is_moved_to_the_cost_by_the_model_that_helps_most():
    third = {**ALONE, "poor": outcome([0, 0, 0, 0], 0.5)}
    models = Alone(third, {**MODELS.trained, "poor": 0.0})
    name, moved = at_cost(outcome([1, 1, 1, 0], 4.0), models, 2.5)
    assert (name, moved.cost) == ("50 % easy", 2.5)
    assert moved.right.tolist() == [1, 1, 0.5, 0]
    name, moved = at_cost(outcome([1, 0, 0, 0], 1.0), models, 2.5)
    assert (name, moved.right.tolist()) == ("50 % sure", [1, 0.5, 0.5, 0.5])
    assert at_cost(outcome([1, 0, 0, 0], 5.0), models, 0.1) is None


def test_a_small_share_of_a_mix_is_not_told_as_nothing():
    dear, cheap = outcome([1, 1, 1, 1], 101.0), outcome([1, 0, 0, 0], 1.0)
    name, mix = best_mix(Alone({SURE: dear, EASY: cheap}, {SURE: 0.9, EASY: 0.5}), 1.49)
    assert name == f"0.49 % {SURE}, else {EASY}"
    assert mix.cost == pytest.approx(1.49)


def test_a_line_has_the_paired_difference():
    better, worse = outcome([1, 1, 1, 1] * 25, 1.0), outcome([1, 1, 1, 0] * 25, 2.0)
    assert " 75.0 %  2.0000  +25.0 (+17.0 to +34.0)" in line("it", worse, better)
    assert "+0.0 (+0.0 to +0.0)" in line("it", better, better)


def evaluated(tmp_path: Path, baseline: str, **options: object) -> Path:
    """The folder of an evaluation of a baseline on a made table, as experiments/evaluate.py leaves it."""
    table, folder = tmp_path / "table.jsonl", tmp_path / "run"
    table.write_text("".join(json.dumps(row) + "\n" for row in made_rows()))
    cfg = config(str(table), **{"unseen": [], "unseen_prices": None, "python": False, **options})
    cfg = replace(cfg, output_dir=str(folder))
    environment = RecordedEnvironment(cfg)
    tasks, collector = environment.held_out(99), make_collector(cfg, environment, None)
    file = TrajectoryFile(folder / "evaluation" / "trajectories" / "policy" / "held_out.t0.jsonl", None, tasks)
    with LoopThread() as loop:
        script = environment.baselines()[baseline]
        loop.run(collector.play(script, tasks, budget=Budget(), silent=True, on_done=file.add))
        loop.run(environment.close())
    (folder / "evaluation" / "run.json").write_text(json.dumps({"config": asdict(cfg), "starts": []}, default=str))
    return folder


def rows(folder: Path) -> dict[str, str]:
    """The lines of the report by what they are on."""
    first, _, *lines = report(folder)
    assert first == "policy, held_out.t0.jsonl:"
    return {text[:82].strip(): text[82:].strip() for text in lines}


def test_the_best_model_alone_is_its_own_shuffle_and_mix(tmp_path: Path):
    found = rows(evaluated(tmp_path, "best"))
    own = found["policy"]
    assert own.split()[:2] == ["100.0", "%"]
    assert found["its own models, dealt out at random"] == found[STRONG] == f"{own}   +0.0 (+0.0 to +0.0)"


def test_with_the_sandbox_rivals_may_run_the_code_too(tmp_path: Path):
    found = rows(evaluated(tmp_path, "code_then_cheapest_good", python=True))
    own = found["policy"]
    assert (
        found["its own models, dealt out at random"] == found[f"code, else {CHEAP}"] == f"{own}   +0.0 (+0.0 to +0.0)"
    )
    (mix,) = (text for name, text in found.items() if f"% {CHEAP}, else {UNSEEN}" in name)
    assert float(mix.split()[0]) < float(own.split()[0])  # it never gets code right
    if router.available():
        assert {"knn", "knn_right", "knn_code", "knn_code_right"} <= found.keys()


def test_rivals_have_the_wishes_of_the_rollouts(tmp_path: Path):
    folder = evaluated(tmp_path, "cheapest")
    file = folder / "evaluation" / "trajectories" / "policy" / "held_out.t0.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    words = WORDINGS["low_cost"]["eval"][0]
    wished = [record | {"preference": words, "weights": record["weights"] | {"compute": 1.0}} for record in records]
    file.with_name("wishes.t0.jsonl").write_text("".join(json.dumps(each) + "\n" for each in [*records, *wished]))
    environment = RecordedEnvironment(load_run(folder / "evaluation").config)
    tasks = {task.id: task for task in environment.held_out(99)}
    samples, asked = samples_of(file.with_name("wishes.t0.jsonl"), tasks, TABLE)
    assert [task.id for task in asked] == [record["id"] for record in records] * 2
    kinds = [(task.preference.name, task.preference.compute) for task in asked[len(records) :]]
    assert kinds == [("low_cost", 1.0)] * len(records)
    assert [sample.row for sample in samples] == list(range(len(asked)))
    assert next(report(folder, "wishes")) == "policy, wishes.t0.jsonl:"


def test_what_is_no_such_evaluation_is_told_in_a_sentence(tmp_path: Path):
    with pytest.raises(ValueError, match="has no rollouts of held_out: make some with"):
        list(report(tmp_path))
    run = evaluated(tmp_path, "cheapest")
    record = run / "evaluation" / "run.json"
    settings = json.loads(record.read_text())
    settings["config"]["evaluation"]["seed"] = 5  # other menus
    record.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="with another menu: evaluate again"):
        list(report(run))
