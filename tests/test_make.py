"""The Makefile on a bare or odd machine: one sentence says what is wrong, and no folder of the user's is removed."""

import shutil
import subprocess
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("make", "sh", "grep", "rm", "touch", "mkdir", "cp")
needs_make = pytest.mark.skipif(not shutil.which("make"), reason="there is no make")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout, as far as installing looks at it; `bin` has the only programs that make finds."""
    folder = tmp_path / "a folder"
    for name in ("orchestra_jax", "bin"):
        (folder / name).mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "orchestra_jax/__init__.py"):
        shutil.copy(ROOT / name, folder / name)
    for program in PROGRAMS:
        (folder / "bin" / program).symlink_to(str(shutil.which(program)))
    return folder


def script(file: Path, text: str) -> None:
    """Write a program that stands for a Python."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def said(folder: Path, *words: str, cwd: Path | None = None) -> list[str]:
    """Return the lines of make's own that a failing `make install` prints."""
    done = subprocess.run(
        ["make", *(words or ["install"])],
        cwd=cwd or folder, env={"PATH": str(folder / "bin")}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout
    return [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]


@needs_make
@pytest.mark.parametrize("version", [None, "3.10"])
def test_python_is_missing_or_too_old(folder: Path, version: str | None) -> None:
    if version:
        venv_made = "mkdir -p .venv/bin && cp bin/python3 .venv/bin/python"
        script(
            folder / "bin" / "python3",
            f'case "$1 $2" in *print*) echo {version};; *venv) {venv_made};; *) exit 2;; esac',
        )
    *_, line = said(folder)  # the shell may have its own
    assert line.startswith(f"make: could not make .venv with python3 ({version or 'not found'}): it needs Python")
    assert not (folder / ".venv").exists()


@needs_make
def test_an_environment_without_a_python_that_runs_stays_as_it_is(folder: Path) -> None:
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/nowhere/python3.11")
    (folder / ".venv" / ".installed").touch()
    assert said(folder) == ["make: no Python runs in .venv: remove that folder, then try again."]
    assert python.is_symlink()


@needs_make
@pytest.mark.parametrize("other", ["/nowhere", str(ROOT)], ids=["moved", "copied"])
def test_an_environment_of_another_folder_is_refused(folder: Path, other: str) -> None:
    venv.create(folder / ".venv")
    (packages,) = folder.glob(".venv/lib/*/site-packages")
    (folder / ".venv" / ".installed").touch()
    (packages / "package.pth").write_text(f"{other}\n")
    (line,) = said(folder)
    assert line.startswith("make: .venv was made by an older or another Python, or in another folder: remove it")
    (packages / "package.pth").write_text(f"{folder}\n")
    subprocess.run(["make", "install"], cwd=folder, env={"PATH": str(folder / "bin")}, check=True, timeout=60)


@needs_make
def test_packages_that_cannot_be_installed(folder: Path) -> None:
    script(folder / ".venv" / "bin" / "python", 'case "$1" in -c) echo 3.99;; -P) exit 0;; *) exit 1;; esac')
    failed = "make: not all packages could be installed; the lines above say why (no network, a full disk?)."
    assert said(folder) == [f"{failed} The same command tries again."]
    (folder / "requirements" / "tested").mkdir(parents=True)
    (folder / "requirements" / "tested" / "3.99.txt").touch()  # the environment's Python chooses, not python3
    first, second = said(folder)
    assert first.startswith("make: the versions of requirements/tested/3.99.txt could not be installed: trying")
    assert second.startswith(failed)


@needs_make
def test_make_in_another_folder(folder: Path, tmp_path: Path) -> None:
    (line,) = said(folder, "-f", str(folder / "Makefile"), "help", cwd=tmp_path)
    assert line.endswith("Run make in the folder of this Makefile, or name that folder: make -C FOLDER.  Stop.")


@pytest.mark.parametrize("file", sorted((ROOT / "requirements" / "tested").glob("*.txt")), ids=lambda file: file.stem)
def test_tested_versions_are_of_all_that_is_installed(file: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted, extras = [*project["dependencies"]], ["dev"]
    while extras:
        for each in map(Requirement, project["optional-dependencies"][extras.pop()]):
            if each.name == project["name"]:
                extras += each.extras
            else:
                wanted.append(str(each))
    pinned = dict(line.split("==") for line in file.read_text().splitlines() if not line.startswith("#"))
    for each in map(Requirement, wanted):
        assert each.specifier.contains(pinned[canonicalize_name(each.name)]), each
