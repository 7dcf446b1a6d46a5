"""A wheel outside any checkout: the commands, the configuration and the prices that come with it."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from orchestra_jax.shipped import CONF, EXPERIMENTS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel in it; its dependencies are those of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=600)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    inside, ours = (
        Path(subprocess.run([one, "-c", where], check=True, capture_output=True, text=True, timeout=60).stdout.strip())
        for one in (python, sys.executable)
    )
    with zipfile.ZipFile(wheel) as files:
        files.extractall(inside)
    (inside / "theirs.pth").write_text(f"{ours}\n")  # without site.addsitedir: not this checkout, which a .pth names
    return python


def command(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`orchestra-jax ARGUMENT ...` in a folder that is no checkout."""
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": str(folder), "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_backend_optimization_level=0", "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "jax"),
    }  # fmt: skip
    return subprocess.run(
        [python, "-m", "orchestra_jax", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def test_everything_that_the_checkout_ships_is_in_it(installed: Path) -> None:
    (package,) = installed.parents[1].glob("lib/*/site-packages/orchestra_jax")
    for ours, theirs in ((CONF, package / "conf"), (EXPERIMENTS, package / "experiments")):
        wanted = {path.relative_to(ours) for path in ours.rglob("*") if path.is_file() and path.suffix != ".pyc"}
        assert wanted == {path.relative_to(theirs) for path in theirs.rglob("*") if path.is_file()}


def test_commands_run_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    listed = command(installed, tmp_path, "--help")
    assert listed.returncode == 0
    assert {line.split()[0] for line in listed.stdout.splitlines()[2:]} >= {"train", "evaluate", "plan", "index"}
    composed = command(installed, tmp_path, "train", "+experiment=hle", "--cfg", "job")
    assert (composed.returncode, "tasks_per_step: 16" in composed.stdout) == (0, True), composed.stderr
    wrong = command(installed, tmp_path, "train", "sed=3")
    assert (wrong.returncode, wrong.stderr.partition(";")[0][:40]) == (2, "Unknown key 'sed': did you mean seed? Th")
    assert command(installed, tmp_path, "trian").stderr == "There is no command 'trian'; did you mean 'train'?\n"


@pytest.mark.slow
def test_an_installed_wheel_trains(installed: Path, tmp_path: Path) -> None:
    trained = command(
        installed, tmp_path, "train", "steps=1", "warm_start.steps=1", "warm_start.demonstrations=8",
        "algorithm.tasks_per_step=2", "evaluation.questions=2", "evaluation.benchmarks=[]",
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "outputs" / "quickstart" / "summary.json").exists()
