"""A policy that was trained calls a tool that a client brings, over HTTP."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")

from tests.serving.test_follow import command
from tests.serving.test_process import ROOT, server


@pytest.mark.slow
def test_a_trained_policy_calls_a_clients_own_tool_and_says_what_came_of_it(tmp_path: Path):
    command("train", "steps=20", "name=half", f"output_dir={tmp_path / 'half'}", "evaluation.questions=0")
    menu = "tools.names=[calculator,local_search,expert_small,expert_medium,expert_large]"
    with server(tmp_path / "served", str(tmp_path / "half"), menu) as (_, address):
        asked = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / "client_tool.py"), address],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, capture_output=True,
        )  # fmt: skip
    assert asked.returncode == 0, asked.stderr
    found = re.match(r"20 questions: web_search called for (\d+), (\d+) of these right", asked.stdout)
    assert found is not None, asked.stdout
    called, right = map(int, found.groups())
    assert called >= 10
    assert right >= 0.8 * called
