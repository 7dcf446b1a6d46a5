"""The command `served`: keys and requests in the database of servers."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table

from orchestra_jax.config.exit_status import HALTED, USAGE_ERROR
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.config.served_path import FILE
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.serving.opened import FOLDER

if TYPE_CHECKING:
    from orchestra_jax.serving.database import ServerDatabase


def run(asked: argparse.Namespace) -> int:
    """Do a command; return the status to exit with. What a user can mend is one sentence."""
    file = Path(asked.folder) / FOLDER / FILE
    if asked.database is None and asked.command != "add-key" and not file.is_file():
        return _told(f"There is no {str(file)!r}: name the output_dir of a server, or --database.")
    try:
        from orchestra_jax.serving import feedback, keys, report
        from orchestra_jax.serving.database import opened
    except ImportError as error:
        return _told(f"This needs the package {error.name}: pip install 'orchestra-jax[serve]'.")
    try:
        if asked.command == "add-key":
            keys.limits(asked.usd_per_day, asked.per_minute)  # a wrong limit leaves no new database
        new = asked.database is None and not file.is_file()
        if asked.database is None:
            file.parent.mkdir(parents=True, exist_ok=True)
        with opened(asked.database or file) as database:
            if asked.command == "add-key":
                print(keys.add_key(database, asked.name, asked.usd_per_day, asked.per_minute))
                print("Nobody can read this key again: keep it now.", file=sys.stderr)
                if new:  # as where the name of the run is mistyped
                    print(f"Made {str(file)!r}, for servers with output_dir={asked.folder}.", file=sys.stderr)
            elif asked.command == "end-key":
                keys.end_key(database, asked.name)
            elif asked.command == "keys":
                _list(keys.list_keys(database))
            elif asked.command == "report":
                _compare(report.policies(database, asked.hours))
            elif asked.command == "judge":
                return _judge(database, asked)
            elif asked.command == "write":
                written, unknown = feedback.write_log(database, asked.file, whole=asked.all)
                said = f"{written} requests are in {asked.file}; nobody has said the right answer to {unknown}."
                print(said, file=sys.stderr)
    except (ConfigError, OSError) as error:
        return _told(str(error))
    return 0


def _judge(database: "ServerDatabase", asked: argparse.Namespace) -> int:
    """Judge what waits; Ctrl-C and SIGTERM let the calls under way end, once."""
    from orchestra_jax.serving.judging import Judging
    from orchestra_jax.serving.opened import settings_in_force

    judging = Judging(database, settings_in_force(asked.folder, asked.settings), asked.max_usd)

    async def work() -> str:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            judging.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        return await judging.run()

    try:
        print(asyncio.run(work()), file=sys.stderr)
    except BudgetExceeded as error:
        print(error, file=sys.stderr)
        return HALTED
    return 0


def _list(rows: list[dict[str, object]]) -> None:
    if not rows:
        print("There are no keys.", file=sys.stderr)
        return
    table = Table(*(name.replace("_", " ") for name in rows[0]))
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    Console(markup=False).print(table)  # names may have brackets


def _compare(rows: list[dict[str, Any]]) -> None:
    if not rows:
        print("Nothing was asked.", file=sys.stderr)
        return
    table = Table(Column("policy", overflow="fold"))
    for name in ("asked", "ended", "judged", "right % (95 %)", "cents", "seconds"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        right = f"{100 * row['right']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})" if row["judged"] else ""
        means = (f"{100 * row['usd']:.4g}", f"{row['seconds']:.3g}") if row["ended"] else ("", "")
        table.add_row(row["policy"], *(str(row[name]) for name in ("requests", "ended", "judged")), right, *means)
    Console(markup=False).print(table)  # names may have brackets


def _told(words: str) -> int:
    print(words, file=sys.stderr)
    return USAGE_ERROR
