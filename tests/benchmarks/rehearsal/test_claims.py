"""A rehearsal's claims fail where they should."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rehearsal.claims import (
    Claims,
    all_trained,
    billed_as_paid,
    every_part,
    every_step_once,
    less,
    no_older,
    servers_ended,
    trained_once,
    updates_taken,
)
from benchmarks.rehearsal.prepared import is_used
from benchmarks.rehearsal.rehearsal import Rehearsal
from benchmarks.rehearsal.replies import DESCRIPTION, OPENINGS
from benchmarks.rehearsal.slow_tail import means
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.evaluation.group_files import StoredGroup, write_groups
from orchestra_jax.types import Preference, Status, Task, ToolSpec, Trajectory, Usage

PAID = {"gpt-5": ["1/8", 100, 2], "python": ["1/1000", 0, 3]}


@pytest.mark.parametrize(
    ("billed", "in_flight", "holds"),
    [
        ({"gpt-5": ["1/8", 100, 2]}, None, True),
        ({"gpt-5": ["1/8", 101, 2]}, None, False),
        ({"gpt-5": ["1/8", 99, 2]}, None, False),  # paid, but never billed
        ({"gpt-5": ["1/8", 100, 2], "qwen3-32b": ["0", 5, 1]}, None, False),
        ({}, None, False),
        ({"gpt-5": ["1/4", 120, 3]}, {"gpt-5": ["1/2", 50, 1]}, True),
        ({"gpt-5": ["1/4", 151, 3]}, {"gpt-5": ["1/2", 50, 1]}, False),
        ({"gpt-5": ["1/8", 100, 2]}, {"gpt-5": ["1/2", 50, 1]}, True),
    ],
)
def test_bills_are_compared_to_the_token(billed: dict, in_flight: dict | None, holds: bool):
    assert billed_as_paid(billed, PAID, in_flight)[0] is holds


def test_nothing_billed_and_nothing_paid_proves_nothing():
    assert not billed_as_paid({}, {})[0]


def test_what_came_on_top():
    assert less({"a": ["3/4", 10, 3], "b": ["1", 1, 1]}, {"a": ["1/4", 4, 2], "b": ["1", 1, 1]}) == {"a": ["1/2", 6, 1]}


def test_steps_updates_and_ages_are_read_from_the_run(tmp_path: Path):
    assert not no_older(tmp_path, 0)[0]
    rows = [{"step": 1, "staleness/max": 0}, {"step": 2, "staleness/max": 0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert every_step_once(tmp_path, 2)[0]
    assert not every_step_once(tmp_path, 3)[0]
    assert no_older(tmp_path, 0)[0]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "staleness/max": 1}\n')
    assert not every_step_once(tmp_path, 2)[0]
    assert not no_older(tmp_path, 0)[0]
    assert no_older(tmp_path, 1)[0]
    log = tmp_path / "server" / "0" / "0.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        '[2026-11-23] INFO: 127.0.0.1:5 - "POST /update_weights_from_disk HTTP/1.1" 200 OK\n'
        '[2026-11-23] INFO: 127.0.0.1:5 - "POST /update_weights_from_disk HTTP/1.1" 400 Bad Request\n'
    )
    assert updates_taken(tmp_path, 2) == [1, 0]
    assert servers_ended(tmp_path)[0]


def test_a_part_that_was_never_played_is_told(tmp_path: Path):
    (tmp_path / "rollouts").mkdir()
    tasks = [Task("t", "?", ("!",), (), Preference("x", ""), "", {"part": part}) for part in ("qa", "qa", "toolscale")]
    members = [(Trajectory(task, 0, 0, (), Status.NO_ANSWER, "", None, False, ()),) for task in tasks]
    groups = [StoredGroup(1, n, each, (0.0,), (0.0,), n == 0) for n, each in enumerate(members)]
    write_groups(tmp_path / "rollouts" / "step-000001.jsonl.gz", groups)
    assert every_part(tmp_path, ["qa", "toolscale"]) == (
        True,
        "2 groups of qa, 1 with a gradient; 1 groups of toolscale, 0 with a gradient",
    )
    assert not every_part(tmp_path, ["qa", "tau2"])[0]


def write_step(folder: Path, step: int, member: Trajectory) -> None:
    group = StoredGroup(step, 0, (member,), (0.0,), (0.0,), True)
    write_groups(folder / "rollouts" / f"step-{step:06d}.jsonl.gz", [group])


def test_what_was_trained_is_counted_and_added_up(tmp_path: Path):
    (tmp_path / "rollouts").mkdir()
    assert not trained_once(tmp_path)[0]  # nothing was trained
    task = Task("t", "?", ("!",), (), Preference("x", ""), "")
    ledger = (
        Usage("orchestrator", "orchestrator", 9, 0, 9, cost_usd=1.0),
        Usage("gpt-5", "judge", 30, 7, 20, cost_usd=0.125),
        Usage("gpt-5", "tool", 40, 0, 10, cost_usd=0.25),
    )
    for step in (1, 2):
        write_step(tmp_path, step, Trajectory(task, 0, step, (), Status.NO_ANSWER, "", None, False, ledger))
    assert trained_once(tmp_path)[0]
    assert all_trained(tmp_path, {"gpt-5": ["9", 200, 4]})[0]  # the ledgers' prices are those of the menus
    assert not all_trained(tmp_path, {"gpt-5": ["9", 200, 5]})[0]
    assert not all_trained(tmp_path, {"gpt-5": ["9", 201, 4]})[0]
    assert not all_trained(tmp_path, {"gpt-5": ["9", 200, 4], "web_search": ["1", 0, 1]})[0]
    write_step(tmp_path, 3, Trajectory(task, 0, 1, (), Status.NO_ANSWER, "", None, False, ()))
    assert not trained_once(tmp_path)[0]


def test_data_that_nobody_used_or_searched_is_told(tmp_path: Path):
    data = tmp_path / "data"
    settings = {
        "tools": {"search": {"index": f"{data}/index"}, "descriptions": f"{data}/descriptions.json"},
        "data": {"preferences_file": f"{data}/preferences.jsonl"},
    }
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "run.json").write_text(json.dumps({"config": settings}))
    menu = (ToolSpec("expert-1", DESCRIPTION, {}), ToolSpec("local_search", "", {}))
    task = Task("t", "?", ("!",), menu, Preference("cost", OPENINGS[0]), "")
    nobody = Trajectory(task, 0, 0, (), Status.NO_ANSWER, "", None, False, ())
    write_step(tmp_path, 1, nobody)
    assert not is_used(tmp_path, data, embedded=9)[0]  # not one search: nothing is known about the index
    write_step(tmp_path, 2, replace(nobody, ledger=(Usage("local_search"),)))
    assert is_used(tmp_path, data, embedded=1)[0]
    assert not is_used(tmp_path, data, embedded=0)[0]  # it was searched by words
    assert not is_used(tmp_path, tmp_path / "other", embedded=1)[0]


def test_means_are_of_the_steps_after_the_first(tmp_path: Path):
    rollouts, ends = [9.0, 9.0, 1.0, 2.0], [50.0, 70.0, 73.0, 78.0]
    rows = [
        {"step": number, "seconds": end, "time/rollout": rollout, "time/update": 1.0, "groups/carried": number}
        for number, (end, rollout) in enumerate(zip(ends, rollouts, strict=True), 1)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert means(tmp_path) == {
        "seconds a step": 4.0, "of rollouts": 1.5, "of the update": 1.0, "groups carried over": 3.5,
    }  # fmt: skip


def test_one_claim_that_fails_is_enough():
    claims = Claims()
    assert not claims.all_hold
    claims.add("two and two are four", True, "4")
    assert claims.all_hold
    claims.add("and five", False, "4")
    assert not claims.all_hold


def test_a_folder_with_somebody_elses_run_is_left_alone(tmp_path: Path):
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="is of no rehearsal, which would replace it: choose another --folder"):
        Rehearsal(["+experiment=hle"], tmp_path, steps=3, seed=0, patience_s=1.0).rehearse()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
