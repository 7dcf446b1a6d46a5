"""Real answers that are known to be right or wrong, for experiments/judge.py: as many right as wrong ones.

    python -m benchmarks.labelled_sample labelled.jsonl
    python -m benchmarks.labelled_sample labelled.jsonl --rows 200 --seed 1 --sets gsm math-l5

They are drawn from $ORCHESTRA_DATA/recorded/zeroeval: what 24 models answered to questions of GSM8K, MATH (level 5) and
CRUXEval, and whether it was right by comparing numbers (CRUXEval: strings). Of an output its field "answer" is the
candidate, or all of it where it has none. Those that exact match decides rightly teach nothing about a judge, so
`--hard` leaves them out.
"""

import argparse
import gzip
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.short import parse
from orchestra_jax.tools.answers import extract_answer, matches


def rows(folder: Path, sets: list[str], models: list[Path]) -> Iterator[dict[str, Any]]:
    """Every recorded answer of the models to questions of the sets, as a row of a labelled sample."""
    with (folder / "questions.jsonl").open(encoding="utf-8") as stream:
        questions = {row["id"]: row for row in map(json.loads, stream) if row["set"] in sets}
    for file in models:
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            for found in map(json.loads, stream):
                if (asked := questions.get(found["id"])) is not None:
                    yield {
                        "question": asked["question"], "reference": str(asked["answer"]),
                        "answer": candidate(found["output"]), "correct": bool(found["correct"]),
                        "model": file.name.removesuffix(".jsonl.gz"), "id": found["id"],
                    }  # fmt: skip


def candidate(output: str) -> str:
    """The answer in an output; all of the output where that cannot be read."""
    try:
        return str(json.loads(output)["answer"])
    except (ValueError, LookupError, TypeError):
        return output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the sample, .jsonl")
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sets", nargs="+", choices=["gsm", "math-l5", "crux"], default=["gsm", "math-l5", "crux"])
    parser.add_argument("--models", type=int, default=8, help="so many of the 24, drawn too (default 8)")
    parser.add_argument("--hard", action="store_true", help="only answers on which exact match is wrong")
    asked = parse(parser, "--rows", "4", os.path.join(tempfile.gettempdir(), "labelled_sample.jsonl"))
    folder = Path(os.environ.get("ORCHESTRA_DATA", "data")) / "recorded" / "zeroeval"
    if not folder.is_dir():
        parser.exit(2, f"There is no {folder}: set ORCHESTRA_DATA to the folder that holds recorded/zeroeval.\n")
    rng = random.Random(asked.seed)
    models = rng.sample(sorted((folder / "outputs").glob("*.jsonl.gz")), asked.models)
    kinds: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for row in rows(folder, asked.sets, models):
        hard = matches(extract_answer(row["answer"]), [row["reference"]]) != row["correct"]
        if hard or not asked.hard:
            kinds[row["correct"]].append(row)
    drawn = [row for some in kinds.values() for row in rng.sample(some, min(len(some), asked.rows // 2))]
    rng.shuffle(drawn)
    asked.file.write_text("".join(json.dumps(row) + "\n" for row in drawn), encoding="utf-8")
    print(f"{len(drawn)} answers, {sum(row['correct'] for row in drawn)} of them right, in {asked.file}")


if __name__ == "__main__":
    main()
