"""Every promise of docs/promises.md names a test, and the test is there."""

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.docs.commands import ROOT
from tests.docs.pages import DOCS

PAGE = DOCS / "promises.md"


@functools.cache
def _tests_of(file: Path) -> set[str]:
    """The names of the tests of a file, or none if there is no such file."""
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def missing(text: str) -> list[str]:
    """The rows of a page's tables, headings left out, that name no test that is there."""
    rows = [line for line in text.splitlines() if line.startswith("|") and not re.match(r"\|(---| promise )", line)]
    found = [re.fullmatch(r"\| .+ \| `(tests/[\w/]+\.py)::(test_\w+)` \|", row) for row in rows]
    return [row for row, name in zip(rows, found, strict=True) if not name or name[2] not in _tests_of(ROOT / name[1])]


def test_no_promise_is_without_a_test() -> None:
    assert missing(PAGE.read_text()) == []
    assert PAGE.read_text().count("::test_") > 40
    for row in ("| It holds | |", "| It holds | `tests/nowhere.py::test_it` |", f"| It | `{__file__}::test_none` |"):
        assert missing(row) == [row]


@pytest.mark.parametrize("page", ["index.md", "../README.md", "site/mkdocs.yml", "reliability.md"])
def test_it_is_found(page: str) -> None:
    assert "promises.md" in Path(DOCS / page).read_text()
