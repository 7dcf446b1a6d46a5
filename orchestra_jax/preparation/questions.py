"""Questions of GeneralThought-430K, HLE and FRAMES: read, sifted, and written with the columns that a run reads."""

import contextlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from orchestra_jax.data.rows import BadRow, rows_of
from orchestra_jax.data.sources import is_blank, question_files, read_question
from orchestra_jax.preparation.made import Made, Wanted

SCORE = "verifier_score"  # of one model's answer to a question of GeneralThought, 0 to 1
SET_ASIDE = "set_aside.txt"
_THOUGHT = ("question_id", "question", "reference_answer", "task", "question_source")
_HLE = ("id", "question", "answer", "category", "answer_type", "raw_subject")
_FRAMES = ("id", "question", "answer", "Prompt", "Answer", "wiki_links", "reasoning_types")


def general_thought(source: Path, folder: Path, wanted: Wanted) -> Made:
    """Write the questions with a reference answer, once each, and those set aside with the reason.

    Raises:
        OSError, ValueError: the source cannot be read, or nothing is left; one sentence.
    """
    rates = _rates(source, wanted) if wanted.pass_rate else None
    low, high = wanted.pass_rate or (0.0, 1.0)
    kept, aside = set[str](), dict[str, str]()
    made = Made()
    with (folder / "questions.jsonl").open("w", encoding="utf-8") as out:
        for number, place, row in _rows(source, _THOUGHT, aside, made.counts):
            name = str(row.get("question_id"))
            if name in kept:
                made.counts["further answers to a question"] += 1
                continue
            if why := _unfit(row, place, number):
                aside[name] = why
                continue
            if rates is not None:
                rate = rates.get(name)
                if rate is None or not low <= rate <= high:
                    aside[name] = "no pass rate" if rate is None else f"pass rate {rate:.3f}"
                    continue
                row = {**row, "pass_rate": rate}
            kept.add(name)
            aside.pop(name, None)
            _write(out, row)
            if len(kept) == wanted.limit:
                break
    return _account(folder, made, len(kept), aside, source)


def hle(source: Path, folder: Path, wanted: Wanted) -> Made:
    """Write the questions of HLE without a picture. Raises as `general_thought` does."""
    return _plain(source, folder, wanted, "hle", _HLE, "image")


def frames(source: Path, folder: Path, wanted: Wanted) -> Made:
    """Write the questions of FRAMES, in the form that the source has. Raises as `general_thought` does."""
    return _plain(source, folder, wanted, "frames", _FRAMES)


def _plain(
    source: Path, folder: Path, wanted: Wanted, kind: str, columns: tuple[str, ...], picture: str | None = None
) -> Made:
    """Write the rows of a benchmark as they are, but for those with a picture and those that are no question."""
    made, aside, kept = Made(), dict[str, str](), 0
    read = (*columns, picture) if picture else columns
    with (folder / f"{kind}.jsonl").open("w", encoding="utf-8") as out:
        for number, place, row in _rows(source, read, aside, made.counts):
            try:
                question = read_question(kind, row, place, number, kind)
            except BadRow as problem:
                aside[place] = str(problem)
                continue
            if question is None:
                made.counts["with a picture"] += 1
                continue
            _write(out, {key: row[key] for key in columns if key in row})
            kept += 1
            if kept == wanted.limit:
                break
    return _account(folder, made, kept, aside, source)


def _rows(
    source: Path, columns: tuple[str, ...], aside: dict[str, str], counts: Counter[str]
) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Yield (number, place, row with these columns) of every file; what is no row is set aside."""
    for file in question_files(source):
        for number, place, read in rows_of(file, columns):
            counts["rows"] += 1
            try:
                row = read()
            except BadRow as problem:
                aside[place] = str(problem)
                continue
            yield number, place, {key: row[key] for key in columns if row.get(key) is not None}


def _unfit(row: Mapping[str, Any], place: str, number: int) -> str:
    """Return why a row of GeneralThought is no question for training, or ""."""
    if is_blank(row.get("reference_answer")):
        return "blank reference answer"
    try:
        read_question("general_thought", row, place, number, "")
    except BadRow as problem:
        return str(problem)
    return ""


def _rates(source: Path, wanted: Wanted) -> dict[str, float]:
    """Return the pass rate of every question by id: of a recorded run, or of the answers in the data set."""
    tried: defaultdict[str, list[float]] = defaultdict(list)
    if wanted.passed is not None:
        for _, place, read in rows_of(wanted.passed):
            row = read()
            if not isinstance(row.get("id"), str) or not isinstance(row.get("solved"), bool):
                raise ValueError(f"{place}: no trajectory of an evaluation, which has 'id' and 'solved'.")
            if row.get("status") != "failed":
                tried[row["id"]].append(float(row["solved"]))
    else:
        for file in question_files(source):
            for _, _, read in rows_of(file, ("question_id", SCORE)):
                with contextlib.suppress(BadRow):  # it is set aside where it is read as a question
                    score = (row := read()).get(SCORE)
                    if isinstance(score, int | float) and math.isfinite(score):  # parquet has NaN for what is missing
                        tried[str(row.get("question_id"))].append(float(score))
    if not tried:
        raise ValueError(f"{str(wanted.passed or source)!r} tells no pass rate: leave out --pass-rate.")
    return {name: sum(scores) / len(scores) for name, scores in tried.items()}


def _account(folder: Path, made: Made, kept: int, aside: Mapping[str, str], source: Path) -> Made:
    """Write what was set aside beside the questions, and count it by its reason."""
    if not kept:
        first = next(iter(aside.values()), "it has no rows")
        raise ValueError(f"{str(source)!r} has no question that can be used: {first}.")
    made.counts["kept"] = kept
    for why in aside.values():
        made.counts[f"set aside: {_reason(why)}"] += 1
    if aside:
        lines = "".join(f"{name}\t{why}\n" for name, why in aside.items())
        (folder / SET_ASIDE).write_text(lines, encoding="utf-8", errors="backslashreplace")
    return made


def _reason(why: str) -> str:
    if why.startswith("pass rate"):
        return "pass rate out of bounds"
    return why if why in ("blank reference answer", "no pass rate") else "unusable row"


def _write(out: TextIO, row: Mapping[str, Any]) -> None:
    out.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
