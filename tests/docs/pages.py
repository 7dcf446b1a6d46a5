"""The code blocks of a page of docs/, so that tests run what readers copy."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of every fenced code block of `docs/<page>`, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def begin_with(page: str, file: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder outside the repository, with the page's code in a file there."""
    (code,) = [text for language, text in blocks(page) if language == "python"]
    assert len(code.splitlines()) < 80
    (folder / file).write_text(code)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
