"""Tell a database of servers from a table of recorded answers: both are named by `path=`."""

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from orchestra_jax.config.flags import PATH

FILE = "served.db"  # the database in a server's folder, where no address is given
_OF_A_TABLE, _OF_A_SERVER = "+experiment=my_logs", "+experiment=kept"


def is_served(path: str) -> bool:
    """Return whether this is the address or the file of a database of servers."""
    if "://" in path:
        return True
    try:
        with Path(path).open("rb") as file:
            if file.read(6) != b"SQLite":
                return False
        with contextlib.closing(sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)) as database:
            return bool(database.execute("SELECT 1 FROM sqlite_master WHERE name = 'requests'").fetchone())
    except (OSError, sqlite3.Error, ValueError):
        return False


def logs_of_any_form(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with `kept` in place of `my_logs` where path= names a database of servers."""
    from orchestra_jax.config.from_run import parsed

    paths = [word for word in words if word.startswith(f"{PATH.setting}=")]
    if _OF_A_TABLE not in words or not paths or not is_served(str(parsed(paths)[-1].value())):
        return list(words)
    return [_OF_A_SERVER if word == _OF_A_TABLE else word for word in words]
