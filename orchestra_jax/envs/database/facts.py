"""Facts that a text says: numbers by their value, words as whole words.

"1,200", "1200" and "$1,200.00" are one fact. "10" is not said by "2010", "10:30" or "A10", and "no" not by "note".
"""

import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal

# A number with or without separators of thousands; neither part of a word nor of a longer figure.
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_NUMBER = re.compile(rf"(?<![\w.,])({_DIGITS})(?!\w|[.,]\d)")
_FACT = re.compile(rf"(-?)\s*[$€£]?\s*(-?)({_DIGITS})\s*(?:%|USD|EUR|dollars?)?\.?", re.IGNORECASE)
# A dash with a space behind it is punctuation.
_SIGN = re.compile(r"(?<!\w)(?:-[$€£]?|[$€£]-)$")
# Years, days, hours and telephone numbers are no amounts.
_NO_AMOUNT = re.compile(r"\d+(?:[-/:]\d+)+")
_MARKS = {ord("\u2019"): "'", ord("\u2018"): "'", ord("\u201c"): '"', ord("\u201d"): '"', ord("\u2212"): "-"}


def unsaid(facts: Iterable[str], texts: Iterable[str]) -> tuple[str, ...]:
    """Return the facts that none of the texts says, in their order."""
    said = [_plain(text) for text in texts]
    return tuple(fact for fact in facts if not any(_says(text, _plain(fact)) for text in said))


def problem(fact: str) -> str | None:
    """Return a sentence why nobody can be asked to say this, or None if it is a fact."""
    return None if re.search(r"\w", fact) else f"The fact {fact!r} has neither a letter nor a digit."


def _says(text: str, fact: str) -> bool:
    amount = _amount(fact)
    if amount is not None:
        return amount in _amounts(text)
    wanted = _words(fact)
    left, right = (r"(?<!\w)" if wanted[:1].isalnum() else "", r"(?!\w)" if wanted[-1:].isalnum() else "")
    return bool(wanted) and re.search(left + re.escape(wanted) + right, _words(text)) is not None


def _amount(fact: str) -> Decimal | None:
    """Return the fact's value, or None if it is no number: figures that begin with 0 are an id."""
    found = _FACT.fullmatch(fact)
    if found is None or re.match(r"0\d", found[3]):
        return None
    value = Decimal(found[3].replace(",", ""))
    return -value if found[1] or found[2] else value


def _amounts(text: str) -> set[Decimal]:
    text = _NO_AMOUNT.sub("#", text)
    found = set()
    for match in _NUMBER.finditer(text):
        value = Decimal(match[1].replace(",", ""))
        found.add(-value if _SIGN.search(text[: match.start()]) else value)
    return found


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).translate(_MARKS).casefold().split())


def _words(text: str) -> str:
    """Return the text without commas, which some write and some do not."""
    return " ".join(text.replace(",", "").split())
