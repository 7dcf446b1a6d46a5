"""Check fields of replies from outside that `io.foreign_json.read_json` has read."""

from typing import Any

from orchestra_jax.io.untrusted import Unreadable

_SHOWN = 40  # characters of a value that a reason repeats


def one_line(text: str) -> str:
    """Return the text on one line, with a space for what cannot be printed, such as the escapes that move a cursor.

    >>> one_line("no\\n  key\\x1b[2J")
    'no key [2J'
    """
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def text_of(value: Any) -> str:
    """Return a text, or "" for null; raise Unreadable for anything else, such as a list of parts."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Unreadable(f"a text in it is a {type(value).__name__}")
    return value


def count_of(value: Any, most: int) -> int:
    """Return a count from 0 to `most`, 0 for null; raise Unreadable for anything else."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most or value != int(value):
        raise Unreadable(f"a count in it is {str(value)[:_SHOWN]}")
    return int(value)
