"""The Python of the README runs and prints what the README shows."""

import re
import subprocess
import sys

import pytest

from tests.docs.commands import ROOT


@pytest.mark.slow
def test_fifteen_lines_of_python() -> None:
    text = (ROOT / "README.md").read_text()
    ((code, shown),) = re.findall(r"^```python\n(.*?)^```\n\n^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len([line for line in code.splitlines() if line]) <= 15
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, shown), done.stderr
