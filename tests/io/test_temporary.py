"""Temporary folders: a killed owner's is removed by the next one, a living one's is not."""

import os
import signal
import tempfile
from pathlib import Path

from orchestra_jax.io.temporary import TemporaryFolder, remove_abandoned
from tests.processes.running import holder

# Runs the module from its file: the package would import JAX.
OWNER = """
import pathlib, runpy, sys
TemporaryFolder = runpy.run_path("orchestra_jax/io/temporary.py")["TemporaryFolder"]
folder = TemporaryFolder(pathlib.Path(sys.argv[1]), "kind-")
(folder.path / "weights-00000001").write_bytes(bytes(1000))
print(folder.path.name, flush=True)
sys.stdin.readline()
"""


def test_a_killed_owners_folder_goes_with_the_next_and_a_living_ones_stays(tmp_path: Path):
    (tmp_path / "others-abcdefgh").mkdir()  # not ours to judge
    (living, its), (killed, left) = holder(OWNER, tmp_path), holder(OWNER, tmp_path)
    try:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        assert (tmp_path / left / "weights-00000001").exists()
        mine = TemporaryFolder(tmp_path, "kind-")
        assert {path.name for path in tmp_path.iterdir()} == {its, mine.path.name, "others-abcdefgh"}
        assert (tmp_path / its / "weights-00000001").exists()
        living.communicate("\n", timeout=60)
        del mine
        assert [path.name for path in tmp_path.iterdir()] == ["others-abcdefgh"]
    finally:
        living.kill()
        living.wait()


def test_two_of_one_process_do_not_remove_each_other(tmp_path: Path):
    first, second = TemporaryFolder(tmp_path, "kind-"), TemporaryFolder(tmp_path, "kind-")
    remove_abandoned(tmp_path, "kind-")
    assert first.path.is_dir()
    assert second.path.is_dir()


def test_an_owner_that_was_taken_for_dead_before_it_locked_begins_again(tmp_path: Path, monkeypatch):
    """Another process sweeps between the making of the folder and its locking."""
    made, swept = tempfile.mkdtemp, []

    def sweeping(**options):
        path = made(**options)
        if not swept:
            swept.append(path)
            remove_abandoned(tmp_path, "kind-")
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", sweeping)
    mine = TemporaryFolder(tmp_path, "kind-")
    assert str(mine.path) not in swept
    assert list(tmp_path.iterdir()) == [mine.path]


def test_a_folder_that_is_removed_while_it_is_locked_is_not_held(tmp_path: Path, monkeypatch):
    opened, swept = os.open, []

    def removed(path, flags, *rest, **options):
        descriptor = opened(path, flags, *rest, **options)
        if flags & os.O_DIRECTORY and not swept:
            swept.append(path)
            os.rmdir(path)
        return descriptor

    monkeypatch.setattr(os, "open", removed)
    mine = TemporaryFolder(tmp_path, "kind-")
    assert mine.path not in swept
    assert list(tmp_path.iterdir()) == [mine.path]


def test_what_lacks_rights_goes_too(tmp_path: Path):
    mine = TemporaryFolder(tmp_path, "kind-")
    (mine.path / "a" / "b").mkdir(parents=True)
    (mine.path / "a").chmod(0)
    mine.remove()
    mine.remove()
    assert list(tmp_path.iterdir()) == []
