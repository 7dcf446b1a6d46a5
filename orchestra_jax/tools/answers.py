"""Find the answer in what a model wrote, and compare it with the right ones."""

import re
from collections.abc import Sequence
from decimal import Decimal

_BOXED, _BRACE = "\\boxed{", re.compile(r"[{}]")
_LEAD = re.compile(r"^(?:the\s+)?(?:final\s+)?answer(?:\s+is\s*:?|\s*:)\s*", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")
_ARTICLES = frozenset(("a", "an", "the"))


def extract_answer(text: str) -> str:
    r"""Return the final answer within a reply.

    In this order: the last `\boxed{...}`, the last `<answer>...</answer>`, what follows the last `####` on its line,
    else the last line that is not empty, without a leading "The answer is". Reasoning in `<think>` does not count.
    """
    reply = _without_blocks(text).strip()
    marked = marked_answer(reply)
    if marked is not None:
        return marked
    if "####" in reply:
        return reply.rpartition("####")[2].strip().partition("\n")[0].strip()
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
    punctuation only) or after `normalize`. An empty answer matches nothing.
    """
    exact, number, text = answer.strip(), parse_number(answer), normalize(answer)
    for reference in references:
        other = parse_number(reference)
        if number is not None and other is not None:
            if number == other:
                return True
        elif exact and (exact == reference.strip() or (text and text == normalize(reference))):
            return True
    return False


def parse_number(text: str) -> Decimal | None:
    """Read a text that is a number, with or without currency, percent sign, commas and final dot; else return None."""
    core = text.strip().replace("\\", "").replace("\u2212", "-").strip("*")
    core = core.removesuffix(".").strip("$€£% ")
    if core[:1] in ("-", "+"):  # "-$5"
        core = core[0] + core[1:].strip("$€£ ")
    if not any(character.isascii() and character.isdigit() for character in core) or not _NUMBER.fullmatch(core):
        return None
    return Decimal(core.replace(",", ""))


def normalize(text: str) -> str:
    """Normalise a text as SQuAD does: lower case, no punctuation, no articles, single spaces.

    Unlike SQuAD's, punctuation between digits stays (else 1.5 and 15 were equal) but for thousands commas, a minus
    sign before a number stays, and a text of articles only keeps them (the choice "A").
    """
    lowered = text.lower().replace("\u2212", "-")
    lowered = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", lowered)
    kept = re.sub(r"(?<=\d)([^\w\s]+)(?=\d)|(?<!\S)(-)(?=\d)|[^\w\s]|_", r"\1\2", lowered)
    words = kept.split()
    return " ".join([word for word in words if word not in _ARTICLES] or words)


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
