"""The reference of all keys is that of the schema, and every key has a meaning."""

import runpy
from pathlib import Path

from orchestra_jax.config.messages import keys

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_the_schemas() -> None:
    made = runpy.run_path(str(DOCS / "keys.py"))["page"]()
    assert made == (DOCS / "keys.md").read_text(), "write it again: python docs/keys.py --write"
    rows = [line.split(" | ") for line in made.splitlines() if line.startswith("| `")]
    assert [row[0].strip("|` ") for row in rows] == sorted(
        (key for key, group in keys().items() if group is None), key=[row[0].strip("|` ") for row in rows].index
    )
    assert [row[0] for row in rows if len(row[-1].strip(" |")) < 3] == []


def test_a_long_meaning_is_said_once() -> None:
    meanings = [line.split(" | ")[-1].strip(" |") for line in (DOCS / "keys.md").read_text().splitlines()]
    long = [meaning for meaning in meanings if len(meaning) > 60]
    assert len(long) == len(set(long))
