"""Find the answer in what a model wrote, and compare it with the right ones."""

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

_BOXED, _BRACE = "\\boxed{", re.compile(r"[{}]")
_LEAD = re.compile(
    r"^[*_]*(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+)?(?:final\s+|correct\s+)?answer"
    r"(?:\s+is\s*:?|[*_]*\s*:)[*_]*\s*",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")
_ARTICLES = frozenset(("a", "an", "the"))
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"))
# A formula in LaTeX without its clothes.
_LATEX = [
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\\(?:text|mbox|operatorname|(?:text|math)(?:bf|it|rm|sf|tt))\s*\{([^{}]*)\}", r"\1"),
        (r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[!,:;]", ""),
        (r"\\(?:\s|q?quad(?![A-Za-z]))|~", " "),
        (r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})", "\u00b0"),
        (r"(?<=\d)\s*\\[dt]?frac(?![A-Za-z])", r" \\frac"),  # 2\frac12 is no 21/2
        (r"\\[dt]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*(?:\{\s*(-?\w+)\s*\}\s*\{\s*(\w+)\s*\}|(\d)(\d))(?!\s*[\w\\])", r"\1\3/\2\4"),
    )
]
_BEFORE_SIGN = r"(?<![^\s(\[{=<>,:+*/^$|])"
# Punctuation that means something: in a number, a sign, a fraction, a power, C#, B♭. `_kept` has other symbols.
_MARKS = re.compile(
    rf"{_BEFORE_SIGN}\++(?=\d)"
    rf"|((?<=\d)[^\w\s]+(?=\d)|{_BEFORE_SIGN}-(?=[\w\\$€£¥∞(]|\.\d)|(?<=\w)-(?!\S)|(?<!\w)\.(?=\d)"
    r"|(?<=\w)\*(?=\w)|(?<=[\w)\]}])(?:(?<![^\W\d_]{2})/|/(?![^\W\d_]{2}))(?=[\w(\[{\\])|(?<=[^\W\d_])#|[\^♭])"
    r"|([^\w\s]|_)"
)
_VAGUE = "~|≈\ufe0f"
_OPTIONAL = range(10, 37)  # combining classes of the vowels of Hebrew and Arabic
_INTERVALS = [
    (re.compile(r"\(([^()\[\],]*,[^()\[\]]*)\]"), r"<\1≤"),
    (re.compile(r"\[([^()\[\],]*,[^()\[\]]*)\)"), r"≤\1<"),
]
_CHOSEN, _NAMED = re.compile(r"\s*\(?([A-J])[).:]\)?\s+\S"), re.compile(r"\s*[A-Za-z]\s*=([^=]+)")


def extract_answer(text: str) -> str:
    r"""Return the final answer within a reply.

    In this order: the last `\boxed{...}`, the last `<answer>...</answer>`, what follows the last `####` on its line (no
    heading of Markdown, words above further lines), else the last line that is not empty, without a leading "The answer
    is". Reasoning in `<think>` does not count.
    """
    reply = _without_blocks(text).strip()
    marked = marked_answer(reply)
    if marked is not None:
        return marked
    if "####" in reply:
        found, _, below = reply.rpartition("####")[2].strip().partition("\n")
        if not below.strip() or parse_number(found) is not None:
            return found.strip()
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    return _LEAD.sub("", lines[-1], count=1).strip() if lines else ""


def marked_answer(reply: str) -> str | None:
    r"""Return the last `\boxed{...}`, else the last `<answer>...</answer>`; None if there is neither."""
    boxed = _last_boxed(reply)
    if boxed is not None:
        return boxed.strip()
    found = tagged(reply, "answer")
    return found[-1].strip() if found else None


def tagged(text: str, tag: str) -> list[str]:
    """Return the texts between each `<tag>` and the next `</tag>`; in linear time, unlike a regular expression."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    found = list[str]()
    start = text.find(opening)
    while start >= 0 and (end := text.find(closing, start)) >= 0:
        found.append(text[start + len(opening) : end])
        start = text.find(opening, end)
    return found


def without_thinking(text: str) -> str:
    """Return the reply without its reasoning: `<think>` blocks, and the rest of one whose opening tag a server cut.

    A block that never ends is all reasoning: the model ran out of tokens.
    """
    reply = _without_blocks(text)
    if "</think>" in reply:
        reply = reply.rpartition("</think>")[2]
    return reply.partition("<think>")[0].strip()


def matches(answer: str, references: Sequence[str]) -> bool:
    """Return whether the answer equals one of the references.

    Two numbers are compared as numbers ("$1,234.0" equals "1234"), other texts as they are (answers in Morse code are
    punctuation only) or after `normalize`. The letter of a choice ("B) Oslo") or the value of a variable ("x = 5") is
    enough. An empty answer matches nothing.
    """
    forms = [answer, *(found[1] for found in (_CHOSEN.match(answer), _NAMED.fullmatch(answer)) if found)]
    return any(_same(form, reference) for form in forms for reference in references)


def parse_number(text: str) -> Decimal | None:
    """Read a text that is a number, with or without currency, percent sign, commas and final dot; else return None."""
    core = _undressed(text).strip().replace("\\", "").strip("*")
    core = core.removesuffix(".").strip("$€£% ")
    if core[:1] in ("-", "+"):  # "-$5"
        core = core[0] + core[1:].strip("$€£ ")
    if not any(character.isascii() and character.isdigit() for character in core) or not _NUMBER.fullmatch(core):
        return None
    return Decimal(core.replace(",", ""))


def normalize(text: str) -> str:
    """Normalise a text as SQuAD does: lower case, no punctuation, no articles, single spaces.

    Unlike SQuAD's, what changes the meaning stays: punctuation between digits (else 1.5 and 15 were equal) but for
    commas, signs, fractions, powers and symbols of mathematics, the ends of half-open intervals, and a text of articles
    only (the choice "A"). The clothes of LaTeX go.
    """
    lowered = unicodedata.normalize("NFC", _undressed(text)).lower().replace("i\u0307", "i")  # of the Turkish I
    lowered = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", lowered)
    for ends, plain in _INTERVALS:
        lowered = ends.sub(plain, lowered)
    kept = " ".join(_MARKS.sub(_kept, lowered.replace(",", " ")).split())
    words = re.sub(r" ?([+<>=≤≥≠^]) ?", r"\1", kept).lstrip("=").split()
    return " ".join([word for word in words if word not in _ARTICLES] or words)


def _same(answer: str, reference: str) -> bool:
    """Return whether two texts are the same number, or else the same text."""
    number, other = parse_number(answer), parse_number(reference)
    if number is not None and other is not None:
        return number == other
    exact, text = answer.strip(), normalize(answer)
    return bool(exact) and (exact == reference.strip() or (bool(text) and text == normalize(reference)))


def _undressed(text: str) -> str:
    """Return the text with one kind of dash, and without the clothes of LaTeX."""
    text = text.replace("{,}", ",").translate(_DASHES)
    if "\\" in text:
        for pattern, plain in _LATEX:
            text = pattern.sub(plain, text)
    return text


def _kept(found: "re.Match[str]") -> str:
    """Return what stays of a mark: all of it or nothing."""
    mark = found[2] or ""
    kind = unicodedata.category(mark) if mark else ""
    symbol = kind == "Sm" and mark not in _VAGUE
    vowel = kind in ("Mn", "Mc") and mark not in _VAGUE and unicodedata.combining(mark) not in _OPTIONAL
    return found[1] or (mark if symbol or vowel else "")


def _without_blocks(text: str) -> str:
    """Return the text without each `<think>` up to the next `</think>`."""
    kept, position = list[str](), 0
    while (start := text.find("<think>", position)) >= 0 and (end := text.find("</think>", start)) >= 0:
        kept.append(text[position:start])
        position = end + len("</think>")
    return "".join(kept) + text[position:]


def _last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` with balanced braces; None without one."""
    closes, open_ = dict[int, int](), list[int]()
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            open_.append(brace.start())
        elif open_:
            closes[open_.pop()] = brace.start()
    start = text.rfind(_BOXED)
    while start >= 0:
        first = start + len(_BOXED)
        if (end := closes.get(first - 1)) is not None:
            return text[first:end]
        start = text.rfind(_BOXED, 0, start)
    return None
