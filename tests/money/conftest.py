"""A file of recorded calls that is not there yet."""

from pathlib import Path

import pytest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"
