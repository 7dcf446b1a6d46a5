"""The claims of a rehearsal, and the checks of each."""

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path

from orchestra_jax.evaluation.decoding import read_groups
from orchestra_jax.money.bill import State, added
from orchestra_jax.training.loggers.jsonl import FILE_NAME as METRICS
from orchestra_jax.training.loggers.jsonl import read_metrics

_OF_THIS_MACHINE = ("python", "local_search")  # tools that nobody bills
_UPDATED = re.compile(r'POST /update_weights_from_\w+ HTTP/1\.1" 200')  # as SGLang logs it
_SERVERS_END_S = 30.0


class Claims:
    """Collects and prints them."""

    def __init__(self) -> None:
        self._held: list[bool] = []

    def add(self, claim: str, holds: bool, figures: str) -> None:
        """Prints one."""
        print(f"[{'holds' if holds else 'FAILS'}] {claim}: {figures}", flush=True)
        self._held.append(holds)

    @property
    def all_hold(self) -> bool:
        """True if there is one, and none that fails."""
        return bool(self._held) and all(self._held)


def steps_done(run: Path) -> list[dict[str, float]]:
    """The lines of metrics of a run that may be under way."""
    return read_metrics(run) if (run / METRICS).exists() else []


def every_step_once(run: Path, steps: int) -> tuple[bool, str]:
    """Every step has its line of metrics."""
    numbers = [int(row["step"]) for row in steps_done(run)]
    return numbers == list(range(1, steps + 1)), f"steps {numbers}"


def no_older(run: Path, most: int) -> tuple[bool, str]:
    """Every token was sampled with the weights of its step, or at most `most` versions before, as the servers say."""
    ages = [row.get("staleness/max") for row in steps_done(run)]
    holds = bool(ages) and all(age is not None and age <= most for age in ages)
    return holds, f"oldest token by step, in versions: {ages}"


def trained_once(run: Path) -> tuple[bool, str]:
    """No trajectory was given to two updates, and every one of a step's groups to one."""
    trained = Counter((one.task.id, one.member) for group in read_groups(run / "rollouts") for one in group.members)
    twice = sum(count > 1 for count in trained.values())
    return bool(trained) and not twice, f"{trained.total()} trajectories, {twice} of them twice"


def all_trained(run: Path, billed: State) -> tuple[bool, str]:
    """The ledgers of all trajectories that a run trained on hold every call that was billed, token by token.

    Not its dollars: a task's menu has prices of its own, by which it is rewarded.
    """
    ledgers = added(
        {row.name: ["0", row.prompt_tokens + row.completion_tokens, 1]}
        for group in read_groups(run / "rollouts")
        for one in group.members
        for row in one.ledger
        if row.role != "orchestrator"
    )
    theirs = {name: ["0", tokens, calls] for name, (_, tokens, calls) in billed.items()}
    holds, text = billed_as_paid(theirs, ledgers)
    return holds, text.replace(" for $0.000000", "").replace("paid", "in ledgers")


def every_part(run: Path, parts: Iterable[str]) -> tuple[bool, str]:
    """Tasks of every part of the run's mixture were played in training."""
    groups = list(read_groups(run / "rollouts"))
    played = Counter(group.task.extra.get("part") for group in groups)
    kept = Counter(group.task.extra.get("part") for group in groups if group.kept)
    told = [f"{played[part]} groups of {part}, {kept[part]} with a gradient" for part in parts]
    return all(played[part] for part in parts), "; ".join(told)


def updates_taken(run: Path, processes: int) -> list[int]:
    """How many weight updates each process's server took until now, by its own log."""
    logs = [run / "server" / str(index) / "0.log" for index in range(processes)]
    return [len(_UPDATED.findall(log.read_text(errors="replace"))) if log.exists() else 0 for log in logs]


def servers_ended(run: Path) -> tuple[bool, str]:
    """No process serves the run's model any more."""
    deadline = time.monotonic() + _SERVERS_END_S
    while (left := _serving(run)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return not left, f"{len(left)} left"


def billed_as_paid(billed: State, paid: State, in_flight: State | None = None) -> tuple[bool, str]:
    """By name, dollars, tokens and calls that the providers billed are those that the run's own bill holds as paid.

    What a killed process had `in_flight` may have been billed, up to its worst case.
    """
    theirs, least, open_calls = _outside(billed), _outside(paid), _outside(in_flight or {})
    holds = all(
        low <= amount <= low + room
        for name in theirs.keys() | least.keys()
        for low, amount, room in zip(*(each.get(name, _NOTHING) for each in (least, theirs, open_calls)), strict=True)
    )
    text = f"{_words(theirs)} billed, {_words(least)} paid"
    return holds and bool(theirs), text + (f", at worst {_words(open_calls)} in flight" if open_calls else "")


def less(state: State, before: State) -> State:
    """Return what came on top of `before`."""
    return {
        name: [str(Fraction(usd) - Fraction(old[0])), tokens - old[1], calls - old[2]]
        for name, (usd, tokens, calls) in state.items()
        if calls > (old := before.get(name, ["0", 0, 0]))[2]
    }


_NOTHING = (Fraction(0), 0, 0)


def _outside(state: State) -> dict[str, tuple[Fraction, int, int]]:
    return {
        name: (Fraction(usd), tokens, calls)
        for name, (usd, tokens, calls) in state.items()
        if name not in _OF_THIS_MACHINE
    }


def _words(amounts: Mapping[str, tuple[Fraction, int, int]]) -> str:
    usd, tokens, calls = (sum(amount[unit] for amount in amounts.values()) for unit in range(3))
    return f"{calls} calls of {tokens} tokens for ${float(usd):.6f}"


def _serving(run: Path) -> list[Path]:
    """Processes whose command line names the model folder of the run's servers."""
    named, found = str(run / "server" / "model").encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if named in (process / "cmdline").read_bytes():
                found.append(process)
        except OSError:
            pass  # it has ended
    return found
