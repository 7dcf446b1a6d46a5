"""Feedback on answers, and the log of what was asked, in the form that training reads.

`serving.kept` trains on the answers of the database; `envs.quickstart.served` on the log that `served write` leaves.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import Connection, Row, Select, select, update

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.serving.database import REQUESTS, VERDICTS, ServerDatabase, dollars
from orchestra_jax.serving.errors import RequestError, read_body, typed, unsupported, wrong
from orchestra_jax.serving.keys import Key
from orchestra_jax.tools.answers import extract_answer, matches

_FIELDS = ("id", "thumbs", "score", "correct")
_THUMBS = {"up": 1.0, "down": 0.0}
RIGHT = 0.5  # a score from here on says that the answer was right
_LONGEST = 10_000  # characters of a right answer


@dataclass(frozen=True)
class Feedback:
    """Words of a user on an answer.

    Attributes:
        score: from 0, wrong, to 1, right.
    """

    request: str
    score: float | None = None
    correct: str | None = None


def read_feedback(content: bytes) -> Feedback:
    """Read the body of a request; raise RequestError: it is none."""
    body = read_body(content)
    if unknown := [key for key in body if key not in _FIELDS]:
        raise unsupported(unknown[0], f"feedback has {', '.join(_FIELDS)}")
    name, correct = typed(body, "id", str, "a text"), typed(body, "correct", str, "a text")
    thumbs, score = typed(body, "thumbs", str, "up or down"), body.get("score")
    if not name:
        raise wrong("id", "the id of an answer")
    if thumbs is not None and thumbs not in _THUMBS:
        raise wrong("thumbs", "up or down")
    if thumbs is not None and score is not None:
        raise RequestError(400, "Give thumbs or a score, not both.", param="score", code="invalid_value")
    if score is not None and (isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1):
        raise wrong("score", "a number from 0 to 1")
    if correct is not None and not 0 < len(correct.strip()) <= _LONGEST:
        raise wrong("correct", f"the right answer, of at most {_LONGEST:,} characters")
    found = Feedback(name, score if thumbs is None else _THUMBS[thumbs], correct)
    if (found.score, found.correct) == (None, None):
        raise RequestError(400, "Give thumbs, a score, or the correct answer.", code="missing_required_parameter")
    return found


async def keep(database: ServerDatabase, said: Feedback, key: Key | None) -> tuple[str, bool | None]:
    """Keep feedback beside its request; later feedback replaces earlier one.

    Where it gives the right answer alone, the score is 1 if this was said, as an evaluation compares answers, else 0.

    Returns:
        The policy that answered, and whether it was right; None: that is not known, or it was judged before.

    Raises:
        RequestError: this key has asked no such request.
    """
    number = None if key is None else key.number
    mine = (REQUESTS.c.id == said.request, REQUESTS.c.key.is_not_distinct_from(number))

    def work(connection: Connection) -> tuple[str, bool | None] | None:
        row = connection.execute(select(REQUESTS).where(*mine)).first()
        if row is None:
            return None
        score = said.score
        if score is None and said.correct is not None and row.kept is not None:
            answer = json.loads(row.kept)["trajectory"]["answer"] or ""
            score = float(matches(extract_answer(answer), [said.correct]))
        values = {"judged": time.time(), "score": score, "correct": said.correct}
        connection.execute(update(REQUESTS).where(*mine).values(values))
        return row.policy, None if score is None or row.score is not None else score >= RIGHT

    found = await asyncio.wrap_future(database.do(work))
    if found is None:
        raise RequestError(404, f"You have asked no request {said.request!r}.", param="id", code="not_found")
    return found


def logged(database: ServerDatabase) -> Iterator[dict[str, Any]]:
    """Yield what is kept of each request, oldest first. `answer` is the right one, where feedback or a judge says so.

    "question", "answer" and "wish" are what training reads; "before" has the messages before the question, "said" what
    was answered, and "judged_by" names who says whether it was right: "user", or a judge.
    """
    kept = select(REQUESTS.c.id).where(REQUESTS.c.kept.is_not(None)).order_by(REQUESTS.c.begun)
    for name in database.do(lambda connection: list(connection.scalars(kept))).result():
        one = select(REQUESTS, VERDICTS.c.judge, VERDICTS.c.right).outerjoin(
            VERDICTS, VERDICTS.c.request == REQUESTS.c.id
        )
        one = one.where(REQUESTS.c.id == name)
        row = database.do(partial(_first, one)).result()
        if row is not None and row.kept is not None:  # it may have been forgotten meanwhile
            yield _line(row._asdict())


def _first(statement: Select[Any], connection: Connection) -> Row[Any] | None:
    return connection.execute(statement).first()


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = json.loads(row["kept"])
    task, played = kept["task"], kept["trajectory"]
    score, by = row["score"], "user"
    if score is None and row["correct"] is None:
        score, by = row["right"], row["judge"]
    right = row["correct"] or (played["answer"] if (score or 0.0) >= RIGHT else None)
    return {
        "id": row["id"],
        "time": row["begun"],
        "before": kept.get("before", []),  # older rows have none
        "question": task["question"],
        "wish": task["preference"]["instruction"],
        **({} if right is None else {"answer": right}),
        "said": played["answer"],
        "status": row["status"],
        "usd": dollars(row["usd"]),
        "seconds": row["seconds"],
        "policy": row["policy"],
        "score": score,
        "judged_by": by,
        "temperature": kept.get("temperature"),
        "calls": calls_of(played),
        "task": task,
        "trajectory": played,
    }


def calls_of(played: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of a kept trajectory, with what came of each."""
    turns = [turn for sequence in played["sequences"] for turn in sequence]
    return [
        {"tool": call["name"], "arguments": call["arguments"], "result": result["text"]}
        for turn in turns
        for call, result in zip(turn["calls"], turn["results"], strict=False)
    ]


def write_log(database: ServerDatabase, file: str, *, whole: bool) -> tuple[int, int]:
    """Write the log, a line each; return how many lines were written, and how many had no right answer.

    Args:
        whole: whether requests whose right answer nobody has said are written too.

    Raises:
        ConfigError: the file cannot be written.
    """
    written = unknown = 0
    with contextlib.ExitStack() as parts:
        stream = sys.stdout if file == "-" else parts.enter_context(_new(file))
        for line in logged(database):
            unknown += "answer" not in line
            if whole or "answer" in line:
                stream.write(json.dumps(line) + "\n")
                written += 1
    return written, unknown


def _new(file: str) -> TextIO:
    try:
        return Path(file).open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{file!r} cannot be written ({error.strerror}): name another file, or - for standard output."
        ) from error
