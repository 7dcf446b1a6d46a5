"""Rehearses a run: two trainers with a real SGLang server each, experts over HTTP, a kill, a resumption, and the books.

Everything is what `experiments/train.py` runs, started as a user starts it; only `+rehearsal=cpu` makes it small, and the
providers are stand-ins, since an answer of GPT-5 costs money.
"""

import os
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestra_jax.money.budgets import Spending
from orchestra_jax.money.prices import PriceList
from orchestra_jax.processes.lifeline import GONE
from orchestra_jax.rehearsal.processes import ROOT, Trainers
from orchestra_jax.rehearsal.providers import Providers
from orchestra_jax.rehearsal.questions import write_questions
from orchestra_jax.rollout.event_loop import LoopThread
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.summary import read_summary

PROCESSES = 2
DEVICES = 2  # virtual ones of each process
_POLL_S = 0.5
_ENDS_S = 60.0  # a lost process ends the others within a minute
_LOCAL = ("python", "local_search")  # tools of this machine: nobody bills them
# What SGLang's server logs for an update that it took.
_UPDATED = re.compile(r"POST /update_weights_from_\w+ HTTP/1.1\" 200")


@dataclass(frozen=True)
class Claim:
    """What was looked at, whether it holds, and the figures."""

    text: str
    holds: bool
    figures: str


class Rehearsal:
    """One rehearsal in a folder; what an earlier one left there is used again, as a run resumes.

    Args:
        overrides: of `experiments/train.py`, the experiment first.
        folder: everything is written there.
        kill: whether a trainer is killed in the middle and the same command given again.
        patience_s: for all of it.
    """

    def __init__(self, overrides: Sequence[str], folder: Path, *, kill: bool = True, patience_s: float = 1800.0) -> None:
        self._overrides, self._folder, self._kill = list(overrides), folder.absolute(), kill
        self._run = self._folder / "run"
        self._deadline = time.monotonic() + patience_s
        self._claims: list[Claim] = []

    def run(self) -> bool:
        """Prints what happens and the claims at the end; whether all of them hold.

        Raises:
            ConfigError: there are no questions to ask.
        """
        questions = write_questions(self._folder / "questions", os.environ)
        prices = PriceList.load(ROOT / "conf" / "pricing" / "paper_train.yaml")
        with LoopThread() as loop:
            providers = loop.run(Providers(prices).__aenter__())
            try:
                self._environment = {
                    **questions,
                    "REHEARSAL": str(self._folder),
                    "PROVIDERS_URL": providers.url,
                    "EXPERTS_URL": f"{providers.url}/v1",
                    "TAVILY_API_KEY": "rehearsal",
                }
                if not self._make_policy():
                    return False
                before = dict(providers.books.by_name)
                self._train(providers)
                self._look(providers, before)
            finally:
                loop.run(providers.__aexit__())
        return self._report()
