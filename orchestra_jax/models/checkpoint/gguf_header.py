"""Check of the header of a GGUF file before the package `gguf` reads it, whose loops believe every count."""

import struct
from typing import Any

import numpy as np

_MOST_FIELDS, _MOST_TENSORS, _MOST_VALUES, _MOST_NESTED, _MOST_AXES = 10_000, 100_000, 10_000_000, 4, 4
_TEXT, _ARRAY = 8, 9
_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of a number, by GGUF's type


def check(content: np.ndarray) -> None:
    """Raise ValueError, a clause, if the header's counts and lengths do not fit into the file, given as its bytes.

    The work is bounded: 10,000 fields, 100,000 tensors, 10 million values.
    """
    _Header(content).walk()


class _Header:
    def __init__(self, content: np.ndarray) -> None:
        self._content, self._at, self._values = content, 0, 0

    def walk(self) -> None:
        magic, version, tensors, fields = self._numbers("<4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError("it does not begin like a GGUF file of version 2 or 3")
        if fields > _MOST_FIELDS or tensors > _MOST_TENSORS:
            raise ValueError(f"it says that it has {fields} fields and {tensors} tensors")
        for _ in range(fields):
            self._text()
            self._skip_value(self._numbers("<I")[0], 0)
        for _ in range(tensors):
            self._text()
            (axes,) = self._numbers("<I")
            if axes > _MOST_AXES:
                raise ValueError(f"it says that a tensor has {axes} axes")
            self._skip(8 * axes + 12)

    def _skip_value(self, kind: int, nested: int) -> None:
        if kind in _BYTES:
            self._skip(_BYTES[kind])
        elif kind == _TEXT:
            self._text()
        elif kind == _ARRAY and nested < _MOST_NESTED:
            inner, count = self._numbers("<IQ")
            self._values += count
            if self._values > _MOST_VALUES:
                raise ValueError(f"it says that a list has {count} entries")
            if inner in _BYTES:
                self._skip(_BYTES[inner] * count)
                return
            for _ in range(count):
                self._skip_value(inner, nested + 1)
        else:
            raise ValueError(f"it has a field of the unknown type {kind}")

    def _text(self) -> None:
        self._skip(self._numbers("<Q")[0])

    def _numbers(self, form: str) -> tuple[Any, ...]:
        start = self._at
        self._skip(struct.calcsize(form))
        return struct.unpack(form, self._content[start : self._at].tobytes())

    def _skip(self, count: int) -> None:
        self._at += count
        if self._at > len(self._content):
            raise ValueError("it ends in the middle of its header, or a length in it is wrong")
