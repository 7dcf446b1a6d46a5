"""The commands, and a wheel outside any checkout with all that comes with it. Building one needs a network."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from orchestra_jax.io.shipped import CONF, EXPERIMENTS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel in it; its dependencies are those of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    if uv := shutil.which("uv"):  # its environments have no pip
        build = [uv, "build", "--quiet", "--wheel", "--out-dir"]
    subprocess.run([*build, str(folder), str(ROOT)], check=True, timeout=600)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    (inside,) = folder.glob("venv/lib/*/site-packages")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(inside)
    # As mere folders: a .pth in one of them names this checkout.
    (inside / "theirs.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
    return python


def command(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`orchestra-jax ARGUMENT ...` in a folder that is no checkout."""
    shared = ("JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR", "PYTHONPYCACHEPREFIX", "XLA_FLAGS")  # less to compile
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **{name: os.environ[name] for name in shared}}
    return subprocess.run(
        [python, "-m", "orchestra_jax", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def test_every_script_is_a_command() -> None:
    listed = command(Path(sys.executable), ROOT, "--help")
    assert listed.returncode == 0
    commands = {line.split()[0] for line in listed.stdout.splitlines()[2:]}
    assert commands == {file.stem.replace("_", "-") for file in EXPERIMENTS.glob("*.py")}
    wrong = command(Path(sys.executable), ROOT, "trian")
    assert (wrong.returncode, wrong.stderr) == (2, "There is no command 'trian'; did you mean 'train'?\n")
    assert "usage: fetch_policy" in command(Path(sys.executable), ROOT, "fetch_policy", "--help").stdout


@pytest.mark.slow
def test_everything_that_the_checkout_ships_is_in_it(installed: Path) -> None:
    (package,) = installed.parents[1].glob("lib/*/site-packages/orchestra_jax")
    for ours, theirs in ((CONF, package / "conf"), (EXPERIMENTS, package / "experiments")):
        wanted = {path.relative_to(ours) for path in ours.rglob("*") if path.is_file() and path.suffix != ".pyc"}
        assert wanted == {path.relative_to(theirs) for path in theirs.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_commands_run_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    composed = command(installed, tmp_path, "train", "+experiment=hle", "--cfg", "job")
    assert (composed.returncode, "tasks_per_step: 16" in composed.stdout) == (0, True), composed.stderr
    wrong = command(installed, tmp_path, "train", "sed=3")
    assert (wrong.returncode, wrong.stderr.partition(";")[0][:40]) == (2, "Unknown key 'sed': did you mean seed? Th")


@pytest.mark.slow
def test_an_installed_wheel_trains(installed: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "training" / "micro.py", tmp_path)
    trained = command(
        installed, tmp_path, "train", "steps=1", "model.family=micro:OneLayer", "warm_start.steps=1",
        "warm_start.demonstrations=16", "warm_start.batch_size=16", "algorithm.tasks_per_step=2",
        "algorithm.group_size=4", "algorithm.row_widths=[192]", "algorithm.micro_tokens=768", "rollout.slots=8",
        "rollout.widths=[64]", "evaluation.questions=2", "evaluation.benchmarks=[]",
    )  # fmt: skip  # shapes of tests/training/test_trainer.py: the same programs
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "outputs" / "quickstart" / "summary.json").exists()
