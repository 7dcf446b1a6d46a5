"""What nobody should have written, drawn at random: values, changes of JSON values, changes of bytes."""

import json
import random
from collections.abc import Iterator
from typing import Any

TEXTS = (
    "", " ", "\ud83d", "cut \ude00", "\0", "\x1b[31m", "a\nb", "é" * 50, "x" * 5000, "nan", "-1", "1e999", "null",
    "\u2028", "\U0001f600", "\u202e", "<|im_end|>", "</think>", "{", "[" * 200, "http://[",
    "../../etc/passwd", "%s{0}${x}",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 7, 2**31, 2**53 + 1, 2**64, 10**30, -(10**30), 0.5, -0.0, 1e308, -1e308, 5e-324, float("inf"),
    float("-inf"), float("nan"),
)  # fmt: skip
# Of JSON in the raw: what `json` would not write.
PIECES = (
    b"1e999", b"-1e400", b"NaN", b"Infinity", b"9" * 400, b"0" * 30, b"[" * 100_000, b'{"a":' * 20_000, b"\xff\xfe",
    b"\xed\xa0\xbd", b'"\\ud83d"', b"\\u0000", b"\0", b"\xef\xbb\xbf", b"//", b",,", b"]]", b"}}", b'"',
    b"'", b"\r\n" * 50,
)  # fmt: skip


def odd_value(draw: random.Random, levels: int = 2) -> Any:
    """Any JSON value, and some that are none."""
    match draw.randrange(8):
        case 0:
            return draw.choice((None, True, False))
        case 1 | 2:
            return draw.choice(NUMBERS)
        case 3 | 4:
            return draw.choice(TEXTS)
        case 5 if levels:
            return [odd_value(draw, levels - 1) for _ in range(draw.randrange(4))]
        case 6 if levels:
            return {odd_text(draw): odd_value(draw, levels - 1) for _ in range(draw.randrange(4))}
        case _:
            return draw.choice(([], {}, [[]], [None], {"": None}, odd_text(draw)))


def odd_text(draw: random.Random) -> str:
    """A few odd texts one after the other, or characters of any kind."""
    if draw.random() < 0.5:
        return "".join(draw.choice(TEXTS) for _ in range(draw.randint(1, 3)))
    return "".join(chr(draw.randrange(draw.choice((128, 0x800, 0x10000, 0x110000)))) for _ in range(draw.randrange(20)))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value within a JSON value, its own excluded."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def change(draw: random.Random, value: Any) -> tuple[Any, tuple[Any, ...]]:
    """The JSON value with one place replaced, removed, wrapped or doubled; and the path of that place."""
    value = json.loads(json.dumps(value))
    path = draw.choice([(), *places(value)])
    if not path:
        return odd_value(draw), path
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    match draw.randrange(6):
        case 0:
            del parent[path[-1]]
        case 1:
            parent[path[-1]] = [parent[path[-1]]]
        case 2 if isinstance(parent, list):
            parent += parent
        case _:
            parent[path[-1]] = odd_value(draw)
    return value, path


def cut(draw: random.Random, content: bytes) -> bytes:
    """Its beginning."""
    return content[: draw.randrange(len(content))] if content else content


def flip(draw: random.Random, content: bytes) -> bytes:
    """One to three of its bits differ."""
    found = bytearray(content)
    for _ in range(draw.randint(1, 3) if found else 0):
        found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)
    return bytes(found)


def insert(draw: random.Random, content: bytes) -> bytes:
    """An odd piece stands somewhere in it."""
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.choice((*PIECES, draw.randbytes(20))) + content[place:]


def replace(draw: random.Random, content: bytes) -> bytes:
    """An odd piece stands in the place of a part."""
    first, last = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    return content[:first] + draw.choice(PIECES) + content[last:]


def nothing_of_it(draw: random.Random, content: bytes) -> bytes:
    """Something else altogether."""
    return draw.choice((b"", b"<html>", draw.randbytes(draw.randrange(300)), *PIECES))


BYTES = (cut, flip, insert, replace, nothing_of_it)


def change_bytes(draw: random.Random, content: bytes) -> tuple[bytes, str]:
    """The bytes after one change, and its name."""
    act = draw.choice(BYTES)
    return act(draw, content), act.__name__
