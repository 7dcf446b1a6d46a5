"""The tools that run here: the sandbox, recorded calls, and local search.

    .venv/bin/python benchmarks/tools.py
    .venv/bin/python benchmarks/tools.py --only replay --rounds 7 --json out.json
    ORCHESTRA_DATA=... .venv/bin/python benchmarks/tools.py --only search --vectors 20000    # small vectors, for a try

sandbox   milliseconds of a short Python snippet and executions per second, isolated and not, beside a new `python`
          for each snippet and a warm Jupyter kernel (goal: a median below 50 ms)
replay    lookups of recorded calls per second, beside SQLite's own SELECT (goal: above 20,000), and eight processes
          that write one file (goal: no lost row; a lost one ends the run)
search    recall@10 against exact search and queries per second of every FAISS index, on the passages of
          ORCHESTRA_DATA and on synthetic vectors, and how often BM25 and the local embedder find a passage

Each part is a file of `_tools/`, which says what exactly it does; that of search also runs alone. The median is that of
the rounds; "best" is the fastest of them. Take figures on a machine that does nothing else.
"""

import argparse
import importlib
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from short import keep, machine, parse, wide_console

Row = Mapping[str, Any]  # {what, median, best, unit, note}, from each part's measure()
PARTS = ("sandbox", "replay", "search")
# (part, what it calls its row, unit) -> the median's goal, and whether more is better.
GOALS = {("sandbox", "sandbox, bubblewrap", "ms"): (50.0, False), ("replay", "Replay.call", "/s"): (20_000.0, True)}


def _table(part: str, rows: Sequence[Row], rounds: int) -> Table:
    table = Table(title=f"{part}, {rounds} rounds")
    table.add_column("", overflow="fold")
    for heading in ("median", "best"):
        table.add_column(heading, justify="right")
    table.add_column("unit")
    table.add_column("note", overflow="fold")
    for row in rows:
        table.add_row(row["what"], _number(row["median"]), _number(row["best"]), row["unit"], row["note"])
    return table


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _goals(part: str, rows: Sequence[Row]) -> list[str]:
    found = {(part, row["what"], row["unit"]): row["median"] for row in rows}
    lines = []
    for key, (goal, more) in GOALS.items():
        if key in found:
            reached = found[key] > goal if more else found[key] < goal
            lines.append(
                f"{key[1]}: {_number(found[key])} {key[2]}; goal {'above' if more else 'below'} {_number(goal)}: "
                f"{'reached' if reached else 'MISSED'}."
            )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="of every part, at least 5 to report (default 5)")
    parser.add_argument("--vectors", type=int, default=1_000_000, help="synthetic vectors of search (default 1000000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured here")
    args = parse(parser, "--rounds", "1", "--vectors", "2000")
    if args.rounds < 1 or args.vectors < 1:
        parser.error("--rounds and --vectors must be at least 1.")
    console = wide_console()
    begun, results, left_out = machine(), {}, 0
    for part in args.only:
        try:
            module = importlib.import_module(f"_tools.{part}")
        except ImportError as error:
            console.print(f"{part} is left out: {error}; pip install -e '.[tools]'.", markup=False)
            left_out += 1
            continue
        options = {"vectors": args.vectors} if part == "search" else {}
        results[part] = module.measure(args.rounds, **options)
        console.print(_table(part, results[part], args.rounds))
        for line in _goals(part, results[part]):
            console.print(line, highlight=False)
    if args.json:
        # JSON has no NaN: what could not be measured is null.
        kept = {
            part: [{k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()} for row in rows]
            for part, rows in results.items()
        }
        keep(args.json, {**begun, "rounds": args.rounds, "parts": kept})
    return 1 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
