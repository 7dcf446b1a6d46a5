"""Weights in shared memory: a killed owner's are removed by the next one, a living one's are not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from orchestra_jax.engines.sglang.temporary import TemporaryFolder, remove_abandoned
from tests.processes.running import ROOT

# Runs the module from its file: the package would import JAX.
OWNER = """
import pathlib, runpy, sys
TemporaryFolder = runpy.run_path("orchestra_jax/engines/sglang/temporary.py")["TemporaryFolder"]
folder = TemporaryFolder(pathlib.Path(sys.argv[1]))
(folder.path / "weights-00000001").write_bytes(bytes(1000))
print(folder.path.name, flush=True)
sys.stdin.readline()
"""


def owner(folder: Path) -> tuple[subprocess.Popen, Path]:
    started = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert started.stdout is not None
    return started, folder / started.stdout.readline().strip()


def test_a_killed_owners_folder_goes_with_the_next_and_a_living_ones_stays(tmp_path: Path):
    (tmp_path / "orchestra_jax-abcdefgh").mkdir()  # not ours to judge: it has no lock
    (living, its), (killed, left) = owner(tmp_path), owner(tmp_path)
    try:
        assert left.name.startswith(f"orchestra_jax-{killed.pid}-")
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        assert (left / "weights-00000001").exists()
        mine = TemporaryFolder(tmp_path)
        expected = {name for path in (its, mine.path) for name in (path.name, f"{path.name}.lock")}
        assert {path.name for path in tmp_path.iterdir()} == expected | {"orchestra_jax-abcdefgh"}
        assert (its / "weights-00000001").exists()
        living.communicate("\n", timeout=60)
        del mine
        assert [path.name for path in tmp_path.iterdir()] == ["orchestra_jax-abcdefgh"]
    finally:
        living.kill()
        living.wait()


def test_two_of_one_process_do_not_remove_each_other(tmp_path: Path):
    first, second = TemporaryFolder(tmp_path), TemporaryFolder(tmp_path)
    remove_abandoned(tmp_path)
    assert first.path.is_dir()
    assert second.path.is_dir()


def test_an_owner_that_was_taken_for_dead_before_it_locked_begins_again(tmp_path: Path, monkeypatch):
    """Another process sweeps between the making of the lock's file and its locking."""
    opened, swept = os.open, []

    def sweeping(path, flags, *rest):
        descriptor = opened(path, flags, *rest)
        if flags & os.O_EXCL and not swept:
            swept.append(path)
            remove_abandoned(tmp_path)
        return descriptor

    monkeypatch.setattr(os, "open", sweeping)
    made = TemporaryFolder(tmp_path)
    assert f"{made.path.name}.lock" not in [Path(path).name for path in swept]
    assert sorted(path.name for path in tmp_path.iterdir()) == [made.path.name, f"{made.path.name}.lock"]
