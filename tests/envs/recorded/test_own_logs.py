"""A user's own log becomes a trained router by the command of docs/recorded.md."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODELS = {"house-large": (17, 0.02), "house-mid": (9, 0.005), "house-small": (5, 0.001), "house-tiny": (2, 0.0002)}


@pytest.mark.slow
@pytest.mark.skipif("ORCHESTRA_DATA" not in os.environ, reason="needs ORCHESTRA_DATA")
def test_a_table_of_200_rows_becomes_a_router_with_a_table(tmp_path: Path):
    with (tmp_path / "log.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "question", "family", "answer", "model", "output", "correct", "cost", "latency"])
        for number in range(50):
            total = number + number % 7
            asked = [f"q{number}", f"How much is {number} plus {number % 7}?", "sum" if number % 2 else "word", total]
            for model, (every, cost) in MODELS.items():
                right = number % every != every - 1
                rows.writerow([*asked, model, total if right else number - 1, right, cost, 100 * cost])
    page = (ROOT / "docs" / "recorded.md").read_text()
    (found,) = (
        command
        for command in re.findall(r"^python (experiments/train\.py (?:.*\\\n)*.*)$", page, re.M)
        if "env.options.path=log.csv" in command
    )
    given = [word for word in shlex.split(found) if word.strip()]
    command = [sys.executable, str(ROOT / given[0]), *given[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("expert/house-large", "expert/house-tiny", "cascade", "oracle", "random", "after"):
        assert name in done.stdout
    summary = json.loads((tmp_path / "outputs" / "router" / "summary.json").read_text())
    assert summary["baselines"]["expert/house-large"]["cost"] == pytest.approx(0.02)
    assert summary["baselines"]["oracle"]["cost"] <= summary["baselines"]["best"]["cost"]
    assert (tmp_path / "outputs" / "router" / "accuracy_cost.png").exists()
