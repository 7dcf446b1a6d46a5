"""A log as a user would bring it: a CSV of a few of the public recorded answers, under names that no price list has.

python -m benchmarks.data.own_log log.csv
python -m benchmarks.data.own_log next.csv --skip 75    # other questions, as of the week after
"""

import argparse
import csv
import os
from pathlib import Path

import numpy as np

from orchestra_jax.envs.recorded.readers import read_recording
from orchestra_jax.envs.recorded.table import dollars, read_answer
from orchestra_jax.io.shipped import CONF
from orchestra_jax.money import price_files

MODELS = {
    "claude-3-5-sonnet-20241022": "large", "gpt-4o-mini-2024-07-18": "medium", "Meta-Llama-3.1-8B-Instruct": "small",
    "gemma-2-2b-it": "tiny",
}  # fmt: skip
COLUMNS = ("question", "task", "reference", "model", "response", "correct", "cost_usd")


def write_log(file: Path, folder: Path, questions: int = 75, skip: int = 0) -> int:
    """Write so many of the folder's questions, in a random order that is always the same, and return the rows.

    Args:
        folder: public recorded answers (benchmarks.data.zeroeval).
        skip: questions of that order before the first.
    """
    recording = read_recording(folder)
    prices = price_files.load(CONF / "pricing" / "recorded.yaml")
    names = list(recording.questions)
    chosen = [names[k] for k in np.random.default_rng(0).permutation(len(names))[skip : skip + questions]]
    with file.open("w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out)
        rows.writerow(COLUMNS)
        for name in chosen:
            asked = recording.questions[name]
            for model, own in MODELS.items():
                answer = recording.answer(model, name)
                cost = f"{dollars(model, answer, prices):.8f}"
                said = read_answer(answer.output)
                rows.writerow([asked.question, asked.family, asked.answer[0], own, said, answer.correct, cost])
    return len(chosen) * len(MODELS)


def main() -> None:
    """Write the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--questions", type=int, default=75)
    parser.add_argument("--skip", type=int, default=0)
    folder = Path(os.environ.get("ORCHESTRA_DATA", "data"), "recorded", "zeroeval")
    parser.add_argument("--folder", type=Path, default=folder, help="the public recorded answers")
    asked = parser.parse_args()
    count = write_log(asked.file, asked.folder, asked.questions, asked.skip)
    print(f"{asked.file} has {count} rows.")


if __name__ == "__main__":
    main()
