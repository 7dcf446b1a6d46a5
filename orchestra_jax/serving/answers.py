"""An answer and its calls, and how they are written in terminals and reasoning deltas."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestra_jax.types import Status, ToolCall, Trajectory, Usage

_WIDTH = 48  # characters of a call's arguments


@dataclass(frozen=True)
class CallStep:
    """A call of a tool within an answer.

    Attributes:
        number: its place among the calls of the answer, from 0.
        result: what the tool said; None while the call is under way.
        refused: whether it was not carried out: an unknown tool, bad arguments, or no budget.
        model: name of the model that answered, where it is not the tool's: a menu may call it by a letter.
    """

    number: int
    tool: str
    arguments: Mapping[str, Any]
    result: str | None = None
    usd: float = 0.0
    seconds: float = 0.0
    refused: bool = False
    model: str = ""


@dataclass(frozen=True)
class Answer:
    """The end of a question.

    Attributes:
        id: name of the request, which its lines in the folder's files have.
        answer: the final answer; None: there is none, and `reason` says why.
        status: how it ended; a limit of the request ends it with "no_answer".
        reason: "" with an answer, else one sentence.
        limit: the limit of the request that ended it, "max_usd", "max_tokens" or "max_seconds"; else "".
        cost_usd: dollars of all calls and of the policy's own tokens, as an evaluation counts them.
        seconds: seconds of work, as an evaluation counts them: parallel calls once, waits for a place never.
        tool_calls: calls of the caller's own tools, which end the answer; ask again with their results.
        ledger: rows of every call and of the policy's own turns, as far as it came.
        trajectory: all that training would keep, token ids included; None where a limit of the request ended it.
    """

    id: str
    answer: str | None
    status: Status
    reason: str
    limit: str
    cost_usd: float
    seconds: float
    calls: tuple[CallStep, ...]
    tool_calls: tuple[ToolCall, ...]
    ledger: tuple[Usage, ...] = field(repr=False)
    trajectory: Trajectory | None = field(default=None, repr=False)

    @property
    def trace(self) -> str:
        """A table of the calls in plain text: tool, arguments, seconds and dollars; the sums stand below it."""
        rows = [(_named(step), arguments(step), f"{step.seconds:.1f} s", dollars(step.usd)) for step in self.calls]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
        lines = [
            f"{tool:{widths[0]}}  {given:{widths[1]}}  {seconds:>{widths[2]}}  {usd:>{widths[3]}}"
            + ("  refused" if step.refused else "")
            for (tool, given, seconds, usd), step in zip(rows, self.calls, strict=True)
        ]
        calls = f"{len(rows)} call{'' if len(rows) == 1 else 's'}"
        return "\n".join([*lines, f"{calls}, {self.seconds:.1f} s, {dollars(self.cost_usd)}"])


def _named(step: CallStep) -> str:
    return f"{step.tool} ({step.model})" if step.model else step.tool


def arguments(step: CallStep) -> str:
    """Return a call's arguments in one short line: the one value alone, or all with their names."""
    values = list(step.arguments.values())
    alone = len(values) == 1 and isinstance(values[0], str)
    text = str(values[0]) if alone else json.dumps(step.arguments) if values else ""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def tell(words: str) -> None:
    """Print words to whoever runs the command; standard output is for answers."""
    print(words, file=sys.stderr, flush=True)


def dollars(usd: float) -> str:
    """Return dollars with as many digits as a small amount needs."""
    return f"${usd:.2f}" if usd >= 0.995 or not usd else f"${usd:.4f}" if usd >= 0.00995 else f"${usd:.6f}"


def told(step: CallStep) -> str:
    """Return what is told of a call: that it begins, or that it has ended."""
    if step.result is None:
        return f"{step.tool}({arguments(step)})"
    said = [step.model] if step.model else []
    said += ["refused"] if step.refused else []
    return f" {', '.join([*said, f'{step.seconds:.1f} s', dollars(step.usd)])}\n"
