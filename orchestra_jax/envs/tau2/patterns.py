"""Regular expressions under a deadline: the bank's search has none, and one pattern of the policy could hang a run."""

import importlib
import re
from time import monotonic
from typing import Any

MOST_S = 2.0  # seconds of one search; the bank's documents take some milliseconds
TOO_LONG = "the pattern takes too long; write a simpler one"


class Patterns:
    """The part of the module `re` that the bank's search uses, under a deadline."""

    IGNORECASE, error, escape = re.IGNORECASE, re.error, staticmethod(re.escape)

    @staticmethod
    def compile(pattern: str, flags: int = 0) -> "TimedPattern":
        """Return a search whose time begins now; raises the errors of `re` for a pattern that is none."""
        re.compile(pattern, flags)
        return TimedPattern(pattern, flags)


class TimedPattern:
    """A pattern that searches texts until its deadline."""

    def __init__(self, pattern: str, flags: int) -> None:
        engine = importlib.import_module("regex")  # comes with transformers; has the syntax of `re`, and can be stopped
        self._pattern, self._end = engine.compile(pattern, engine.IGNORECASE if flags else 0), monotonic() + MOST_S

    def findall(self, text: str) -> list[Any]:
        """Return every match; raises TimeoutError after the deadline."""
        try:
            return list(self._pattern.findall(text, timeout=max(self._end - monotonic(), 1e-3)))
        except TimeoutError:
            raise TimeoutError(TOO_LONG) from None
