"""Descriptions of experts (§3.1 of the paper): the file that holds them, and what none of them may say.

The policy reads a description under any menu. So it may not give away the answers that it was written from, nor the
model's name (menus use aliases), nor a price (every instance has its own).
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestra_jax.data.sources import Question
from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.whole import write_whole
from orchestra_jax.tools.experts.expert import Expert

VERSION = 1
MOST_WORDS = 150
_COPIED = 8  # words in a row that make a quotation of a question
_NOT_TELLING = {*"abcdefghijklmnopqrstuvwxyz", "yes", "no", "true", "false", "none", "both", "neither", "all"}


def load(path: str | Path) -> dict[str, str]:
    """Return the descriptions by expert from a file of `describing.describe`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it is none of ours.
    """
    return {name: entry["description"] for name, entry in read(path).items()}


def read(path: str | Path, *, missing_ok: bool = False) -> dict[str, dict[str, Any]]:
    """Return the entries by expert, see `describing.describe`; with `missing_ok` none if there is no file.

    Raises:
        FileNotFoundError, ValueError: as `load` does.
    """
    file = Path(path)
    if not file.is_file():
        if missing_ok:
            return {}
        raise FileNotFoundError(f"No descriptions at {str(file)!r}; experiments/describe_tools.py writes them.")
    try:
        content = read_json(file.read_bytes(), mend=False)
        entries = content["experts"]
        sound = content["version"] == VERSION and all(isinstance(e["description"], str) for e in entries.values())
    except (ValueError, LookupError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise ValueError(f"{str(file)!r} is no file of descriptions; experiments/describe_tools.py writes them.")
    return dict(entries)


def save(path: str | Path, entries: Mapping[str, Any]) -> None:
    """Replace the file whole, so that a kill leaves the old one or the new one."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps({"version": VERSION, "experts": entries}, indent=1) + "\n")


def sample(examples: Sequence[Question], count: int, seed: int = 0) -> list[Question]:
    """So many examples, families in turns, chosen by a hash of seed and id: the order of the file does not matter."""
    families: dict[str, list[Question]] = defaultdict(list)
    for example in sorted(examples, key=lambda e: hashlib.sha256(f"{seed}\x1f{e.id}".encode()).digest()):
        families[example.family].append(example)
    turns = [(turn, family) for family, members in families.items() for turn in range(len(members))]
    return [families[family][turn] for turn, family in sorted(turns)[:count]]


def flaw(text: str, subject: Expert, examples: Sequence[Question]) -> str | None:
    """Return a sentence on why a description may not be shown to a policy, or None if it may.

    No answer may be in it as it stands (but for single letters, "yes" and their like, which tell nothing), no run of
    eight words of a question, not the model's name, and no price.
    """
    words = _words(text)
    if not words.strip():
        return "There is no text between <description> and </description>."
    if len(words.split()) > MOST_WORDS:
        return f"The description has {len(words.split())} words; at most {MOST_WORDS} are allowed."
    if "$" in text:
        return "The description states a price, which every menu has its own of."
    for name in (subject.name, subject.model.rpartition("/")[2]):
        if _words(name) in words:
            return f"The description names the model, {name!r}."
    for example in examples:
        for answer in example.answer:
            core = _words(answer)
            found = core in words if core.strip() else answer.strip() in text
            if found and answer.strip() and core.strip() not in _NOT_TELLING:
                return f"The description holds {answer!r}, the answer to a task."
        asked = _words(example.question).split()
        for start in range(len(asked) - _COPIED + 1):
            run = " ".join(asked[start : start + _COPIED])
            if f" {run} " in words:
                return f"The description repeats a question: {run!r}."
    return None


def _words(text: str) -> str:
    """Lower-case words with a blank around each; thousands commas do not part a number."""
    joined = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text.casefold())
    return " ".join(["", *re.findall(r"[^\W_]+", joined), ""])
