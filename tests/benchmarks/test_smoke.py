"""Every benchmark runs in its short form, so that none rots."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
HELPERS = {"against", "figures", "first_calls", "peer", "short"}
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in HELPERS)
SERVED = {"rollout", "weight_update"}  # by a real SGLang server: with SGLANG_PYTHON
NEEDS_DATA = {"labelled_sample", "menus", "recorded", "relay", "routellm"}
NEEDS_TORCH = {"parity"}
_QUICK = "--xla_backend_optimization_level=0"

pytestmark = pytest.mark.slow


def _command(name: str) -> list[str]:
    """Return the command of a benchmark: parity and chaos are modules, the others scripts."""
    text = (FOLDER / f"{name}.py").read_text() if (FOLDER / f"{name}.py").exists() else "-m benchmarks."
    as_module = f"-m benchmarks.{name}" in text or not (FOLDER / f"{name}.py").exists()
    return [sys.executable, *(["-m", f"benchmarks.{name}"] if as_module else [str(FOLDER / f"{name}.py")])]


@pytest.mark.parametrize("name", [*SCRIPTS, "chaos"])
def test_the_short_form_runs(name: str, tmp_path: Path) -> None:
    options = ["--smoke"]
    if name in SERVED:
        python = os.environ.get("SGLANG_PYTHON")
        if python is None:
            pytest.skip("SGLANG_PYTHON is unset")
        options += ["--python", python]
    if name in NEEDS_DATA and not os.environ.get("ORCHESTRA_DATA"):
        pytest.skip("ORCHESTRA_DATA is unset")
    if name in NEEDS_TORCH:
        pytest.importorskip("torch")
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    if _QUICK not in variables.get("XLA_FLAGS", ""):  # a flag twice would be a compilation cache of its own
        variables["XLA_FLAGS"] = f"{variables.get('XLA_FLAGS', '')} {_QUICK}"
    if name not in NEEDS_DATA:
        variables.pop("ORCHESTRA_DATA", None)
    done = subprocess.run(
        [*_command(name), *options],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
