"""Names that the pages use are there: modules, functions, files, versions, and the checks before a commit."""

import pkgutil
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from orchestra_jax import __version__
from tests.docs.commands import ROOT
from tests.docs.pages import DOCS

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
PACKAGE = Path(str(files("orchestra_jax")))
ROOMS = {folder.name for folder in PACKAGE.iterdir() if folder.is_dir() and folder.name != "__pycache__"}
# Groups of entry points, and the server's name: no modules.
GROUPS = re.compile(r"orchestra_jax\.(environments|benchmarks|losses|loggers|models)\b(?!\.)")


def dotted_names(text: str) -> Iterator[str]:
    """The names in a page that begin with the package's, without those of entry points."""
    for name in re.findall(r"(?<![\w/])orchestra_jax(?:\.\w+)+", text):
        if not GROUPS.fullmatch(name):
            yield name


def paths(text: str) -> Iterator[str]:
    """The Python files that a page names, relative to the repository; below a room's name they are the package's."""
    for quoted in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        yield f"orchestra_jax/{quoted}" if quoted.partition("/")[0] in ROOMS else quoted


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_the_code_are_there(page: Path) -> None:
    text, missing = page.read_text(), []
    for name in sorted(set(dotted_names(text))):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            missing.append(f"{name}: {error}")
    missing += [path for path in sorted(set(paths(text))) if not (ROOT / path).exists()]
    assert not missing


def test_every_room_has_its_line() -> None:
    text = (DOCS / "code.md").read_text()
    assert [room for room in sorted(ROOMS) if f"`{room}/`" not in text] == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda p: p.name
)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_whole(page: Path) -> None:
    """No empty line parts a table, and all of its rows have as many cells as its head."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        rows = [re.sub(r"`[^`]*`|\\\|", "", row) for row in table.splitlines()]
        assert re.fullmatch(r"[\s|:-]+", "".join(rows[1:2])), table
        assert {row.count("|") for row in rows} == {rows[0].count("|")}, table


def test_the_readme_is_read_in_a_minute() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_versions_agree() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_hooks_check_what_lint_checks() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    lint = [line.strip().replace("$(PY)", ".venv/bin/python") for line in recipe[1].splitlines()]
    assert [hook["entry"] for hook in hooks] == lint
