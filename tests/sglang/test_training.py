"""The quickstart from one warm start, 20 steps with the embedded engine and 20 with a real SGLang server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from orchestra_jax.training.loggers.jsonl import read_metrics

pytestmark = [pytest.mark.sglang, pytest.mark.release]

ROOT = Path(__file__).resolve().parents[2]
STEPS = 20
WARM = ("steps=0", "evaluation.questions=8", "evaluation.swap_questions=0", "logger.names=[jsonl]")
# Without the pull to the reference, so that 20 steps show something.
SHORT = (
    f"steps={STEPS}", "algorithm.loss.kl_coef=0", "algorithm.optimizer.warmup_steps=2",
    "algorithm.optimizer.schedule=constant",
    "evaluation.questions=128", "evaluation.greedy=false", "evaluation.swap_questions=0", "logger.names=[jsonl]",
    "rollout.slots=32",
)  # fmt: skip


def train(folder: Path, *overrides: str) -> None:
    command = [sys.executable, "experiments/train.py", f"output_dir={folder}", *overrides]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, sglang_python: Path) -> Path:
    """A policy that can call tools and chooses them at random."""
    folder = tmp_path_factory.mktemp("warm")
    train(folder, *WARM)
    return folder / "policy"


def test_twenty_steps_on_a_server_improve_like_twenty_in_this_process(warm: Path, tmp_path: Path, sglang_python: Path):
    server = ("rollout=quickstart_sglang", f"rollout.server.python={sglang_python}")
    accuracies = {}
    for name, engine in {"embedded": (), "sglang": server}.items():
        folder = tmp_path / name
        train(folder, f"model.path={warm}", *SHORT, *engine)
        rows = read_metrics(folder)
        assert len(rows) == STEPS
        # Numerics of two programs; nothing is stale, lost or rewarded 0 for the server's sake.
        assert max(row["mismatch/max"] for row in rows) < 1e-3
        assert max(row["staleness/max"] for row in rows) == 0
        accuracies[name] = np.array([row["accuracy"] for row in rows])
        summary = json.loads((folder / "summary.json").read_text())
        # On the same questions; the first and the last training steps pose different ones.
        assert summary["after"]["accuracy"] > summary["before"]["accuracy"] + 0.05, name
        assert accuracies[name][-5:].mean() > accuracies[name][:5].mean(), name
        print(f"{name}: accuracy {summary['before']['accuracy']:.3f} -> {summary['after']['accuracy']:.3f}")
    # 1,280 samples each: a standard error of .014; 20 steps apart through other samples.
    assert abs(accuracies["sglang"][-5:].mean() - accuracies["embedded"][-5:].mean()) < 0.15
