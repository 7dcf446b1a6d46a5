"""Questions with reference answers, answered with tools that run on this machine."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from orchestra_jax.envs.base import Handler, Message, ToolBox, initial_messages
from orchestra_jax.tools import local_search, sandbox
from orchestra_jax.tools.pricing import PriceList
from orchestra_jax.types import Task, ToolCall, ToolResult, ToolSpec, Usage

OFFLINE_TOOLS = (sandbox.TOOL, local_search.TOOL)
SYSTEM = (
    "Answer the user's question. Call tools where they help, mind their prices and latencies and the user's wishes, "
    "and end with the final answer in \\boxed{}."
)
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_LEAD = re.compile(r"^(?:the\s+)?(?:final\s+)?answer(?:\s+is\s*:?|\s*:)\s*", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d{1,3})?")
_ARTICLES = frozenset(("a", "an", "the"))


class QAEpisode:
    """One question under one menu; see `envs.base.Episode`."""

    def __init__(self, task: Task, handlers: Mapping[str, Handler], system: str | None) -> None:
        self._task = task
        self._toolbox = ToolBox(task.tools, handlers)
        self.messages: list[Message] = initial_messages(task, system)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return self._toolbox.tools

    async def step(self, call: ToolCall) -> ToolResult:
        return await self._toolbox.step(call)

    async def score(self, answer: str) -> bool:
        return matches(extract_answer(answer), self._task.answer)


class QAEnvironment:
    """Runs the offline tools: `python` where there is a sandbox, `local_search` where there is an index.

    Args:
        sandbox: runs code; owned and closed by this environment.
        index: passages to search.
        prices: charges the offline tools by measured seconds and calls, where the menu shows no price per call.
        handlers: further tools by name.
        top_k: passages per search.
        system: system message, None for none.
    """

    def __init__(
        self,
        *,
        sandbox: sandbox.PythonSandbox | None = None,
        index: local_search.LocalIndex | None = None,
        prices: PriceList | None = None,
        handlers: Mapping[str, Handler] | None = None,
        top_k: int = 3,
        system: str | None = SYSTEM,
    ) -> None:
        self._sandbox, self._index, self._prices = sandbox, index, prices
        self._top_k, self._system = top_k, system
        self._handlers: dict[str, Handler] = dict(handlers or {})
        if sandbox is not None:
            self._handlers[OFFLINE_TOOLS[0].name] = self._python
        if index is not None:
            self._handlers[OFFLINE_TOOLS[1].name] = self._search

    def reset(self, task: Task) -> QAEpisode:
        return QAEpisode(task, self._handlers, self._system)

    async def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()

    async def _python(self, arguments: Mapping[str, Any]) -> ToolResult:
        assert self._sandbox is not None
        return self._priced(await self._sandbox.run(arguments["code"]))

    async def _search(self, arguments: Mapping[str, Any]) -> ToolResult:
        assert self._index is not None
        start = time.perf_counter()
        text = self._index.answer(arguments["query"], self._top_k)
        row = Usage(OFFLINE_TOOLS[1].name, seconds=time.perf_counter() - start)
        return self._priced(ToolResult(text, (row,)))

    def _priced(self, result: ToolResult) -> ToolResult:
        if self._prices is None:
            return result
        return replace(result, usage=tuple(self._prices.charge(row) for row in result.usage))


def extract_answer(text: str) -> str:
    r"""The final answer within a reply.

    In this order: the last `\boxed{...}`, the last `<answer>...</answer>`, what follows the last `####` on its line,
    else the last line that is not empty, without a leading "The answer is". Reasoning in `<think>` does not count.
    """
    reply = _THINKING.sub("", text).strip()
    boxed = _last_boxed(reply)
    if boxed is not None:
        return boxed.strip()
    tagged = _TAGGED.findall(reply)
    if tagged:
        return str(tagged[-1]).strip()
    if "####" in reply:
        return reply.rpartition("####")[2].strip().partition("\n")[0].strip()
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    return _LEAD.sub("", lines[-1], count=1).strip() if lines else ""


def matches(answer: str, references: Sequence[str]) -> bool:
    """Whether the answer equals one of the references.

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
    """The number that the whole text is, currency, percent sign, thousands commas and a final dot aside; else None."""
    core = text.strip().replace("\\", "").replace("\u2212", "-").strip("*")
    core = core.removesuffix(".").strip("$€£% ")
    if core[:1] in ("-", "+"):  # "-$5"
        core = core[0] + core[1:].strip("$€£ ")
    if not any(character.isascii() and character.isdigit() for character in core) or not _NUMBER.fullmatch(core):
        return None
    return Decimal(core.replace(",", ""))


def normalize(text: str) -> str:
    """SQuAD's normalisation: lower case, no punctuation, no articles, single spaces.

    Unlike SQuAD's, punctuation between digits stays (else 1.5 and 15 were equal) but for thousands commas, a minus
    sign before a number stays, and a text of articles only keeps them (the choice "A").
    """
    lowered = text.lower().replace("\u2212", "-")
    lowered = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", lowered)
    kept = re.sub(r"(?<=\d)([^\w\s]+)(?=\d)|(?<!\S)(-)(?=\d)|[^\w\s]|_", r"\1\2", lowered)
    words = kept.split()
    return " ".join([word for word in words if word not in _ARTICLES] or words)


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
