"""The columns of a table of recorded answers: their schema, and files that are read column by column with pyarrow.

COLUMNS is the one schema of all files. A column is a dictionary-encoded array of texts; numbers and flags are read from
the few different texts that it has. What the schema refuses is a sentence with file, row and what to do.
"""

import csv
import json
import mmap
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from orchestra_jax.data.rows import BadRow, rows_of

SEVERAL = "\x1e"  # between the entries of a list
_BLOCK_BYTES = 32 << 20  # a row must fit
SHOWN = 40  # characters of a value that a sentence repeats
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_CALLED = {",": "commas", "\t": "tabs"}
_SUFFIXES = (*_SEPARATORS, ".json", ".jsonl", ".parquet")
_BOM = b"\xef\xbb\xbf"
_NO_UTF8 = "it is not UTF-8: save it in this encoding"
_TRUE, _FALSE = ("true", "yes"), ("false", "no")
ONE_TEXT = "{}: {!r} must be one text, not a list: of messages, write what was asked or said."


class Column(NamedTuple):
    """A column of the schema.

    Attributes:
        names: what it may be called.
        needed: a table without it, or a row that leaves it empty, is refused.
        most: the largest number that it may hold; None: texts.
        whole: numbers without a fraction alone.
    """

    names: tuple[str, ...]
    needed: bool = False
    most: float | None = None
    whole: bool = False


COLUMNS: Mapping[str, Column] = {
    "question": Column(("question", "prompt", "input"), needed=True),
    "model": Column(("model", "model_name"), needed=True),
    "output": Column(("output", "response", "model_response", "model_answer"), needed=True),
    "correct": Column(("correct", "score", "is_correct"), needed=True),
    "id": Column(("id", "question_id", "sample_id")),
    "family": Column(("family", "set", "eval_name", "task")),
    "answer": Column(("answer", "reference", "reference_answer")),
    "prompt_tokens": Column(("prompt_tokens", "input_tokens"), most=1e9, whole=True),
    "tokens": Column(("tokens", "completion_tokens", "output_tokens"), most=1e9, whole=True),
    "cost": Column(("cost", "cost_usd", "total_cost"), most=1e5),  # dollars
    "latency": Column(("latency", "latency_s", "seconds"), most=1e6),  # seconds
}


@dataclass
class Texts:
    """A column as numbers of its different texts.

    Attributes:
        name: in the schema.
        values: the different texts.
        codes: for each row the number of its text; -1: it has none.
        place: tells where a row is.
    """

    name: str
    values: Sequence[str]
    codes: Int[np.ndarray, " R"]
    place: Callable[[int], str]

    def of_values(self, found: Shaped[np.ndarray, " V"], missing: Any) -> Shaped[np.ndarray, " R"]:
        """Return a value for each row from one for each text, `missing` for rows without."""
        return np.append(found, np.array([missing], found.dtype))[self.codes]

    def whole(self) -> "Texts":
        """Return the column if every row has a text.

        Raises:
            BadRow: a row has none.
        """
        blank = np.array([not value.strip() for value in self.values], bool)
        if (empty := self.of_values(blank, True)).any():
            names = COLUMNS[self.name].names if self.name in COLUMNS else (self.name,)
            raise BadRow(
                f"{self.place(int(empty.argmax()))}: it has no {self.name!r}; the column is called "
                f"{' or '.join(names)}: fill it in every row."
            )
        return self

    def strings(self) -> Shaped[np.ndarray, " R"]:
        """Return the texts, "" for rows without."""
        return self.of_values(np.array(self.values, object), "")

    def numbers(self) -> Float[np.ndarray, " R"]:
        """Return the numbers, nan for rows without; raise BadRow for what the schema does not allow."""
        column = COLUMNS[self.name]
        most, kind = column.most or 0.0, ("whole number", "1234") if column.whole else ("number", "1234.5")
        found = np.array([_number(value) for value in self.values], float)
        good = (found >= 0) & (found <= most) & ((found % 1 == 0) | (not column.whole))
        self._refuse(~good, f"must be a {kind[0]} >= 0 and at most {most:.0f}, such as {kind[1]}, or empty")
        return self.of_values(found, np.nan)

    def flags(self) -> Bool[np.ndarray, " R"]:
        """Return what is right: true, or a score of more than a half; rows without text are wrong."""
        words = [value.strip().lower() for value in self.values]
        found = np.array([1.0 if word in _TRUE else 0.0 if word in _FALSE else _number(word) for word in words], float)
        self._refuse(~((found >= 0) & (found <= 1)), "must be true, false or a score from 0 to 1")
        return self.of_values(found > 0.5, False)

    def _refuse(self, bad: Bool[np.ndarray, " V"], rule: str) -> None:
        if bad.any() and (rows := self.of_values(bad, False)).any():
            row = int(rows.argmax())
            shown = self.values[self.codes[row]][:SHOWN]
            raise BadRow(f"{self.place(row)}: {self.name!r} {rule}, not {shown!r}.")


@dataclass
class Table:
    """A file of columns.

    Attributes:
        names: of the columns in the file.
        load: returns the pyarrow.Table of some of them, as texts.
        place: tells where a row is.
    """

    file: Path
    names: Sequence[str]
    load: Callable[[Sequence[str]], Any]
    place: Callable[[int], str]
    read: dict[str, str] = field(default_factory=dict)  # by the schema's names, what the file calls them
    _loaded: Any = None

    def find(self, wanted: Sequence[str], others: Sequence[str] = ()) -> None:
        """Load these columns of the schema where the file has them, and `others` by their own names.

        Raises:
            ValueError: a needed column is missing, or there are two for one; one sentence.
        """
        if not self.names:
            raise ValueError(f"{str(self.file)!r} has no rows.")
        if twice := [name for number, name in enumerate(self.names) if name in self.names[:number]]:
            raise ValueError(f"{str(self.file)!r} has the column {twice[0]!r} twice: remove one, or rename it.")
        for name in wanted:
            found = [each for each in COLUMNS[name].names if each in self.names]
            if len(found) > 1:
                raise ValueError(
                    f"{str(self.file)!r} has two columns that mean {name!r}, {found[0]!r} and {found[1]!r}: remove "
                    "one, or rename it."
                )
            if found:
                self.read[name] = found[0]
            elif COLUMNS[name].needed:
                raise ValueError(
                    f"{str(self.file)!r} has no column {name!r}: rename the one that holds it to "
                    f"{' or '.join(COLUMNS[name].names)}; here are {', '.join(map(repr, self.names))[:400]}."
                )
        if missing := [name for name in others if name not in self.names]:
            raise ValueError(f"{str(self.file)!r} has no column {missing[0]!r}.")
        self._loaded = self.load([*self.read.values(), *others])
        if not self._loaded.num_rows:
            raise ValueError(f"{str(self.file)!r} has no rows.")

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self._loaded.num_rows)

    def texts(self, name: str, called: str | None = None) -> Texts | None:
        """Return a column of the schema, or of the name that the file calls it; None: the file does not have it."""
        source = called or self.read.get(name)
        if source is None:
            return None
        column = self._loaded.column(source).combine_chunks().dictionary_encode()  # as it is if it is encoded
        codes, values = column.indices.fill_null(-1).to_numpy(zero_copy_only=False), column.dictionary.to_pylist()
        if "" in values:
            codes = np.where(codes == values.index(""), -1, codes)
        return Texts(name, values, codes, self.place)


def open_table(file: Path) -> Table:
    """Open a file; which of its columns are read, `Table.find` says.

    Raises:
        ImportError: pyarrow is missing.
        OSError, ValueError: the file cannot be read; a sentence with its name.
    """
    if file.suffix not in _SUFFIXES:
        raise ValueError(
            f"{str(file)!r} must end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}: unpack or rename it, or save "
            "it as one of these."
        )
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ImportError(f"Reading {file.name!r} needs pyarrow: pip install 'orchestra-jax[data]'.") from None
    if file.suffix in _SEPARATORS:
        return Table(file, _refusing(file, lambda: _header(file)), partial(_separated, file), partial(_line, file))
    if file.suffix == ".parquet":
        from pyarrow import parquet

        names = _refusing(file, lambda: parquet.read_schema(file).names)
        return Table(file, names, partial(_parquet, file), lambda row: f"{str(file)!r}, row {row + 1}")
    return _listed(file)


def _header(file: Path) -> list[str]:
    """Return the names in the first line of a .csv or .tsv file; raise ValueError if there is one alone."""
    separator = _SEPARATORS[file.suffix]
    with file.open(encoding="utf-8-sig", newline="") as lines:
        names = next(csv.reader(lines, delimiter=separator), [])
    if names and (len(names) < 2 or names[0].startswith("sep=")):  # Excel's hint, or another separator
        raise ValueError(
            f"{str(file)!r} must name its columns in the first line, separated by {_CALLED[separator]}, and not "
            f"{separator.join(names)[:SHOWN]!r}: save it so."
        )
    return names


def _separated(file: Path, names: Sequence[str]) -> Any:
    """Read columns of a .csv or .tsv file; an empty field is none."""
    _refuse_open_quotes(file)
    import pyarrow
    from pyarrow import csv as reader

    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())  # most columns repeat their texts
    convert = reader.ConvertOptions(
        column_types=dict.fromkeys(names, text), include_columns=names, null_values=[""], strings_can_be_null=True
    )
    parse = reader.ParseOptions(delimiter=_SEPARATORS[file.suffix], newlines_in_values=True)
    options = reader.ReadOptions(block_size=_BLOCK_BYTES)
    return _refusing(
        file, lambda: reader.read_csv(file, read_options=options, parse_options=parse, convert_options=convert)
    )


def _refuse_open_quotes(file: Path) -> None:
    """Raise BadRow for a quote that begins a field and does not end it: pyarrow would take rows for its text."""
    separator = _SEPARATORS[file.suffix].encode()
    one = rb'(?:"(?:[^"]++|"")*+"|[^"%s\r\n][^%s\r\n]*+)?+' % (separator, separator)
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = len(_BOM) if content[: len(_BOM)] == _BOM else 0
        whole = re.compile(rb"(?:%s[%s\r\n])*+" % (one, separator)).match(content, start)
        end = whole.end() if whole else start
        if re.compile(one).fullmatch(content, end) is None:
            line = content[:end].count(b"\n") + 1
            shown = content[end : end + SHOWN].decode(errors="replace")
            raise BadRow(
                f"{str(file)!r}, line {line}: {shown!r} begins with a quote that does not end the field: put the field "
                "in quotes, and write each quote in it twice."
            )


def _parquet(file: Path, names: Sequence[str]) -> Any:
    """Read columns of a .parquet file as texts."""
    import pyarrow
    from pyarrow import compute, parquet

    def text(name: str, column: Any) -> Any:
        kind, types = column.type, pyarrow.types
        if types.is_duration(kind):
            raise BadRow(f"{str(file)!r}: {name!r} holds durations: write them as numbers of seconds.")
        if types.is_struct(kind):
            raise BadRow(ONE_TEXT.format(repr(str(file)), name))
        if types.is_list(kind) or types.is_large_list(kind):
            most = compute.max(compute.list_value_length(column)).as_py() or 0
            if types.is_nested(kind.value_type) or (most > 1 and name not in COLUMNS["answer"].names):
                raise BadRow(ONE_TEXT.format(repr(str(file)), name))
            return compute.binary_join(column.cast(pyarrow.list_(pyarrow.string())), SEVERAL)
        return column.cast(pyarrow.string())

    def read() -> Any:
        found = parquet.ParquetFile(file, page_checksum_verification=True).read(columns=list(names))
        made = pyarrow.table({name: text(name, found.column(name)) for name in names})
        made.validate(full=True)
        return made

    return _refusing(file, read)


def _listed(file: Path) -> Table:
    """Read the rows of a .jsonl or .json file as columns."""
    columns, places, lists = dict[str, list[str | None]](), list[str](), dict[str, str]()
    for count, (_, place, read) in enumerate(rows_of(file)):
        for name, value in read().items():
            column = columns.setdefault(name, [])
            column += [None] * (count - len(column))
            column.append(_as_text(value))
            if isinstance(value, list | Mapping) and not _joins(name, value):
                lists.setdefault(name, place)
        places.append(place)

    def load(names: Sequence[str]) -> Any:
        import pyarrow

        for name in names:
            if name in lists:
                raise BadRow(ONE_TEXT.format(lists[name], name))
        whole = {name: [*columns[name], *[None] * (len(places) - len(columns[name]))] for name in names}
        return pyarrow.table({name: pyarrow.array(column, pyarrow.string()) for name, column in whole.items()})

    return Table(file, list(columns), load, places.__getitem__)


def _joins(name: str, entries: Sequence[Any] | Mapping[str, Any]) -> bool:
    """Return whether a list is a text, or several texts in a column that may hold them; an output may be an object."""
    if isinstance(entries, Mapping):
        return name in COLUMNS["output"].names
    flat = not any(isinstance(each, Mapping | list) for each in entries)
    return flat and (len(entries) < 2 or name in COLUMNS["answer"].names)


def _as_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return SEVERAL.join(map(str, value))
    return None if value is None else json.dumps(value) if isinstance(value, Mapping) else str(value)


def _number(text: str) -> float:
    """Return a number, nan where there is none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _refusing(file: Path, read: Callable[[], Any]) -> Any:
    """Return what `read` returns; what cannot be read becomes one sentence with the file's name."""
    import pyarrow

    try:
        return read()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        reason = " ".join(str(error).split())[:300]
        if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in reason:
            reason = _NO_UTF8
        raise ValueError(f"{str(file)!r} cannot be read: {reason}.") from None


def _line(file: Path, row: int) -> str:
    """Return the place of a row of a file with separators, by the line where it ends."""
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        table = csv.reader(lines, delimiter=_SEPARATORS[file.suffix])
        filled = (table.line_num for fields in table if fields)
        try:
            number = next((line for place, line in enumerate(filled) if place == row + 1), row + 2)
        except csv.Error:  # a field longer than the module reads; pyarrow reads it
            return f"{str(file)!r}, row {row + 1}"
    return f"{str(file)!r}, line {number}"
