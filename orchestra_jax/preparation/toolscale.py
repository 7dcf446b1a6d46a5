"""ToolScale: its tasks as plain JSON lines, and the tools, databases and policies of its domains from a clone."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.toolscale import domains, tasks
from orchestra_jax.envs.toolscale.rows import plain, read
from orchestra_jax.preparation.made import Made, Wanted

TASKS = "tasks.jsonl"


def toolscale(source: Path, folder: Path, wanted: Wanted) -> Made:
    """Write the tasks without the nulls and typed dates of the data set's columns.

    Raises:
        ValueError: the source cannot be read, or has no task.
    """
    made = Made()
    with (folder / TASKS).open("w", encoding="utf-8") as out:
        try:
            for row in tasks.rows(source):
                made.counts["rows"] += 1
                task = plain(row)
                try:
                    user, _ = read(task)
                except ValueError as problem:
                    made.counts["set aside"] += 1
                    made.said.append(str(problem))
                    continue
                made.counts[user.domain] += 1
                made.counts["kept"] += 1
                out.write(json.dumps(task, ensure_ascii=False) + "\n")
                if made.counts["kept"] == wanted.limit:
                    break
        except ConfigError as error:
            raise ValueError(str(error)) from None
    if not made.counts["kept"]:
        raise ValueError(f"{str(source)!r} has no task of ToolScale. {' '.join(made.said[:1])}".strip())
    return made


def tools(source: Path, folder: Path, wanted: Wanted) -> Made:
    """Copy the code, databases and policies of the ten domains, and the licence, out of a clone.

    Raises:
        ValueError: the clone has no such code, or no databases.
    """
    made = Made()
    try:
        code, data = domains.code_folder(source), domains.data_folders(None, source)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    for domain in sorted(path.parent.name for path in code.glob("*/tools.py")):
        database = domains.data_of(domain, data)
        if database is None:
            made.said.append(f"The domain {domain} has code but no database: Git LFS left it out.")
            continue
        _copy(database, folder / "data/tau2/domains" / domain, lambda path: path.name in ("db.json", "policy.md"))
        _copy(code / domain, folder / "tau2/domains" / domain, lambda path: path.suffix == ".py")
        made.counts["domains"] += 1
    for other in code.glob("*/utils.py"):  # domains name the paths of one another
        _copy(other.parent, folder / "tau2/domains" / other.parent.name, lambda path: path.name == "utils.py")
    _copy(source, folder, lambda path: path.name.startswith(("LICENSE", "NOTICE")))
    if not made.counts["domains"]:
        raise ValueError(f"{str(source)!r} has no domain of ToolScale with a database. {' '.join(made.said[:1])}")
    return made


def _copy(source: Path, target: Path, wanted: Callable[[Path], bool]) -> None:
    """Copy the files of a folder that are wanted; a link is none."""
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.is_symlink() and wanted(path):
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.name)
