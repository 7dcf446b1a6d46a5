"""Plain text of answers for terminals and reasoning deltas."""

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestra_jax.serving.asking import Answer, CallStep

_WIDTH = 48  # characters of a call's arguments


def trace(answer: "Answer") -> str:
    """Return a table of an answer's calls, and a line of sums below it."""
    rows = [(_named(step), arguments(step), f"{step.seconds:.1f} s", dollars(step.usd)) for step in answer.calls]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines = [
        f"{tool:{widths[0]}}  {given:{widths[1]}}  {seconds:>{widths[2]}}  {usd:>{widths[3]}}"
        + ("  refused" if step.refused else "")
        for (tool, given, seconds, usd), step in zip(rows, answer.calls, strict=True)
    ]
    calls = f"{len(rows)} call{'' if len(rows) == 1 else 's'}"
    return "\n".join([*lines, f"{calls}, {answer.seconds:.1f} s, {dollars(answer.cost_usd)}"])


def _named(step: "CallStep") -> str:
    return f"{step.tool} ({step.model})" if step.model else step.tool


def arguments(step: "CallStep") -> str:
    """Return a call's arguments in one short line: the one value alone, or all with their names."""
    values = list(step.arguments.values())
    alone = len(values) == 1 and isinstance(values[0], str)
    text = str(values[0]) if alone else json.dumps(step.arguments) if values else ""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def dollars(usd: float) -> str:
    """Return dollars with as many digits as a small amount needs."""
    return f"${usd:.2f}" if usd >= 0.995 or not usd else f"${usd:.4f}" if usd >= 0.00995 else f"${usd:.6f}"


def begun(step: "CallStep") -> str:
    """Return what is told when a call begins."""
    return f"{step.tool}({arguments(step)})"


def ended(step: "CallStep") -> str:
    """Return what is told when a call has ended."""
    said = [step.model] if step.model else []
    said += ["refused"] if step.refused else []
    return f" {', '.join([*said, f'{step.seconds:.1f} s', dollars(step.usd)])}\n"
