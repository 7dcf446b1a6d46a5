"""Facts that a text says: numbers and dates by their value, words as whole words.

"1,200", "1200" and "$1,200.00" are one fact. "10" is not said by "2010", "10:30" or "A10", and "no" not by "note".
"March 12", "12th of March" and "2025-03-12" all say "12 March". Of figures with slashes or dashes the month is first
("03/12/2025"), unless it cannot be one; of figures with points, the day. docs/worlds.md says what is not seen.
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
# Dates: year first, figures alone, day before month, month before day.
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_MONTH = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAY, _YEAR = r"(\d{1,2})(?:st|nd|rd|th)?\b", r"(\d{4})"
_DATE = re.compile(
    rf"(?<![\w.,/:-])(?:{_YEAR}([-/.])(\d\d?)\2(\d\d?)(?=t\d|\b)|(\d\d?)([-/.])(\d\d?)\6{_YEAR}\b"
    rf"|{_DAY}(?: of)?[ -]{_MONTH}(?:(?:,? |-){_YEAR}\b)?|{_MONTH}[ -]{_DAY}(?:,? {_YEAR}\b)?)(?![/:-]?\d|[.,]\d)"
)
_DATED = re.compile(r"(<\d*\|\d\d-\d\d>)")  # as `_with_dates` writes one
_HALF_DAY = re.compile(r"(?<=\d) ?([ap])\.? ?m\b\.?")
_MARKS = str.maketrans("\u2019\u2018\u201c\u201d\u2010\u2011\u2212", "''\"\"---")


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
    if _as_words(_words(fact)).search(_words(text)):
        return True
    dated = _with_dates(fact)
    return dated != fact and _as_words(_words(dated)).search(_words(_with_dates(text))) is not None


def _as_words(wanted: str) -> re.Pattern[str]:
    """Return the pattern of whole words; a date without a year stands for that day of any year."""
    left, right = (r"(?<!\w)" if wanted[:1].isalnum() else "", r"(?!\w)" if wanted[-1:].isalnum() else "")
    parts = [re.escape(part).replace(r"<\|", r"<\d*\|") for part in _DATED.split(wanted)]
    return re.compile(left + "".join(parts) + right if wanted else r"(?!)")


def _with_dates(text: str) -> str:
    """Return a plain text with each date as "<year|month-day>"; the year may be missing."""

    def written(found: re.Match[str]) -> str:
        year, _, month, day = found.group(1, 2, 3, 4)
        if found[8]:
            year, month, day = found.group(8, 5, 7)
            if found[6] == "." or int(month) > 12:
                month, day = day, month
        elif name := found[10] or found[12]:
            month, day, year = str(_MONTHS.index(name[:3]) + 1), found[9] or found[13], found[11] or found[14] or ""
        right = 1 <= int(month) <= 12 and 1 <= int(day) <= 31
        return f"<{year}|{int(month):02}-{int(day):02}>" if right else found[0]

    return _DATE.sub(written, text)


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
    """Return the text without commas, which some write and some do not, and with one form of "5:30 p.m."."""
    return " ".join(_HALF_DAY.sub(r" \1m", text.replace(",", "")).split())
