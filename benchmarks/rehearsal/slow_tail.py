"""The rehearsal's run under providers whose slowest answers take seconds, without and with `rollout.oversample`."""

import statistics
from pathlib import Path

from benchmarks.rehearsal.claims import (
    all_trained,
    billed_as_paid,
    every_step_once,
    no_older,
    servers_ended,
    steps_done,
    trained_once,
)
from benchmarks.rehearsal.providers import slow_tail
from benchmarks.rehearsal.rehearsal import Rehearsal
from orchestra_jax.money.bill import bill

UNTIMED = 2  # first steps, which compile
MOST_STEPS = 16  # no task comes twice in so many, so that a trajectory is known by its task and member
_SETTINGS = ((0, 0), (4, 1))  # rollout.oversample and rollout.max_staleness


class SlowTail(Rehearsal):
    """Two runs of as many steps, one after the other, under the same delays; nobody is killed."""

    def _train(self) -> None:
        for oversample, staleness in _SETTINGS:
            self._run = self._folder / "run" / _name(oversample)
            print(f"Starting two trainers with rollout.oversample={oversample}, {self._steps} steps ...", flush=True)
            self._train_once(oversample, staleness)
        print(f"Means of steps {UNTIMED + 1} to {self._steps}:", flush=True)
        for oversample, _ in _SETTINGS:
            found = means(self._folder / "run" / _name(oversample))
            told = ", ".join(f"{name} {mean:.2f}" for name, mean in found.items())
            print(f"  rollout.oversample={oversample}: {told}", flush=True)

    def _train_once(self, oversample: int, staleness: int) -> None:
        with self._providers(slow_tail(self._seed)) as providers:
            more = (f"rollout.oversample={oversample}", f"rollout.max_staleness={staleness}", "evaluation.questions=0")
            self._wait_to_the_end(self._start(self._steps, *more))
        run, billed = self._run, providers.billed
        self._claims.add("every step is there once", *every_step_once(run, self._steps))
        self._claims.add("no trajectory is trained twice", *trained_once(run))
        self._claims.add("no token is older than it may be", *no_older(run, staleness))
        self._claims.add("every call is paid as it was billed, to the token", *billed_as_paid(billed, bill(run)[0]))
        self._claims.add("every call that was billed was trained", *all_trained(run, billed))
        self._claims_of_data(providers)
        self._claims.add("no server outlives the run", *servers_ended(run))


def means(run: Path) -> dict[str, float]:
    """Return means over the steps after the first ones, by name.

    "seconds a step" are those between the ends of two steps, saving and all. The update's seconds have those of
    compiling in them where a step met a new shape: a second run of the same command finds the programs in the cache.
    """
    rows = steps_done(run)
    ends = [row["seconds"] for row in rows]
    between = [after - before for before, after in zip(ends[UNTIMED - 1 :], ends[UNTIMED:], strict=False)]
    names = {"of rollouts": "time/rollout", "of the update": "time/update", "groups carried over": "groups/carried"}
    later = {name: [row.get(key, 0.0) for row in rows[UNTIMED:]] for name, key in names.items()}
    return {name: statistics.mean(values) for name, values in {"seconds a step": between, **later}.items()}


def _name(oversample: int) -> str:
    return f"oversample-{oversample}"
