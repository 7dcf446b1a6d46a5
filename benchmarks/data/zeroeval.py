"""The public source of recorded answers, WildEval/ZeroEval at one commit, condensed to the folder that `readers` reads.

python -m benchmarks.data.zeroeval data/recorded/zeroeval
python -m benchmarks.data.zeroeval data/recorded/zeroeval --archive ZeroEval.tar.gz

The source has result_dirs/{crux,gsm,math-l5}/MODEL.json, each a list of rows {id, question or problem, answer, output:
[text], chat_history: [prompt]}. Kept are the 24 models that recorded.yaml prices, each of which must have answered
every question.
"""

import argparse
import gzip
import http.client
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from orchestra_jax.envs.recorded.table import has_answer, read_answer, same_answer
from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.shipped import CONF
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.money import price_files

COMMIT = "8c1485edf12c6efb5f69135a562927c5ad484059"
URL = f"https://codeload.github.com/WildEval/ZeroEval/tar.gz/{COMMIT}"
SOURCE = f"Condensed from github.com/WildEval/ZeroEval, commit {COMMIT}, Apache-2.0; correctness was computed anew.\n"
QUESTIONS: Mapping[str, int] = {"crux": 800, "gsm": 1319, "math-l5": 721}  # of the source
_NO_MODEL = ("python", "orchestrator")  # what the price list has beside models
_MEMBER = re.compile(r"(?:[^/]+/)?result_dirs/([^/]+)/([^/]+)\.json")
_FRACTION = re.compile(r"(-?\d+)\s*/\s*(\d+)")
_LITERAL = ("'", '"', "[", "(", "{")
_CHUNK = 1 << 20

Say = Callable[[str], None]


def models() -> tuple[str, ...]:
    """The models that are kept: those of the price list."""
    priced = price_files.load(CONF / "pricing" / "recorded.yaml").entries
    return tuple(name for name in priced if name not in _NO_MODEL)


def prepare(folder: Path, *, archive: Path | None = None, clone: Path | None = None, say: Say = lambda _: None) -> None:
    """Makes `folder` whole, or not at all.

    Args:
        archive: the commit as .tar.gz; without it and `clone`, it is downloaded.
        clone: a folder that holds result_dirs.
        say: is told how far it is.

    Raises:
        FileExistsError: the folder is there.
        ConnectionError: the archive cannot be downloaded.
        OSError, ValueError: the source cannot be read, or is not the one of COMMIT; one sentence.
    """
    if folder.exists():
        raise FileExistsError(f"{str(folder)!r} is there already: remove it, or name another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the folder, so that it can be renamed.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        source = clone or unpack(archive or download(Path(scratch) / "archive.tar.gz", say), Path(scratch) / "source")
        made = Path(scratch) / "made"
        condense(source, made, say)
        os.rename(made, folder)


def download(file: Path, say: Say) -> Path:
    """Writes the archive of COMMIT to `file`; raises ConnectionError."""
    try:
        with urlopen(URL, timeout=60) as answer, file.open("wb") as out:
            while piece := answer.read(_CHUNK):
                out.write(piece)
                say(f"downloaded {out.tell() / 1e6:.0f} MB")
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        raise ConnectionError(
            f"{URL} cannot be downloaded ({reason}): fetch it on a machine with a network and name the file with "
            "--archive, or a clone of that commit with --folder."
        ) from None
    return file


def unpack(archive: Path, folder: Path) -> Path:
    """The folder with the files of an archive that are needed; raises ValueError: it is none."""
    kept = models()
    try:
        with tarfile.open(archive, "r:gz") as packed:
            for member in packed:
                found = _MEMBER.fullmatch(member.name)
                if found and found[1] in QUESTIONS and found[2] in kept and (content := packed.extractfile(member)):
                    target = folder / "result_dirs" / found[1] / f"{found[2]}.json"
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("wb") as out:
                        shutil.copyfileobj(content, out)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no archive {str(archive)!r}: name the .tar.gz file of {URL}.") from None
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error):
        raise ValueError(f"{str(archive)!r} is no whole .tar.gz archive: fetch {URL} again.") from None
    return folder


def condense(source: Path, folder: Path, say: Say) -> None:
    """Writes questions.jsonl and outputs/MODEL.jsonl.gz of a clone; raises ValueError: it is not the one of COMMIT."""
    asked = dict[str, dict[str, Any]]()
    (folder / "outputs").mkdir(parents=True)
    kept = models()
    for number, model in enumerate(kept, 1):
        rows = {id_: row for name in QUESTIONS for id_, row in _rows(source, name, model).items()}
        asked = asked or {id_: _question(id_, row) for id_, row in rows.items()}
        if other := asked.keys() ^ rows.keys():
            raise _another(f"{model} has not answered the same questions as {kept[0]} ({min(other)})")
        with gzip.open(folder / "outputs" / f"{model}.jsonl.gz", "wt", encoding="utf-8") as out:
            for id_, question in asked.items():
                output = rows[id_]["output"][0]
                right = is_right(output, question["answer"], question["set"])
                out.write(json.dumps({"id": id_, "output": output, "correct": right}, ensure_ascii=False) + "\n")
        say(f"condensed {model} ({number} of {len(kept)})")
    with (folder / "questions.jsonl").open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(question, ensure_ascii=False) + "\n" for question in asked.values())
    (folder / "SOURCE").write_text(SOURCE)


def is_right(output: str, answer: str, kind: str) -> bool:
    """Whether an output is right: an equal string for CRUX, else an equal number; one without "answer" is wrong."""
    if not has_answer(output):
        return False
    said = read_answer(output)
    if kind == "crux":  # in quotes, a number is compared as text
        return same_answer(said, [answer if answer[:1] in _LITERAL else f"'{answer}'"])
    number = answer.partition("_")[0]  # without the base: "-221_3"
    if (fraction := _FRACTION.fullmatch(said.strip())) and int(fraction[2]):
        return Fraction(int(fraction[1]), int(fraction[2])) == Fraction(number.replace(",", ""))
    return same_answer(said, [number])


def _rows(source: Path, name: str, model: str) -> dict[str, dict[str, Any]]:
    """What a model answered to the questions of a set, by id."""
    file = source / "result_dirs" / name / f"{model}.json"
    if not file.is_file():
        raise _another(f"it has no {file.relative_to(source)}")
    try:
        rows = {str(row["id"]): row for row in read_json(file.read_bytes())}
        whole = all(isinstance(row["output"][0], str) for row in rows.values())
    except (Unreadable, LookupError, TypeError, ValueError):
        whole = False
    if not whole:
        raise _another(f"{file.relative_to(source)} is no list of answers")
    if len(rows) != QUESTIONS[name]:
        raise _another(f"{file.relative_to(source)} has {len(rows)} answers, not {QUESTIONS[name]}")
    return {f"{name}/{id_}": row for id_, row in rows.items()}


def _question(id_: str, row: Mapping[str, Any]) -> dict[str, Any]:
    name, answer = id_.partition("/")[0], str(row["answer"])
    return {
        "id": id_,
        "set": name,
        "question": row["problem" if name == "math-l5" else "question"],
        "answer": answer.removeprefix("#").strip() if name == "gsm" else answer,
        "prompt_chars": sum(map(len, row["chat_history"])),
    }


def _another(why: str) -> ValueError:
    return ValueError(
        f"This is not WildEval/ZeroEval at commit {COMMIT[:7]}, for {why}: name {URL} with --archive, or a clone with "
        f"`git checkout {COMMIT[:7]}` with --folder."
    )


def _show(state: str) -> None:
    """Shows how far it is: on one line of a terminal, elsewhere model by model."""
    if sys.stderr.isatty():
        print(f"\r\033[K{state}", end="", file=sys.stderr, flush=True)
    elif state.startswith("condensed"):
        print(state, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data.zeroeval",
        description=f"Makes the folder of recorded answers (env.options.path of env=recorded) out of {URL}.",
    )
    parser.add_argument("folder", type=Path, help="folder to make")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="that archive, where there is no network")
    parser.add_argument("--folder", type=Path, dest="clone", metavar="CLONE", help="a clone at that commit instead")
    options = parser.parse_args()
    if options.archive and options.clone:
        parser.error("give --archive or --folder, not both")
    try:
        prepare(options.folder, archive=options.archive, clone=options.clone, say=_show)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{error}\n")
    print(f"\nThe recorded answers are in {options.folder}: set env.options.path to it.")


if __name__ == "__main__":
    main()
