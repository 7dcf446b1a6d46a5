"""A file of keys, for servers that are deployed from version control or a secret store; the database holds the keys."""

import asyncio
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, select, update

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.io.foreign_yaml import read_yaml
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.serving.answers import tell
from orchestra_jax.serving.database import FILE_KEYS, KEYS, ServerDatabase
from orchestra_jax.serving.keys import digest, limits

_FIELDS = {"name", "sha256", "env", "usd_per_day", "per_minute"}
_LOOK_S = 2.0


@dataclass(frozen=True)
class FileKey:
    """A key of the file, with its limits as the database keeps them."""

    name: str
    digest: str
    limits: Mapping[str, int | None]


def read_key_file(file: Path, environment: Mapping[str, str] = os.environ) -> list[FileKey]:
    """Read the keys of a file; raise ConfigError if one cannot be used; one sentence."""
    if not file.exists():
        raise ConfigError(
            f"There is no file of keys {str(file)!r}: set --keys to a YAML list, such as "
            "[{name: anna, env: ANNA_KEY}], or leave it out."
        )
    try:
        entries = read_yaml(file)
        if not isinstance(entries, list) or not entries:
            raise Unreadable("it must be a list of keys, at least one")
        found = [_key(number, entry, environment) for number, entry in enumerate(entries, 1)]
        for kind in ("name", "digest"):
            values = [getattr(key, kind) for key in found]
            if twice := [key.name for key in found if values.count(getattr(key, kind)) > 1]:
                what = "has an entry before" if kind == "name" else "is another one's key too"
                raise Unreadable(f"{twice[-1]!r} {what}: give each name a key of its own")
    except Unreadable as error:
        raise ConfigError(f"The file of keys {str(file)!r} cannot be used: {str(error).rstrip('.')}.") from None
    return found


def _key(number: int, entry: Any, environment: Mapping[str, str]) -> FileKey:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"].strip():
        raise Unreadable(f"entry {number} needs a name, and is to be like {{name: anna, env: ANNA_KEY}}")
    name, known, variable = entry["name"], entry.get("sha256"), entry.get("env")
    if unknown := sorted(map(str, entry.keys() - _FIELDS)):
        raise Unreadable(f"{name!r} has {unknown[0]!r}, and a key has {', '.join(sorted(_FIELDS))}")
    if (known is None) == (variable is None):
        raise Unreadable(f"{name!r} needs either sha256 or env, the environment variable that holds the key")
    if known is not None and not (isinstance(known, str) and re.fullmatch("[0-9a-fA-F]{64}", known)):
        raise Unreadable(f"sha256 of {name!r} must be 64 hexadecimal digits in quotes: printf %s KEY | sha256sum")
    if known is None and not (key := environment.get(str(variable), "").strip()):
        raise Unreadable(f"the environment variable {variable!r}, the key of {name!r}, is not set")
    usd, minute = entry.get("usd_per_day"), entry.get("per_minute")
    if isinstance(usd, bool) or not isinstance(usd, int | float | None):
        raise Unreadable(f"usd_per_day of {name!r} must be a number")
    if isinstance(minute, bool) or not isinstance(minute, int | None):
        raise Unreadable(f"per_minute of {name!r} must be a whole number")
    try:
        return FileKey(name, digest(key) if known is None else known.lower(), limits(usd, minute))
    except ConfigError as error:
        raise Unreadable(f"{name!r}: {error}") from None


def take_keys(database: ServerDatabase, keys: Sequence[FileKey]) -> list[str]:
    """Have the keys of a file in the database: new ones are made, limits replaced, and those it had before are ended.

    A name keeps its account under another key. A key that was ended stays so.

    Returns:
        Names whose key was ended before.

    Raises:
        ConfigError: a name or key is that of another one; nothing is changed.
        OSError: the database cannot be written.
    """

    def work(connection: Connection) -> list[str]:
        rows = {row.name: row for row in connection.execute(select(KEYS)).all()}
        owners = {row.digest: row.name for row in rows.values()}
        ours = set(connection.scalars(select(FILE_KEYS.c.name)))
        ended = []
        for gone in ours - {key.name for key in keys}:
            still = (KEYS.c.name == gone, KEYS.c.ended.is_(None))
            connection.execute(update(KEYS).where(*still).values(ended=time.time()))
        for key in keys:
            row, own = rows.get(key.name), dict[str, Any](key.limits)
            if owners.get(key.digest, key.name) != key.name:
                raise ConfigError(f"{key.name!r} has the key of {owners[key.digest]!r}: make another one.")
            if row is not None and row.digest != key.digest and key.name not in ours:
                raise ConfigError(f"There is another key of the name {key.name!r} already: choose another name.")
            if row is None:
                connection.execute(insert(KEYS).values(name=key.name, digest=key.digest, **own))
            elif row.digest == key.digest:
                connection.execute(update(KEYS).where(KEYS.c.name == key.name).values(own))
                ended += [key.name] if row.ended is not None else []
            else:
                own |= {"digest": key.digest, "ended": None}
                connection.execute(update(KEYS).where(KEYS.c.name == key.name).values(own))
            if key.name not in ours:
                connection.execute(insert(FILE_KEYS).values(name=key.name))
        return ended

    return database.do(work).result()


class KeyFile:
    """A file of keys that may change while a server runs.

    Raises:
        ConfigError, OSError: see `read_key_file` and `take_keys`.
    """

    def __init__(self, database: ServerDatabase, file: Path) -> None:
        self._database, self._file, self._seen = database, file, _mark(file)
        self._take()

    async def follow(self) -> None:
        """Take up what changes; a file that cannot be used changes nothing."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if (mark := _mark(self._file)) == self._seen:
                continue
            try:
                await asyncio.to_thread(self._take)
                tell(f"Takes up the keys of {self._file}.")
            except (ConfigError, OSError) as error:
                tell(f"Goes on with the keys as they were. {error}")
            self._seen = mark

    def _take(self) -> None:
        if ended := take_keys(self._database, read_key_file(self._file)):
            tell(f"Keys that were ended stay so: {', '.join(ended)}. Give these names new keys, or remove them.")


def _mark(file: Path) -> tuple[int, ...]:
    """Return numbers that change with a file."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
