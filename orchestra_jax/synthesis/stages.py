"""The stages of a synthesis: each works on many items at once and leaves one file, written whole when it is done.

A stage that has its file is read, not run. One that was interrupted runs again, and every answer that was paid for
comes from the record of calls, so nothing is paid for twice.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.io.whole import write_whole
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.money.run_budget import Halted
from orchestra_jax.synthesis.cast import Cast, Rejected, Tally
from orchestra_jax.types import InfrastructureError, ReplayMiss

Row = dict[str, Any]
Item = TypeVar("Item")
_HALTS = (InfrastructureError, BudgetExceeded, ReplayMiss)


@dataclass
class StageResult:
    """The result of a stage, or of its work on one item.

    Attributes:
        rows: rows that were kept, in the order of the items.
        rejected: {"reason", "why"} and perhaps "about" for each row that was not.
    """

    name: str
    rows: list[Row] = field(default_factory=list)
    rejected: list[Row] = field(default_factory=list)
    tally: Row = field(default_factory=dict)

    @property
    def reasons(self) -> dict[str, int]:
        """Number of rejected rows by reason, the most frequent first."""
        return dict(Counter(each["reason"] for each in self.rejected).most_common())

    def keep(self, row: Mapping[str, Any]) -> None:
        """Keep a row."""
        self.rows.append(dict(row))

    def reject(self, reason: str, why: str, about: Any = None) -> None:
        """Count a row that is not kept; `about` is JSON of what it was."""
        self.rejected.append({"reason": reason, "why": why, **({} if about is None else {"about": about})})


Work = Callable[[Item, StageResult], Awaitable[None]]  # keeps and rejects rows of one item


class Stages:
    """Stages that run one after the other in a folder.

    Args:
        folder: an existing folder for their files.
        cast: the models, whose tally is kept by stage.
        settings: all that the stages depend on; with other settings every stage runs again.
        show: called with (stage, items done, items in all).

    Attributes:
        done: the stages so far, in order.
    """

    def __init__(
        self,
        folder: Path,
        cast: Cast,
        settings: Mapping[str, Any],
        concurrency: int,
        show: Callable[[str, int, int], object] = lambda stage, done, total: None,
    ) -> None:
        self._folder, self._cast, self._show = folder, cast, show
        self._places = asyncio.Semaphore(concurrency)
        self._inputs = _digest(settings)
        self.done: list[StageResult] = []

    async def run(self, name: str, items: Sequence[Item], work: Work[Item]) -> StageResult:
        """Return the stage's result: that of its file, or the result of `work` on the items.

        `work` keeps and rejects rows; a `Rejected` that it raises rejects the item. The rows must depend on the item
        and on the models alone.

        Raises:
            Halted: the models could not be asked about some items, once all others are done.
        """
        file = self._folder / f"{len(self.done) + 1:02d}-{name}.jsonl"
        self._inputs = _digest([self._inputs, name, items])
        found = _read(file, self._inputs)
        if found is None:
            found = await self._work(name, items, work)
            _write(file, self._inputs, found)
        self.done.append(found)
        return found

    async def _work(self, name: str, items: Sequence[Item], work: Work[Item]) -> StageResult:
        """Work on all items side by side, and gather their rows in the order of the items."""
        self._cast.tally = tally = Tally()
        outs, finished = [StageResult(name) for _ in items], 0
        self._show(name, 0, len(items))

        async def one(item: Item, out: StageResult) -> None:
            nonlocal finished
            async with self._places:
                try:
                    await work(item, out)
                except Rejected as error:
                    out.reject(error.reason, error.why)
            finished += 1
            self._show(name, finished, len(items))

        tasks = [asyncio.create_task(one(*pair)) for pair in zip(items, outs, strict=True)]
        try:
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for task in tasks:
                task.cancel()
        errors = [end for end in ends if isinstance(end, BaseException)]
        for error in errors:
            if not isinstance(error, _HALTS):
                raise error
        if errors:
            raise Halted(
                f"Stage {name}: {len(errors)} of {len(items)} items could not be worked on: {errors[0]} The same "
                "command goes on; no answer is paid for twice."
            )
        rows = [row for out in outs for row in out.rows]
        return StageResult(name, rows, [each for out in outs for each in out.rejected], tally.as_json())


def _write(file: Path, inputs: str, done: StageResult) -> None:
    head = {"stage": done.name, "inputs": inputs, "tally": done.tally}
    lines = [head, *({"row": row} for row in done.rows), *({"rejected": each} for each in done.rejected), {"end": True}]
    write_whole(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def _read(file: Path, inputs: str) -> StageResult | None:
    """Return the result in a stage's file, or None if the file is missing, broken, or of other inputs."""
    try:
        head, *lines, end = [read_json(line) for line in file.read_bytes().splitlines()]
        if head["inputs"] != inputs or end != {"end": True}:
            return None
        rows = [line["row"] for line in lines if "row" in line]
        return StageResult(
            head["stage"], rows, [line["rejected"] for line in lines if "rejected" in line], head["tally"]
        )
    except (OSError, Unreadable, ValueError, LookupError, TypeError):
        return None


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
