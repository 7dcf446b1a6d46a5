"""A judge says whether served answers are right of which no user has said so, within a budget."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, select

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.serving.database import REQUESTS, VERDICTS, ServerDatabase
from orchestra_jax.serving.feedback import calls_of
from orchestra_jax.serving.ledger import INSERTS, judge_budget
from orchestra_jax.tools.answers import extract_answer, matches
from orchestra_jax.tools.experts.run_experts import make_judge
from orchestra_jax.types import InfrastructureError, Status

MATCH = "match"  # the judge of answers that equal what the run knows to be right; it costs nothing
_AT_ONCE = 64


class Judging:
    """Judges each kept answer that has neither feedback nor a verdict.

    A verdict is in the database before the next answer is judged, so another start goes on where one was stopped. What
    was asked and had no reply yet when a process was killed counts with its worst case, and is asked again.

    Args:
        cfg: settings of the run; `tools.judge` is the judge.
        max_usd: most dollars of all judges of this database, earlier starts included.

    Raises:
        ConfigError: the judge cannot be asked.
    """

    def __init__(self, database: ServerDatabase, cfg: WorldConfig, max_usd: float) -> None:
        if not 0 <= max_usd < 1e6:
            raise ConfigError(f"--max-usd={max_usd} must be from 0 to 1,000,000.")
        self._database, self._model = database, cfg.tools.judge
        self._judge, self._close = make_judge(cfg)
        self._budget, self._counts = judge_budget(database, max_usd), Counter[bool | None]()
        self._waiting: Iterator[str] = iter(())

    async def run(self) -> str:
        """Judge all that waits; return a sentence on what was found.

        Raises:
            BudgetExceeded: the next call does not fit; the calls under way have ended, and their verdicts are kept.
            OSError: the database cannot be written.
        """
        self._waiting = iter(_unjudged(self._database))
        try:
            async with asyncio.TaskGroup() as group:
                workers = [group.create_task(self._work()) for _ in range(_AT_ONCE)]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        finally:
            await self._close()
        lost = f", {self._counts[None]} have no verdict" if self._counts[None] else ""
        found = f"{self._counts[True]} answers are right, {self._counts[False]} wrong{lost}"
        said = f"{found}; ${self._budget.spent.usd:.4f} were paid."
        if refused := [error for worker in workers if (error := worker.result()) is not None]:
            raise BudgetExceeded(f"{said} {refused[0]}", self._budget.name)
        return said

    def stop(self) -> None:
        """Ask nothing more; what is under way ends."""
        self._waiting = iter(())

    async def _work(self) -> BudgetExceeded | None:
        """Judge one answer after the other; return what refuses the next one."""
        while (name := next(self._waiting, None)) is not None:
            try:
                await self._judged(name)
            except BudgetExceeded as error:
                self.stop()
                return error
        return None

    async def _judged(self, name: str) -> None:
        """Judge an answer and keep the verdict; where the judge fails, the next start asks again."""
        kept_text = select(REQUESTS.c.kept).where(REQUESTS.c.id == name)
        text = await asyncio.wrap_future(self._database.do(lambda connection: connection.scalar(kept_text)))
        kept = json.loads(text or "{}")
        if not kept or kept["trajectory"]["answer"] is None:  # forgotten, or a client's tool was called
            return
        try:
            by, right = await self._verdict(kept)
        except InfrastructureError:
            self._counts[None] += 1
            return
        values = {"request": name, "judge": by, "right": int(right), "judged": time.time()}

        def work(connection: Connection) -> None:
            new = INSERTS[connection.dialect.name](VERDICTS).values(values)
            connection.execute(new.on_conflict_do_nothing())  # another start of the command was faster

        await asyncio.wrap_future(self._database.do(work))
        self._counts[right] += 1

    async def _verdict(self, kept: Mapping[str, Any]) -> tuple[str, bool]:
        """Return who judges an answer, and whether it is right."""
        question, said, known = _asked(kept), kept["trajectory"]["answer"], kept["task"]["answer"]
        if known and matches(extract_answer(said), known):
            return MATCH, True
        if known:
            return self._model, (await self._judge.judge(question, said, known, budget=self._budget)).correct
        evidence = "\n".join(f"{call['tool']}: {call['result']}" for call in calls_of(kept["trajectory"]))
        found = await self._judge.judge_alone(question, said, evidence, budget=self._budget)
        return self._model, found.correct


def _asked(kept: Mapping[str, Any]) -> str:
    """Return the question, with the messages before it."""
    question = str(kept["task"]["question"])
    said = [f"{message['role']}: {message['content']}" for message in kept.get("before", ()) if message["content"]]
    return "\n".join([*said, f"user: {question}"]) if said else question


def _unjudged(database: ServerDatabase) -> list[str]:
    """Return the requests that wait for a verdict, oldest first."""
    row = REQUESTS.c
    silent = (row.kept.is_not(None), row.score.is_(None), row.correct.is_(None), row.status == str(Status.COMPLETED))
    asked = select(row.id).where(*silent, row.id.not_in(select(VERDICTS.c.request))).order_by(row.begun)
    return database.do(lambda connection: list(connection.scalars(asked))).result()
