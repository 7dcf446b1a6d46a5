"""Finding the answer in what a model wrote."""

import re

_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_LEAD = re.compile(r"^(?:the\s+)?(?:final\s+)?answer(?:\s+is\s*:?|\s*:)\s*", re.IGNORECASE)


def extract_answer(text: str) -> str:
    r"""The final answer within a reply.

    In this order: the last `\boxed{...}`, the last `<answer>...</answer>`, what follows the last `####` on its line,
    else the last line that is not empty, without a leading "The answer is". Reasoning in `<think>` does not count.
    """
    reply = _THINKING.sub("", text).strip()
    marked = marked_answer(reply)
    if marked is not None:
        return marked
    if "####" in reply:
        return reply.rpartition("####")[2].strip().partition("\n")[0].strip()
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    return _LEAD.sub("", lines[-1], count=1).strip() if lines else ""


def marked_answer(reply: str) -> str | None:
    r"""The last `\boxed{...}`, else the last `<answer>...</answer>`; None where neither is."""
    boxed = _last_boxed(reply)
    if boxed is not None:
        return boxed.strip()
    tagged = _TAGGED.findall(reply)
    return str(tagged[-1]).strip() if tagged else None


def without_thinking(text: str) -> str:
    """The reply without its reasoning: `<think>` blocks, and what a server that cuts the opening tag left of one.

    A block that never ends is all reasoning: the model ran out of tokens.
    """
    reply = _THINKING.sub("", text)
    if "</think>" in reply:
        reply = reply.rpartition("</think>")[2]
    return reply.partition("<think>")[0].strip()


def _last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` with its braces balanced; None without one."""
    start = text.rfind("\\boxed{")
    while start >= 0:
        depth, first = 0, start + len("\\boxed")
        for position in range(first, len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[first + 1 : position]
        start = text.rfind("\\boxed{", 0, start)
    return None
