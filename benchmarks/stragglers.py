"""Steps with a slow tail of tools, with and without going on with slow groups: seconds a step, and every bill.

    .venv/bin/python benchmarks/stragglers.py
    .venv/bin/python benchmarks/stragglers.py --oversample 4 8 --staleness 1 2 --slow-seconds 5 --one-in 20

Trains in the quickstart's world, once with rollout.oversample=0 and once for each --oversample and --staleness, one run
after the other, each in a process of its own. Everything is the real part but for the time of tools: a call sleeps
--slow-seconds if a hash of its task and tool says so, one call in --one-in, else it answers at once. The same calls are
slow in all runs. A policy of random weights makes them: `algorithm.enumerate_calls` gives every trajectory its first
call, and what follows is sampled. The learning rate is 1e-12, so that all runs have the same policy and their bills can
be compared.

Seconds a step are the mean between the ends of two steps; the first steps, which compile, are left out. A step without
oversampling waits for its slowest call; with it, a group has the time of N + 1 steps (rollout.max_staleness).

The tools keep books: a line when a call begins, and one with its dollars when it has answered. A call that fails for
reasons of the machine is made again, as in every run. The exit status is 1 unless in each run every other call that
began has answered, the books equal the ledgers of the trained trajectories call by call, no trajectory was trained
twice, and all runs have the same trajectories and the same bill.
"""

import argparse
import asyncio
import hashlib
import json
import statistics
import sys
import tempfile
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

from peer import ENVIRONMENT, run_logged, train_here
from rich.table import Table
from short import SMALL, parse, table, wide_console

from orchestra_jax.envs.quickstart.environment import QuickstartEpisode
from orchestra_jax.evaluation.decoding import read_groups
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.types import InfrastructureError, ToolCall, ToolResult

BOOKS = "books.jsonl"
SETTINGS = (
    "warm_start.steps=0", "evaluation.questions=0", "evaluation.swap_questions=0", "checkpoint.every=1000000",
    "checkpoint.export=false", "logger.names=[jsonl]", "logger.trajectories=0",
    "algorithm.enumerate_calls=true", "algorithm.loss.importance=tis", "algorithm.loss.importance_level=sequence",
    "algorithm.loss.importance_cap=9", "algorithm.advantage.centre=false", "algorithm.group_size=4",
    "algorithm.optimizer.learning_rate=1e-12", "rollout.lockstep=false", "rollout.limits.max_new_tokens=16",
)  # fmt: skip


def _train(books: Path, slow_s: float, one_in: int, overrides: list[str]) -> None:
    """What a run's own process does: experiments/train.py, with slow tools that keep books."""
    step = QuickstartEpisode.step

    def note(*line: Any) -> None:
        with books.open("a") as file:
            file.write(json.dumps(line) + "\n")

    async def slow_step(self: QuickstartEpisode, call: ToolCall) -> ToolResult:
        note("began", self.task.id, call.name)
        drawn = hashlib.blake2b(f"{self.task.id} {call.name}".encode(), digest_size=8).digest()
        if int.from_bytes(drawn) % one_in == 0:
            await asyncio.sleep(slow_s)
        try:
            result = await step(self, call)
        except InfrastructureError:  # such as the sandbox's time-out while the event loop compiled: it is tried again
            note("failed", self.task.id, call.name)
            raise
        note("answered", self.task.id, call.name, [row.cost_usd for row in result.usage])
        return result

    QuickstartEpisode.step = slow_step  # type: ignore[method-assign]
    train_here(overrides)


def _run(folder: Path, args: argparse.Namespace, oversample: int, staleness: int) -> None:
    """Train once; the output goes to a log beside the folder. Raises RuntimeError if the run fails."""
    folder.mkdir(parents=True)
    groups = args.groups + oversample
    overrides = [
        f"output_dir={folder}", f"steps={args.steps}", f"algorithm.tasks_per_step={args.groups}",
        f"rollout.oversample={oversample}", f"rollout.max_staleness={staleness}", f"rollout.slots={4 * groups}",
        *SETTINGS, *args.overrides,
    ]  # fmt: skip
    tool = [str(folder / BOOKS), str(args.slow_seconds), str(args.one_in)]
    command = [sys.executable, __file__, "--train", *tool, *overrides]
    run_logged(command, folder.with_name(f"{folder.name}.log"), ENVIRONMENT, args.limit_s)


def _calls(books: list[list[Any]]) -> tuple[Counter[Any], Counter[Any]]:
    """Return the calls that began and were not to be tried again, and those that were answered, with their dollars."""
    began, failed = (
        Counter((task, tool) for what, task, tool, *_ in books if what == kind) for kind in ("began", "failed")
    )
    paid = Counter((task, tool, tuple(costs[0])) for what, task, tool, *costs in books if what == "answered")
    return began - failed, paid


def _read(folder: Path, skip: int) -> dict[str, Any]:
    """Return the figures of one run, and what is wrong with its bills."""
    rows = read_metrics(folder)
    ends = [row["seconds"] for row in rows]
    books = [json.loads(line) for line in (folder / BOOKS).read_text().splitlines()]
    began, paid = _calls(books)
    members = [member for group in read_groups(folder / "rollouts") for member in group.members]
    ledger = Counter(
        (member.task.id, call.name, tuple(row.cost_usd for row in result.usage))
        for member in members
        for turn in member.turns
        for call, result in zip(turn.calls, turn.results, strict=True)
    )
    trained = Counter((member.task.id, member.member) for member in members)
    problems = []
    if Counter((task, tool) for task, tool, _ in paid.elements()) != began:
        problems.append("a call that began was cut off")
    if paid != ledger:
        problems.append("the books differ from the ledgers of the trained trajectories")
    if max(trained.values()) > 1:
        problems.append("a trajectory was trained twice")
    return {
        "seconds": statistics.mean(ends[n] - ends[n - 1] for n in range(skip, len(ends))),
        "rollout": statistics.mean(row["time/rollout"] for row in rows[skip:]),
        "carried": statistics.mean(row.get("groups/carried", 0.0) for row in rows[skip:]),
        "restarted": sum(row.get("groups/restarted", 0.0) for row in rows),
        "oldest": max(row["staleness/max"] for row in rows),
        "trajectories": len(members),
        "trained": trained,
        "calls": began.total(),
        "paid": paid,
        "usd": sum((Fraction(cost) for *_, costs in paid.elements() for cost in costs), Fraction()),
        "problems": problems,
    }


def _table(found: dict[tuple[int, int], dict[str, Any]], args: argparse.Namespace) -> Table:
    title = (
        f"{args.steps} steps of {args.groups} groups, one call in {args.one_in} takes {args.slow_seconds:g} s; "
        f"the first {args.skip} steps are not timed"
    )
    made = table(title, [], [
        "oversample", "staleness", "s/step", "rollout s", "carried/step", "oldest", "trained", "calls", "dollars",
    ])  # fmt: skip
    for (oversample, staleness), each in found.items():
        made.add_row(
            str(oversample), str(staleness), f"{each['seconds']:.2f}", f"{each['rollout']:.2f}",
            f"{each['carried']:.1f}", f"{each['oldest']:.0f}", str(each["trajectories"]), str(each["calls"]),
            f"{float(each['usd']):.6f}",
        )  # fmt: skip
    return made


def main() -> int:
    if sys.argv[1:2] == ["--train"]:
        _train(Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16, help="of every run (default 16)")
    parser.add_argument("--groups", type=int, default=8, help="of a step, of 4 trajectories each (default 8)")
    parser.add_argument("--oversample", nargs="+", type=int, default=[4], help="groups more, beside none (default 4)")
    parser.add_argument("--staleness", nargs="+", type=int, default=[1, 2], help="with them (default 1 2)")
    parser.add_argument("--slow-seconds", type=float, default=4.0, help="of a slow call (default 4)")
    parser.add_argument("--one-in", type=int, default=24, help="calls of which one is slow (default 24)")
    parser.add_argument("--skip", type=int, default=4, help="first steps that are not timed (default 4)")
    parser.add_argument("--overrides", nargs="+", default=[], metavar="KEY=VALUE", help="of train.py, for all runs")
    parser.add_argument("--limit-s", type=float, default=1800.0, help="most seconds of one run (default 1800)")
    args = parse(
        parser, *("--steps", "2", "--skip", "1", "--groups", "2", "--oversample", "1", "--staleness", "1"),
        *("--slow-seconds", ".2", "--one-in", "4", "--overrides", *SMALL, "rollout.slots=12"),
    )  # fmt: skip
    if not 1 <= args.skip < args.steps:
        parser.error("--skip must be at least 1 and below --steps.")
    if min(args.oversample) < 1 or max(args.oversample) > args.groups or min(args.staleness) < 1:
        parser.error("--oversample must be 1 to --groups, and --staleness at least 1.")
    console = wide_console()
    work, found = Path(tempfile.mkdtemp(prefix="stragglers_")), dict[tuple[int, int], dict[str, Any]]()
    for each in [(0, 0), *((more, old) for more in args.oversample for old in args.staleness)]:
        folder = work / "oversample{}-staleness{}".format(*each)
        _run(folder, args, *each)
        found[each] = _read(folder, args.skip)
    console.print(_table(found, args))
    before = found[0, 0]
    problems = [f"rollout.oversample={each[0]}: {words}" for each in found for words in found[each]["problems"]]
    for each, figures in found.items():
        if figures["trained"] != before["trained"]:
            problems.append(f"rollout.oversample={each[0]}: other trajectories than without it")
        elif figures["paid"] != before["paid"]:
            problems.append(f"rollout.oversample={each[0]}: another bill than without it")
    console.print("\n".join(problems) or "All books equal the ledgers, and all bills are the same.", highlight=False)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
