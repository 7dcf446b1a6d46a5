"""Every benchmark runs in its short form, so that none rots."""

import os
import runpy
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
HELPERS = {"against", "figures", "first_calls", "peer", "short"}
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in HELPERS)
SERVED = {"rollout", "weight_update"}  # by a real SGLang server: with SGLANG_PYTHON
NEEDS_DATA = {"labelled_sample", "menus", "recorded", "relay", "routellm"}
NEEDS_TORCH = {"parity"}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [*SCRIPTS, "chaos"])
def test_the_short_form_runs(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
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
    if name not in NEEDS_DATA:
        monkeypatch.delenv("ORCHESTRA_DATA", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the processes that it starts
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(ROOT)
    # Here, not in a process of its own: thirty of them would import JAX again, 4 CPU-seconds each.
    assert _status(name, options, monkeypatch) == 0
    assert "Traceback" not in capfd.readouterr().err + caplog.text


def _status(name: str, options: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a benchmark as Python would: chaos as a module, the others as scripts."""
    script = FOLDER / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(script), *options])
    monkeypatch.setattr(sys, "path", [str(FOLDER if script.exists() else ROOT), *sys.path])
    try:
        if script.exists():
            runpy.run_path(str(script), run_name="__main__")
        else:
            runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
