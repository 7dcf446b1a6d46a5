"""Read JSON from outside, within limits.

`read_json` is the one decoder of foreign JSON. Its values hold only text with a UTF-8 form, finite numbers of at most
64 bits, and so few levels that recursive code can walk them. Everything else is one kind of error.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from orchestra_jax.io.untrusted import MOST_LEVELS, Unreadable, levels, valid_text

MOST_BYTES = 64 << 20  # of one answer; the longest of SGLang, 128k tokens with log-probs, have a tenth of it
_MOST_DIGITS = 20  # of a whole number: all that 64 bits hold
_SHOWN = 40  # characters of a value that a reason repeats
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(content: bytes, most_bytes: int = MOST_BYTES, *, mend: bool = True) -> Any:
    """Return the value of a JSON text, in time linear in its length.

    Half surrogate pairs and bytes that are no UTF-8 become U+FFFD. With `mend=False` half pairs stay, for a caller that
    refuses them.

    Raises:
        Unreadable: no JSON, more than `most_bytes`, more than MOST_LEVELS levels, NaN, Infinity, a number that
            overflows, or a whole number beyond 64 bits. There is no other exception.
    """
    if len(content) > most_bytes:
        raise Unreadable(f"it has more than {most_bytes} bytes")
    # Fewer brackets cannot nest deeper, and most texts have fewer.
    if content.count(b"[") + content.count(b"{") > MOST_LEVELS and levels(content) > MOST_LEVELS:
        raise Unreadable(f"it has more than {MOST_LEVELS} levels")
    text = content.decode("utf-8-sig", "replace")
    try:
        value = _DECODER.decode(text)
    except Unreadable:
        raise
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not JSON: {error}") from None
    return valid_value(value) if mend and _ESCAPED_SURROGATE.search(text) else value


def own_file(file: Path, folder: Path | None = None) -> Path:
    """Return a file of a folder from outside; raise Unreadable if a symbolic link leads out of the folder.

    Args:
        folder: the folder; None: the one in which the file lies.
    """
    if not file.resolve().is_relative_to((folder or file.parent).resolve()):
        raise Unreadable("it is a symbolic link to a file elsewhere: put the file itself there")
    return file


def valid_value(value: Any) -> Any:
    """Return the JSON value, of at most MOST_LEVELS levels, with `valid_text` for every text in it."""
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, dict):
        return {valid_text(key): valid_value(inner) for key, inner in value.items()}
    return [valid_value(inner) for inner in value] if isinstance(value, list) else value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Unreadable(f"a number in it, {text[:_SHOWN]}, overflows")
    return value


def _whole(text: str) -> int:
    if len(text.lstrip("-")) > _MOST_DIGITS:
        raise Unreadable(f"a number in it has {len(text.lstrip('-'))} digits")
    return int(text)


def _constant(name: str) -> Any:
    raise Unreadable(f"a number in it is {name}, which is not finite")


_DECODER = json.JSONDecoder(parse_float=_float, parse_int=_whole, parse_constant=_constant)
