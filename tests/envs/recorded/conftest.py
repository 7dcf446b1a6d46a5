"""The made table as a file."""

from pathlib import Path

import pytest

from tests.envs.recorded.made import made_rows, write


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "table.jsonl", made_rows())
