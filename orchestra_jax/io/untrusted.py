"""Text from outside, within limits. `io.foreign_json` reads JSON, `io.foreign_yaml` YAML."""

import re

import numpy as np

MOST_LEVELS = 64  # brackets within brackets
# Possessive, and an open string ends with the text: linear on every input.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))


class Unreadable(ValueError):  # noqa: N818  named like the fact it states
    """Something from outside cannot be used; the message is a clause that says why."""


def valid_text(text: str) -> str:
    """Return the text with U+FFFD for every half of a surrogate pair (a cut emoji), which has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def levels(content: bytes) -> int:
    """Return how deep brackets nest in a JSON text, outside of strings, without recursion."""
    brackets = np.frombuffer(_STRING.sub(b"", content).translate(None, _NO_BRACKET), np.uint8)
    opens = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(opens, 1, -1)).max(initial=0))
