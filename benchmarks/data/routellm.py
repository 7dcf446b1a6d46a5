"""The public outcomes of RouteLLM's evaluation, from a clone of its repository: a table each for MMLU and GSM8K.

git clone https://github.com/lm-sys/RouteLLM
python -m benchmarks.data.routellm RouteLLM data/recorded/routellm

The source has routellm/evals/gsm8k/gsm8k_responses.csv and a file for each subject of MMLU, with the columns prompt,
MODEL and, for GSM8K, MODEL_response.
"""

import argparse
import csv
import sys
from pathlib import Path

from orchestra_jax.io.whole import write_whole

_GSM8K, _MMLU = "gsm8k/gsm8k_responses.csv", "mmlu/responses/mmlu_*.csv"


def prepare(clone: Path, folder: Path) -> int:
    """Write gsm8k.csv and mmlu.csv, and return the number of MMLU's questions.

    Raises:
        ValueError: the clone lacks a file, or the files of MMLU have different columns.
    """
    source = clone / "routellm" / "evals"
    subjects = sorted(source.glob(_MMLU))
    if not subjects or not (source / _GSM8K).is_file():
        raise ValueError(f"{str(source)!r} lacks {_GSM8K if subjects else _MMLU}: clone github.com/lm-sys/RouteLLM.")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "gsm8k.csv", (source / _GSM8K).read_text(encoding="utf-8"))
    with (folder / "mmlu.csv.part").open("w", encoding="utf-8", newline="") as out:
        table, columns, count = csv.writer(out), list[str](), 0
        for file in subjects:
            subject = file.stem.removeprefix("mmlu_")
            with file.open(encoding="utf-8", newline="") as lines:
                names, *rows = csv.reader(lines)
            if not columns:
                columns = names
                table.writerow(["id", "family", *names])
            if names != columns:
                raise ValueError(f"{str(file)!r} has other columns than {str(subjects[0])!r}.")
            table.writerows([f"mmlu/{subject}/{number}", subject, *row] for number, row in enumerate(rows))
            count += len(rows)
    Path(out.name).replace(folder / "mmlu.csv")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="a clone of github.com/lm-sys/RouteLLM")
    parser.add_argument("folder", type=Path, help="where the two tables go")
    given = parser.parse_args()
    try:
        count = prepare(given.clone, given.folder)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    print(f"gsm8k.csv and mmlu.csv with {count} questions are in {given.folder}.")


if __name__ == "__main__":
    main()
