"""What the scripts share: a short form, which `--smoke` runs in seconds, and how they tell what they measured.

The figures of a short form mean nothing.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

# A quickstart whose policy has one layer, in few shapes: those of tests/training/test_trainer.py.
SMALL = (
    "model.family=tests.training.micro:OneLayer", "rollout.slots=8", "rollout.widths=[64]",
    "algorithm.row_widths=[192]", "algorithm.micro_tokens=768",
)  # fmt: skip


def parse(parser: argparse.ArgumentParser, *smoke: str) -> argparse.Namespace:
    """Parse the command line, with `--smoke` standing for the arguments `smoke`; further ones win over these."""
    parser.add_argument("--smoke", action="store_true", help=f"a try of seconds: {' '.join(smoke)}")
    return parser.parse_args([*(smoke if "--smoke" in sys.argv[1:] else ()), *sys.argv[1:]])


def wide_console() -> Console:
    """Return a console that is wide enough for a table where no terminal is."""
    return Console(width=None if sys.stdout.isatty() else 132)


def table(title: str, texts: Sequence[str], figures: Sequence[str]) -> Table:
    """Return an empty table with columns for texts, which may fold, and then for figures."""
    made = Table(title=title)
    for heading in texts:
        made.add_column(heading, overflow="fold")
    for heading in figures:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def table_of(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of rows that have the same keys."""
    made = Table(title=title)
    for heading, value in rows[0].items():
        made.add_column(heading, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        made.add_row(*(f"{each:.4g}" if isinstance(each, float) else str(each) for each in row.values()))
    return made


def keep(file: Path | None, measured: Any) -> None:
    """Write what was measured as JSON, if a file is named."""
    if file is not None:
        file.write_text(json.dumps(measured, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Return the processor, the number of cores and the load, for what is kept."""
    return {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()}
