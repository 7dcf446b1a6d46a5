"""A disk that is full after some paid answers: for the record of calls, what waits beside it, and trajectories."""

import errno
import os
import sqlite3

from orchestra_jax.evaluation.trajectory_files import TrajectoryFile
from orchestra_jax.money import store, unsaved


def fill(answers: int) -> None:
    """Let this process keep so many answers on its disk; the folder for temporary files is on another one."""
    insert, append, left = store._insert_all, unsaved._append, answers

    def inserted(database: sqlite3.Connection, statement: str, rows: list[store.Row]) -> None:
        nonlocal left
        if len(rows) > left:
            left = -1  # what is full stays full, and trajectories find no room either
            raise sqlite3.OperationalError("database or disk is full")
        left -= len(rows)
        insert(database, statement, rows)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store._insert_all = inserted
    unsaved._append = lambda path, data: refuse() if path.parent.name == "evaluation" else append(path, data)
    add = TrajectoryFile.add
    TrajectoryFile.add = lambda file, trajectory: add(file, trajectory) if left >= 0 else refuse()  # type: ignore[method-assign]
