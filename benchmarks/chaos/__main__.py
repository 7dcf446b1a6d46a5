"""Faults by the thousand, and small real runs that are killed, starved and lied to: what holds, and what does not.

    python -m benchmarks.chaos                                   # 1,200 faults and a soak of 200 runs: `make chaos`
    python -m benchmarks.chaos --faults 300 --runs 0 --only "damaged bills" "odd rows"
    python -m benchmarks.chaos --only snippets --numbers 17      # one fault again
    python -m benchmarks.chaos --faults 0 --numbers 40 76        # two runs again

faults    drawn from the seed, by kind. A fault holds where its input is used, refused with one sentence of ours, or
          tried again: no other exception, no trace, no hang, and money as it was billed or its worst case.
soak      `experiments/train.py` with a few steps of a tiny policy, its experts, judge and search behind a real server
          with books of its own. Each run has one of nine fates, from kill -9 to a disk that fills up; the same command
          is given until it ends. It must end, stop or refuse with a sentence; in the end its bill is the server's, to
          the token, or above it where calls were cut short, and it leaves nothing but its folder. Needs root or
          user namespaces, and the tokenizer of Qwen3 (ORCHESTRA_DATA or QWEN3_TOKENIZER).

Hostile snippets need a sandbox that isolates (docs/sandbox.md). Exit status 1 if anything did not hold.
"""

import argparse
import asyncio
import faulthandler
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.chaos.answers import Experts, Searches, Wire
from benchmarks.chaos.faults import Kind, Tried, try_kind
from benchmarks.chaos.files import Bills, DamagedCheckpoints, Records, Rows, Settings
from benchmarks.chaos.foreign import FOREIGN
from benchmarks.chaos.snippets import Requests, Snippets
from benchmarks.chaos.soak import EVENTS, Outcome, soak, totals
from benchmarks.chaos.texts import Injections, Turns
from benchmarks.short import parse

KINDS: tuple[type[Kind], ...] = (
    Snippets, Requests, Experts, Searches, Wire, Injections, Turns, DamagedCheckpoints, Bills, Records, Settings, Rows,
    *FOREIGN,
)  # fmt: skip


def counts(kinds: Sequence[type[Kind]], faults: int) -> dict[type[Kind], int]:
    """How many of so many faults are of each kind; at least one is."""
    whole = sum(kind.share for kind in kinds)
    return {kind: max(1, -int(-faults * kind.share // whole)) for kind in kinds} if faults else {}


async def try_all(args: argparse.Namespace, console: Console) -> list[Tried]:
    """Tries the faults that the command line asks for."""
    chosen = [kind for kind in KINDS if not args.only or kind.name in args.only]
    numbers = {kind: range(count) for kind, count in counts(chosen, args.faults).items()}
    if args.numbers and args.faults:
        numbers = dict.fromkeys(chosen, args.numbers)
    found = []
    with Progress(console=console, disable=not sys.stderr.isatty()) as progress:
        for kind, these in numbers.items():
            task = progress.add_task(kind.name, total=len(these))
            faulthandler.dump_traceback_later(1800, exit=True)  # what hangs without giving way to the loop
            found.append(await try_kind(kind(), args.seed, these, lambda task=task: progress.advance(task)))
            faulthandler.cancel_dump_traceback_later()
            if not sys.stderr.isatty():
                console.print(f"{kind.name}: {found[-1].held} of {found[-1].tried} held")
    return found


def run_soak(args: argparse.Namespace, console: Console) -> list[Outcome]:
    """The runs that the command line asks for."""
    with Progress(console=console, disable=not sys.stderr.isatty()) as progress:
        numbers = args.numbers or range(args.runs)
        task = progress.add_task("soak", total=len(numbers))

        def told(outcome: Outcome) -> None:
            progress.advance(task)
            if outcome.problem or not sys.stderr.isatty():
                said = f"run {outcome.number}, {outcome.event}: {outcome.events} {outcome.ends} {outcome.problem or ''}"
                console.print(said, markup=False, highlight=False)

        return soak(args.seed, numbers, args.workers, args.folder, args.minutes, told)


def fault_table(found: Sequence[Tried]) -> Table:
    """Tried and held by kind, and the worst example of what did not hold."""
    table = Table(title="faults")
    table.add_column("kind")
    for heading in ("tried", "held"):
        table.add_column(heading, justify="right")
    table.add_column("worst that did not hold", overflow="fold")
    for kind in found:
        # The longest story is the one that says most.
        table.add_row(kind.name, str(kind.tried), str(kind.held), max(kind.worst, key=len, default=""))
    table.add_row("all", str(sum(kind.tried for kind in found)), str(sum(kind.held for kind in found)), "")
    return table


def soak_table(outcomes: Sequence[Outcome]) -> Table:
    """Runs by what befell them."""
    table = Table(title="soak")
    columns = ("runs", "held", "starts", "killed", "stopped", "refused", "bill equal", "bill above")
    table.add_column("event")
    for heading in columns:
        table.add_column(heading, justify="right")
    table.add_column("worst that did not hold", overflow="fold")
    for event in (*EVENTS, "all"):
        some = [outcome for outcome in outcomes if event in (outcome.event, "all")]
        seen = totals(some) + Counter(runs=len(some), held=sum(outcome.problem is None for outcome in some))
        worst = max(
            (f"run {outcome.number}: {outcome.problem}" for outcome in some if outcome.problem), key=len, default=""
        )
        table.add_row(event, *(str(seen[column]) for column in columns), worst if event != "all" else "")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn (default 0)")
    parser.add_argument("--faults", type=int, default=1200, help="about so many, of all kinds together (default 1200)")
    names = [kind.name for kind in KINDS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="KIND", help=f"of: {', '.join(names)}")
    parser.add_argument(
        "--numbers", type=int, nargs="+", help="only these faults of each kind, or runs with --faults 0"
    )
    parser.add_argument("--runs", type=int, default=200, help="of the soak (default 200)")
    parser.add_argument("--workers", type=int, default=2, help="runs at the same time (default 2)")
    parser.add_argument("--minutes", type=float, default=120.0, help="after which no run is begun (default 120)")
    parser.add_argument(
        "--folder", type=Path, default=Path("outputs/chaos"), help="of the soak (default outputs/chaos)"
    )
    args = parse(parser, "--faults", "36", "--runs", "0")
    console = Console(width=None if sys.stdout.isatty() else 160)
    began = time.monotonic()
    tried = asyncio.run(try_all(args, console))
    wanted = 0 if args.numbers and args.faults else len(args.numbers or range(args.runs))
    outcomes = run_soak(args, console) if wanted else []
    if tried:
        console.print(fault_table(tried))
    if outcomes:
        console.print(soak_table(outcomes))
        seen = totals(outcomes)
        killed = sum(outcome.killed_in_a_call for outcome in outcomes)
        console.print(
            f"{len(outcomes)} of {wanted} runs; {seen['requests']} requests, {killed} billed ones under way at a "
            f"kill -9, {seen['answers lost']} answers lost."
        )
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    console.print(f"seed {args.seed}, {(time.monotonic() - began) / 60:.1f} minutes, {machine}")
    broken = [story for kind in tried for story in kind.worst]
    broken += [f"run {outcome.number}: {outcome.problem}" for outcome in outcomes if outcome.problem]
    for story in broken:
        console.print(story, markup=False, highlight=False)
    return 1 if broken or len(outcomes) < wanted else 0


if __name__ == "__main__":
    sys.exit(main())
