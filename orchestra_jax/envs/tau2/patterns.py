"""Regular expressions of the policy's, within a time: the bank's search has none, and one pattern could hang a run."""

import importlib
import re
from time import monotonic
from typing import Any

MOST_S = 2.0  # of one search; the bank's documents take some milliseconds
TOO_LONG = "the pattern takes too long; write a simpler one"


class Patterns:
    """What the bank's search uses of the module `re`, under a deadline."""

    IGNORECASE, error, escape = re.IGNORECASE, re.error, staticmethod(re.escape)

    @staticmethod
    def compile(pattern: str, flags: int = 0) -> "Search":
        """A search; its time begins now. Raises what `re` raises of a pattern that is none."""
        re.compile(pattern, flags)
        return Search(pattern, flags)


class Search:
    """A pattern that looks through texts until the deadline."""

    def __init__(self, pattern: str, flags: int) -> None:
        engine = importlib.import_module("regex")  # of transformers; it reads as `re` does, and can be stopped
        self._pattern, self._end = engine.compile(pattern, engine.IGNORECASE if flags else 0), monotonic() + MOST_S

    def findall(self, text: str) -> list[Any]:
        """Every match. Raises TimeoutError."""
        try:
            return list(self._pattern.findall(text, timeout=max(self._end - monotonic(), 1e-3)))
        except TimeoutError:
            raise TimeoutError(TOO_LONG) from None
