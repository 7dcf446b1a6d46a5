"""Files that are written whole or not at all."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text file, so that a killed process leaves the new or the old file whole."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8", errors="backslashreplace")
    part.replace(path)
