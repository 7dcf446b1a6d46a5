"""The code blocks of a page of docs/, so that tests run what readers copy."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of every fenced code block of `docs/<page>`, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
