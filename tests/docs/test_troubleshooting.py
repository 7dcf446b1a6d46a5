"""Sentences of docs/troubleshooting.md are those of the code, and its settings are settings."""

import ast
import functools
import re
from pathlib import Path

import pytest

from orchestra_jax.io.shipped import CONF
from tests.docs.pages import DOCS

# What others print: JAX, Python, the kernel.
FOREIGN = {"falling back to cpu"}


@functools.cache
def said() -> str:
    """All texts of the package, with `...` for what they fill in."""
    texts = []
    for file in (CONF.parent / "orchestra_jax").rglob("*.py"):
        tree = ast.parse(file.read_text())
        about = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings are not printed
        for node in ast.walk(tree):
            if id(node) in about:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                texts.append("".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values))
    return "\n".join(texts)


def unsaid(page: str) -> list[str]:
    """The quoted sentences of a page that have no part in the code."""
    quoted = re.findall(r'"([^"]{8,})"', re.sub(r"`[^`]*`", "", page))
    known = said()
    return [each for each in quoted if each not in FOREIGN and not _is_said(each, known)]


def _is_said(sentence: str, known: str) -> bool:
    parts = [re.escape(part.strip()) for part in sentence.split("...") if part.strip()]
    return re.search(r"[^\n]{0,200}?".join(parts), known) is not None


def test_every_sentence_is_in_the_code() -> None:
    assert unsaid((DOCS / "troubleshooting.md").read_text()) == []
    assert unsaid('| "Nobody ever says this ..." |') == ["Nobody ever says this ..."]


@pytest.mark.parametrize("page", ["index.md", "../README.md", "site/mkdocs.yml"])
def test_it_is_found(page: str) -> None:
    assert "troubleshooting.md" in Path(DOCS / page).read_text()
