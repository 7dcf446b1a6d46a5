"""The task stream: every task once per epoch, another order each epoch, exact replay, slices that add up."""

import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from grain.checkpoint import CheckpointRestore, CheckpointSave
from orbax import checkpoint as ocp

from orchestra_jax.data.pipeline import TaskIterator, task_iterator
from orchestra_jax.data.preference_pairs import OWN
from orchestra_jax.data.sources import Question
from orchestra_jax.types import Preference, Task, ToolSpec

PREFERENCE = Preference("accuracy", "Be right.")
QUESTIONS = [Question(f"q{i}", f"question {i}", (str(i),)) for i in range(300)]
TASKS = [question.task((), PREFERENCE) for question in QUESTIONS]
MENU = (ToolSpec("t", "d", {"type": "object"}, price_usd=0.0, local=True), ToolSpec("u", "d", {"type": "object"}))


def ids(iterator: TaskIterator, batches: int) -> list[list[str]]:
    return [[task.id for task in batch] for batch in islice(iterator, batches)]


def test_epochs_are_complete_and_differ():
    stream = [task.id for batch in islice(task_iterator(TASKS, seed=1, batch_size=16), 57) for task in batch]
    epochs = [stream[start : start + 300] for start in (0, 300, 600)]
    assert all(set(epoch) == {task.id for task in TASKS} for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != [task.id for task in TASKS]


def test_the_seed_is_the_order():
    first, again, other = (ids(task_iterator(TASKS, seed=seed, batch_size=8), 60) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    second_epoch = [identity for batch in first for identity in batch][300:380]
    assert second_epoch != [identity for batch in other for identity in batch][:80]


def test_sources_mix_by_weight():
    large = [replace(task, id=f"large-{task.id}") for task in TASKS]
    small = [replace(task, id=f"small-{n}") for n, task in enumerate(TASKS[:40])]
    mixed = task_iterator(large, small, seed=1, batch_size=20, weights=(3, 1))
    stream = [identity for batch in ids(mixed, 20) for identity in batch]
    assert sum(identity.startswith("small") for identity in stream) == pytest.approx(len(stream) / 4, abs=1)
    assert set(stream[:160]) >= {f"small-{n}" for n in range(40)}  # every item once per epoch of its source
    state = json.loads(json.dumps(mixed.get_state()))
    wanted = ids(mixed, 5)
    again = task_iterator(large, small, seed=1, batch_size=20, weights=(3, 1))
    again.set_state(state)
    assert ids(again, 5) == wanted


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 0.0), (1.0, -2.0)])
def test_weights_that_make_no_sense(weights):
    with pytest.raises(ValueError, match="one positive number for each of 2"):
        task_iterator(TASKS, TASKS, seed=1, batch_size=4, weights=weights)


def test_state_replays_exactly():
    iterator = task_iterator(TASKS, seed=3, batch_size=16)
    ids(iterator, 25)  # in the second epoch
    state = json.loads(json.dumps(iterator.get_state()))
    wanted = ids(iterator, 30)
    fresh = task_iterator(TASKS, seed=3, batch_size=16)
    fresh.set_state(state)
    assert ids(fresh, 30) == wanted
    iterator.set_state(state)
    assert ids(iterator, 30) == wanted


def test_orbax_saves_and_restores_it(tmp_path):
    iterator = task_iterator(TASKS, seed=3, batch_size=4)
    ids(iterator, 5)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=ocp.args.Composite(data=CheckpointSave(iterator)))
        manager.wait_until_finished()
        wanted = ids(iterator, 3)
        fresh = task_iterator(TASKS, seed=3, batch_size=4)
        manager.restore(0, args=ocp.args.Composite(data=CheckpointRestore(fresh)))
    assert ids(fresh, 3) == wanted


def build(question: Question, rng: np.random.Generator) -> Task:
    return question.task(MENU, OWN.draw(MENU, rng))


def test_build_draws_anew_in_every_epoch_and_replays():
    iterator = task_iterator(QUESTIONS, seed=1, batch_size=300, build=build)
    first, second = ({task.id: task for task in next(iterator)} for _ in range(2))
    differing = sum(first[name].preference != second[name].preference for name in first)
    assert differing > 200
    fresh = task_iterator(QUESTIONS, seed=1, batch_size=300, build=build)
    fresh.set_state({"next_index": 1} if "next_index" in fresh.get_state() else fresh.get_state())
    assert {task.id: task for task in next(fresh)} == second
    half = task_iterator(QUESTIONS, seed=1, batch_size=150, build=build)  # a draw depends on the place, not the batch
    assert all(first[task.id] == task for task in next(half))


def test_errors():
    with pytest.raises(ValueError, match="must be positive"):
        task_iterator(TASKS, seed=0, batch_size=0)
    with pytest.raises(ValueError, match="source is empty"):
        task_iterator([], seed=0, batch_size=1)
