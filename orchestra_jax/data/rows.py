"""Rows of files that others wrote; a bad row is one sentence with its file and line."""

import csv
import functools
import itertools
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestra_jax.io.foreign_json import MOST_BYTES, read_json
from orchestra_jax.io.untrusted import Unreadable

SUFFIXES = (".jsonl", ".json", ".tsv", ".parquet")
_MOST_BYTES = 8 << 30  # of a .json file, which is read at once
_BOM = b"\xef\xbb\xbf"

Row = Mapping[str, Any]
ReadRow = Callable[[], Row]


class BadRow(ValueError):  # noqa: N818  named like the fact it states
    """One row cannot be used; the message is a sentence with its file and line. Later rows can still be read."""


def rows_of(file: Path, columns: Collection[str] | None = None) -> Iterator[tuple[int, str, ReadRow]]:
    """Yield the number of every row, its place in words, and a function that reads it or raises `BadRow`.

    A .jsonl file has a row in each line that is not empty, a .json file is a list of rows, the first line of a .tsv
    file names its fields.

    Args:
        columns: the only ones that are read of a .parquet file, which keeps each column apart; None: all.

    Raises:
        ImportError: a parquet file without pyarrow.
        OSError, ValueError: the file as a whole cannot be read; a sentence with its name.
    """
    if file.suffix == ".jsonl":
        with file.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    place = f"{str(file)!r}, line {number}"
                    yield number, place, functools.partial(_object, place, functools.partial(_parse, line, place))
        return
    if file.suffix == ".tsv":
        yield from _tabbed(file)
        return
    rows = _parquet(file, columns) if file.suffix == ".parquet" else _listed(file)
    for number, row in enumerate(rows, 1):
        place = f"{str(file)!r}, row {number}"
        yield number, place, functools.partial(_object, place, row)


def text_of(value: Any, key: str, place: str) -> str:
    """Return a text with more than blanks in it.

    Raises:
        BadRow: it is something else.
    """
    if not isinstance(value, str):
        raise BadRow(f"{place}: {key!r} must be a text, not {type(value).__name__}.")
    if not value.strip():
        raise BadRow(f"{place}: {key!r} is empty.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRow(f"{place}: {key!r} is not UTF-8, or has half of a surrogate pair.") from None
    return value


def answers_of(value: Any, key: str, place: str, most: int | None = None) -> tuple[str, ...]:
    """Return one text or number, or a list of them, as texts.

    Args:
        most: most entries of a list; None: any number.

    Raises:
        BadRow: it is something else.
    """
    several = list(value) if isinstance(value, list | tuple) else [value]
    if not several or len(several) > (most or len(several)):
        raise BadRow(f"{place}: {key!r} must be a text or a number{'' if most else ', or a list of them'}.")
    return tuple(text_of(_written(one), key, place) for one in several)


def _written(value: Any) -> Any:
    """Return a number as a text for `text_of`, and all else as it is."""
    finite = isinstance(value, int | float | Decimal) and math.isfinite(value)
    return str(value) if finite else value


def _object(place: str, read: Callable[[], Any]) -> Row:
    row = read()
    if not isinstance(row, Mapping):
        raise BadRow(f"{place}: a row must be an object with named fields, not {type(row).__name__}.")
    return row


def _parse(line: bytes, place: str) -> Any:
    try:
        return _checked(_value(line), b"\\u" in line, place)
    except Unreadable as error:
        raise BadRow(f"{place}: not valid JSON, {error}.") from None


def _value(content: bytes, most_bytes: int = MOST_BYTES) -> Any:
    """Parse a JSON text in UTF-8; halves of surrogate pairs stay in it. Raises Unreadable."""
    try:
        content.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"byte {error.start + 1} is not UTF-8") from None
    return read_json(content, most_bytes, mend=False)


def _checked(row: Any, escaped: bool, place: str) -> Any:
    """Return the row, or raise BadRow if escapes in it make characters that cannot be written again."""
    try:
        if escaped:
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRow(f"{place}: it has half of a surrogate pair, which is no character.") from None
    return row


def _listed(file: Path) -> Iterable[Callable[[], Any]]:
    """Return a function for each entry of a JSON list, which gives the entry."""
    content = file.read_bytes()
    try:
        rows = _value(content, _MOST_BYTES)
    except Unreadable as error:
        raise ValueError(f"{str(file)!r}: not valid JSON, {error}.") from None
    if not isinstance(rows, list):
        raise ValueError(f"{str(file)!r} must be a JSON list of rows.")
    escaped = b"\\u" in content
    places = (f"{str(file)!r}, row {number}" for number in itertools.count(1))
    return (functools.partial(_checked, row, escaped, place) for row, place in zip(rows, places, strict=False))


def _tabbed(file: Path) -> Iterator[tuple[int, str, ReadRow]]:
    """Yield the rows of a table whose first line names the fields. A quoted field may go on in the next line."""
    lines = file.read_bytes().removeprefix(_BOM).splitlines(keepends=True)
    # What is no UTF-8 comes as halves of surrogate pairs, which `text_of` refuses: the line does not end the table.
    table = csv.DictReader((line.decode("utf-8", "surrogateescape") for line in lines), delimiter="\t")
    try:
        for number, row in enumerate(table, 1):
            yield number, f"{str(file)!r}, line {table.line_num}", functools.partial(_checked, row, False, "")
    except csv.Error as error:
        raise ValueError(f"{str(file)!r}, line {table.line_num + 1}: {error}.") from None


def _parquet(file: Path, columns: Collection[str] | None) -> Iterator[Callable[[], Any]]:
    """Yield a function for each row of a parquet file, which reads it, or these columns of it."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ImportError(f"Reading {file.name!r} needs pyarrow: pip install 'orchestra-jax[data]'.") from None
    number = 0
    try:
        table = parquet.ParquetFile(file, page_checksum_verification=True)
        wanted = None if columns is None else [name for name in table.schema_arrow.names if name in columns]
        for batch in table.iter_batches(batch_size=1024, columns=wanted):
            try:
                yield from (functools.partial(_checked, row, False, "") for row in batch.to_pylist())
            except UnicodeDecodeError:  # only some of them have it
                places = (f"{str(file)!r}, row {number + index + 1}" for index in range(batch.num_rows))
                yield from (functools.partial(_row_of, batch, index, place) for index, place in enumerate(places))
            number += batch.num_rows
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(file)!r} cannot be read: what it says about its columns is not UTF-8.") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{str(file)!r} cannot be read: {' '.join(str(error).split())}.") from None


def _row_of(batch: Any, index: int, place: str) -> Any:
    try:
        return batch.slice(index, 1).to_pylist()[0]
    except UnicodeDecodeError:
        raise BadRow(f"{place}: a text in it is not UTF-8.") from None
