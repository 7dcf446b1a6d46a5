"""Rehearses a run: two trainers with a real SGLang server each, experts over HTTP, a kill, and the same command again.

Everything is what `experiments/train.py` runs, started as a user starts it. Only `+rehearsal=cpu` makes it small, and
the providers are stand-ins, as an answer of GPT-5 costs money.
"""

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.rehearsal.claims import (
    Claims,
    billed_as_paid,
    every_part,
    every_step_once,
    less,
    no_older,
    servers_ended,
    steps_done,
    updates_taken,
)
from benchmarks.rehearsal.policy import make_policy
from benchmarks.rehearsal.prepared import NotPrepared, is_used, prepare
from benchmarks.rehearsal.processes import Trainers
from benchmarks.rehearsal.providers import Providers
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.io.shipped import CONF
from orchestra_jax.money import price_files
from orchestra_jax.money.bill import added, bill
from orchestra_jax.processes.lifeline import GONE

TRAINERS = 2
_DEVICES = 2  # virtual ones of each
_KILLED_AFTER = 2  # steps
_ENDLESS = 10_000  # steps of the run that is killed: it must not end before
_ENDS_S = 60.0  # a lost process ends the others within a minute


class RehearsalFailed(Exception):  # noqa: N818  an event
    """A trainer did not do what has to be done before anything can be looked at."""


class Rehearsal:
    """One rehearsal in a folder, in the place of an earlier one.

    Args:
        overrides: of `experiments/train.py`, the experiment first.
        steps: of the run, or one more than were done when it was killed.
        seed: of who is killed, and when.
        patience_s: for each start of the trainers.
    """

    def __init__(self, overrides: Sequence[str], folder: Path, *, steps: int, seed: int, patience_s: float) -> None:
        self._seed, self._random = seed, random.Random(seed)
        self._experiment, *self._others = overrides
        self._folder, self._run = folder.absolute(), folder.absolute() / "run"
        self._steps, self._patience_s = steps, patience_s
        self._claims = Claims()
        self._files: Mapping[str, str] = {}  # variables of the trainers
        self._environment: Mapping[str, str] = {}

    def rehearse(self) -> bool:
        """Prints what happens, and every claim about it; returns whether all of them hold.

        Raises:
            ConfigError: there are no questions to ask, or no tokenizer; or the folder holds a run of somebody else.
            RehearsalFailed: with the end of a trainer's log.
        """
        began = time.monotonic()
        made = [self._folder / name for name in ("run", "logs", "copies", "data")]
        if not (self._folder / "tokenizer").exists() and (foreign := [path for path in made if path.exists()]):
            raise ConfigError(
                f"{str(foreign[0])!r} is of no rehearsal, which would replace it: choose another --folder."
            )
        for old in made:
            shutil.rmtree(old, ignore_errors=True)
        data = os.environ.get("ORCHESTRA_DATA", "data")
        make_policy(Path(os.environ.get("QWEN3_TOKENIZER", f"{data}/qwen3-tokenizer")), self._folder)
        with self._providers() as providers:
            try:
                self._files = prepare(self._folder, providers, self._claims, self._patience_s)
            except NotPrepared as error:
                raise RehearsalFailed(str(error)) from None
        self._train()
        print(f"{(time.monotonic() - began) / 60:.1f} minutes; logs and the run are in {self._folder}.", flush=True)
        return self._claims.all_hold

    @contextmanager
    def _providers(self, delays: Iterator[float] | None = None) -> Iterator[Providers]:
        """Stand-ins with new books, which the trainers that start in the block ask."""
        with LoopThread() as loop:
            providers = Providers(price_files.load(CONF / "pricing" / "paper_train.yaml"), delays)
            loop.run(providers.__aenter__())
            self._environment = {
                **self._files,
                "EMBEDDER_URL": f"{providers.url}/v1",
                "REHEARSAL": str(self._folder),
                "PROVIDERS_URL": providers.url,
                "EXPERTS_URL": f"{providers.url}/v1",
                "TAVILY_API_KEY": "rehearsal",
            }
            try:
                yield providers
            finally:
                loop.run(providers.__aexit__())

    def _train(self) -> None:
        with self._providers() as providers:
            self._train_twice(providers)

    def _train_twice(self, providers: Providers) -> None:
        print(f"Starting {TRAINERS} trainers with an SGLang server each ...", flush=True)
        trainers = self._start(_ENDLESS)
        try:
            self._wait_for(lambda: len(steps_done(self._run)) >= _KILLED_AFTER, trainers)
            print(trainers.said(lines=200), flush=True)
            last = steps_done(self._run)[-1]
            time.sleep(self._random.uniform(0, last["time/step"]))
            self._kill(trainers)
        finally:
            trainers.stop()
        self._claims.add("no server outlives its trainer", *servers_ended(self._run))
        billed, (paid, in_flight) = providers.billed, bill(self._run)
        self._claims.add("the killed run's bill holds all that was billed", *billed_as_paid(billed, paid, in_flight))
        done = len(steps_done(self._run))

        steps = max(self._steps, done + 1)
        print(f"The same command again, with steps={steps} ...", flush=True)
        updated = updates_taken(self._run, TRAINERS)
        trainers = self._start(steps)
        self._wait_to_the_end(trainers)
        print(trainers.said(lines=60), flush=True)
        taken = [now - old for now, old in zip(updates_taken(self._run, TRAINERS), updated, strict=True)]
        # One when they start, and one a step; the step after whose line the trainer was killed may not have been saved.
        left = 1 + steps - done
        both = taken[0] in (left, left + 1) and len(set(taken)) == 1
        self._claims.add("both servers took every update", both, f"{taken}, with {left - 1} steps to go at least")
        self._claims.add("every step is there once", *every_step_once(self._run, steps))
        config = json.loads((self._run / "run.json").read_text())["config"]
        if parts := config["env"]["options"].get("parts"):
            self._claims.add("every part of the mixture was played", *every_part(self._run, parts))
        self._claims.add("no token is older than it may be", *no_older(self._run, config["rollout"]["max_staleness"]))
        self._claims_of_data(providers)
        billed, paid = less(providers.billed, billed), less(bill(self._run)[0], added([paid, in_flight]))
        self._claims.add("every call is paid as it was billed, to the token", *billed_as_paid(billed, paid))
        self._claims.add("no server outlives the run", *servers_ended(self._run))

    def _claims_of_data(self, providers: Providers) -> None:
        used = is_used(self._run, self._folder / "data", providers.embedded)
        self._claims.add("index, wordings and descriptions are the prepared ones", *used)

    def _kill(self, trainers: Trainers) -> None:
        """SIGKILL to one trainer, and how the other takes it."""
        victim = self._random.randrange(TRAINERS)
        print(f"kill -9 of trainer {victim} after step {len(steps_done(self._run))} ...", flush=True)
        trainers.kill(victim)
        killed = time.monotonic()
        status = trainers.wait(_ENDS_S)[1 - victim]
        self._claims.add(
            "a lost trainer ends the other within a minute, with one sentence",
            status == GONE and f"Process {victim} of {TRAINERS} is gone" in trainers.said(1 - victim),
            f"status {status} after {time.monotonic() - killed:.0f} s",
        )

    def _start(self, steps: int, *more: str) -> Trainers:
        settings = [
            self._experiment,
            "+rehearsal=cpu",
            *self._others,
            f"output_dir={self._run}",
            f"steps={steps}",
            *more,
        ]
        logs = self._folder / "logs"
        return Trainers(settings, logs=logs, environment=self._environment, count=TRAINERS, devices=_DEVICES)

    def _wait_to_the_end(self, trainers: Trainers) -> None:
        try:
            statuses = trainers.wait(self._patience_s)
        finally:
            trainers.stop()  # Ctrl-C is not theirs: they are in sessions of their own
        if any(statuses):
            raise RehearsalFailed(f"The trainers ended with {statuses}. {_ends(trainers, len(statuses))}")

    def _wait_for(self, reached: Callable[[], bool], trainers: Trainers) -> None:
        deadline = time.monotonic() + self._patience_s
        while not reached():
            if not trainers.alive or time.monotonic() > deadline:
                raise RehearsalFailed(f"Step {_KILLED_AFTER} was not reached. {_ends(trainers, TRAINERS)}")
            time.sleep(0.5)


def _ends(trainers: Trainers, count: int) -> str:
    return "\n".join(f"The end of trainer {index}'s log:\n{trainers.said(index)}" for index in range(count))
