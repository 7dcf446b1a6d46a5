"""The tools of a recorded question: models that give their recorded answers, and a sandbox that really runs code."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from orchestra_jax.envs.recorded.table import Evidence, Recording, call_seconds, dollars
from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.reservations import acquire
from orchestra_jax.tools.base import Tool
from orchestra_jax.tools.catalogue import Entry, Instance, role_seconds
from orchestra_jax.tools.entries import within_budget
from orchestra_jax.tools.executor import ToolHandler
from orchestra_jax.tools.python.spec import TOOL
from orchestra_jax.types import Task, ToolResult, ToolSpec, Usage

ROLE, PYTHON = "generalist", TOOL.name
_STEPS = 24  # prices that a menu tells apart between one and its tenfold
NO_CODE = "The question has no code to run: write some."
CUT = " ..."
SAME = " (same)"  # behind a result that answers as an earlier one does
_LONGEST = 120  # characters; of 57,840 recorded answers three longer ones are right
_BLOCK = re.compile(r"\[PYTHON\]\n(.*?)\n?\[/PYTHON\]", re.DOTALL)
_ASSERT, _ASKED = "assert ", "== ??"
_NO_NAME = re.compile(r"[^\w-]", re.ASCII)
_NOTHING: Mapping[str, Any] = {"type": "object", "properties": {}, "required": []}
_UNLIMITED = Limits()
_ALLOWANCES: "WeakKeyDictionary[Budget, Budget]" = WeakKeyDictionary()  # by the trajectory's budget; without parents
_CODE = {"type": "string", "description": "The code; left out, the code of the question is run."}


def code_of(question: str) -> str | None:
    """Return code that shows the value a question with a block of code asks for; None: the question has no block.

    The form is that of CRUXEval's output prediction: `assert CALL == ??` is the last line of the block.
    """
    block = _BLOCK.search(question)
    if block is None:
        return None
    body, _, last = block[1].rpartition("\n")
    if not last.startswith(_ASSERT) or not last.endswith(_ASKED):
        return None
    return f"{body}\n{last.removeprefix(_ASSERT).removesuffix(_ASKED).strip()}"


def tool_name(model: str) -> str:
    """Return the name of a model on menus without aliases."""
    return _NO_NAME.sub("-", model)


def _expert(model: str, evidence: Evidence, recording: Recording, prices: PriceList, full: bool, listed: bool) -> Entry:
    """Return the tool of a model; a call has no arguments, because the model was asked the question as it stands.

    Args:
        evidence: source of its description.
        prices: list whose latencies tell the seconds of a call.
        full: whether a call gives the whole output, else the answer in it.
        listed: whether price lists have the model; else a call costs what it cost when it was recorded.
    """

    def for_task(task: Task) -> ToolHandler:
        async def ask(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
            row = recording.answer(model, task.extra["question"])
            text = row.output if full else shown(row.answer)
            usage = Usage(
                model, "tool", row.prompt_tokens, 0, row.completion_tokens, seconds=call_seconds(model, row, prices)
            )
            usage = usage if listed else replace(usage, cost_usd=dollars(model, row, prices))
            await _take_from_allowance(budget, prices.priced(usage) if listed else usage)
            return ToolResult(text, (usage,))

        return within_budget(ask)

    spec = ToolSpec(name=tool_name(model), description=evidence.description, parameters=_NOTHING)
    return Entry(spec, _absent, role=ROLE, model=model, billed=(model,) if listed else (), for_task=for_task)


def _python(sandbox: Tool, listed: bool) -> Entry:
    """Return the sandbox, which runs the code of the question if it is given none."""
    parameters = {"type": "object", "properties": {"code": _CODE}, "required": []}
    described = "Runs code, by default that of the question; free."
    spec = replace(TOOL, description=described, parameters=parameters)

    def for_task(task: Task) -> ToolHandler:
        async def run(arguments: Mapping[str, Any], budget: Budget) -> ToolResult | str:
            code = arguments.get("code") or code_of(task.question)
            if code is None:
                return ToolResult(NO_CODE, is_error=True)
            return await sandbox.run({"code": code}, budget)

        return run

    return Entry(spec, _absent, billed=(PYTHON,) if listed else (), for_task=for_task)


def catalogue_entries(
    recording: Recording,
    evidence: Mapping[str, Evidence],
    prices: PriceList,
    models: Sequence[str],
    sandbox: Tool | None,
    full: bool,
) -> list[Entry]:
    """Return the tools of these models, and the sandbox if there is one."""
    entries = [
        _expert(model, evidence[model], recording, prices, full, listed=model in prices.entries) for model in models
    ]
    return entries if sandbox is None else [*entries, _python(sandbox, listed=PYTHON in prices.entries)]


def shown(answer: str) -> str:
    """Return an answer as a call shows it: an empty one as the empty string that it is, a long one cut."""
    text = answer.strip() or "''"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}{CUT}"


def cut(question: str, most: int | None) -> str:
    """Return a question of at most so many bytes of UTF-8, without its middle if it has more; None: as it stands."""
    text = question.encode()
    if most is None or len(text) <= most:
        return question
    end = most // 3
    first, last = text[: most - end - len(f"{CUT} ")], text[len(text) - end :]
    return f"{first.decode(errors='ignore')}{CUT} {last.decode(errors='ignore')}"


def mean_cost(model: str, evidence: Evidence, prices: PriceList) -> float:
    """Return the mean dollars of a call like those of the training split."""
    if model not in prices.entries and evidence.cost_usd is not None:
        return evidence.cost_usd
    tokens = {
        "prompt_tokens": round(evidence.prompt_tokens),
        "completion_tokens": round(evidence.completion_tokens),
    }
    return prices.cost(model, **tokens)


def menu(
    instance: Instance, entries: Mapping[str, Entry], evidence: Mapping[str, Evidence], prices: PriceList, timed: bool
) -> tuple[ToolSpec, ...]:
    """Return the tools of an instance in few words (`legend`), the cheapest first, free tools before them.

    Args:
        timed: whether lines tell the seconds of a call.
    """

    def shown(spec: ToolSpec) -> tuple[float, ToolSpec]:
        entry = entries[instance.record["tools"][spec.name]]
        if not entry.role:
            return 0.0, replace(spec, description=entry.spec.description)
        dollars = mean_cost(entry.model, evidence[entry.model], prices)
        words = f"{evidence[entry.model].description} {shown_price(dollars)}"
        if timed and (taken := role_seconds(entry.model, entry.role, prices)):
            words += f" {taken:.{0 if taken >= 1 else 1}f}s"
        return dollars, replace(spec, description=words)

    # Menus are in random order, which the sort keeps among equals.
    return tuple(spec for _, spec in sorted(map(shown, instance.tools), key=lambda pair: pair[0]))


def legend(evidence: Mapping[str, Evidence], timed: bool) -> str:
    """Return sentences that explain the figures of a menu and the mark of a result."""
    kinds = next(iter(evidence.values())).kinds
    right = f"percent right on {'/'.join(kinds)}" if kinds else "percent right"
    line = f"A model's line: {right}, dollars per million questions{', seconds' if timed else ''}."
    return f'{line} "{SAME.strip()}" is behind an answer that another tool gave before.'


def shown_price(usd: float) -> str:
    """Return the dollars of a million calls, as the nearest of 24 steps a decade: two digits and zeros, as in "$2600".

    Few prices are shown, so that a small policy can learn each of them as one token; a step is 10 %.
    """
    return _step(round(_STEPS * math.log10(1e6 * usd))) if usd > 0 else "$0"


def all_prices() -> list[str]:
    """Return the prices that menus usually show: those of calls between a tenth of a millionth and ten dollars."""
    return ["$0", *map(_step, range(-_STEPS, 7 * _STEPS + 1))]


def _step(number: int) -> str:
    """Return the price of a step: 0 is one dollar."""
    return f"${float(f'{10 ** (number / _STEPS):.2g}'):.12g}"


async def _take_from_allowance(budget: Budget, row: Usage) -> None:
    """Take a call, with its dollars by the list that budgets count by, from the trajectory's own budget.

    Nothing leaves the machine, so that the bill of the run stays empty; but budget.trajectory_usd refuses a recorded
    call as it would refuse a paid one.

    Raises:
        BudgetExceeded: it does not fit; nothing is taken.
    """
    if budget.limits == _UNLIMITED:
        return
    if (allowance := _ALLOWANCES.get(budget)) is None:
        allowance = _ALLOWANCES[budget] = Budget(budget.limits, name=budget.name)
    (await acquire(allowance, row)).settle(row)


async def _absent(arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
    raise AssertionError("The entry's handler is made for the task of its episode.")
