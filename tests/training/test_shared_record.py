"""A file of recorded calls on a network disk has one machine that writes it."""

from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.config.choices import ReplayMode
from orchestra_jax.config.schema import ConfigError, ReplayConfig
from orchestra_jax.processes import Processes
from orchestra_jax.training import prerequisites
from orchestra_jax.training.prerequisites import network_disk, refuse_shared_record
from tests.processes.running import lines
from tests.training.test_processes import make_policy, run

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:41 / /shared rw,relatime shared:7 master:2 - nfs4 server:/export rw,vers=4.2
31 30 0:42 / /shared/local rw - tmpfs tmpfs rw
32 22 0:43 / /my\040disk rw - lustre 10.0.0.1@tcp:/fs rw
33 22 0:44 / /home rw - fuse.sshfs you@server: rw
34 22 0:45 / /overlay rw - fuse.fuse-overlayfs fuse-overlayfs rw
35 22 0:46 / /twice rw - nfs server:/old rw
36 22 0:47 / /twice rw - xfs /dev/vdb rw
"""


@pytest.fixture(autouse=True)
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(prerequisites, "_MOUNTS", tmp_path / "mountinfo")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/tmp/calls.db", None),
        ("/shared/run/calls.db", "nfs4"),
        ("/sharedmemory/calls.db", None),
        ("/shared/local/calls.db", None),
        ("/my disk/calls.db", "lustre"),
        ("/home/you/calls.db", "fuse.sshfs"),
        ("/overlay/calls.db", None),
        ("/twice/calls.db", None),
    ],
)
def test_the_disk_of_a_path_is_that_of_the_nearest_mount(path: str, kind: str | None):
    assert network_disk(Path(path)) == kind


def test_a_system_without_a_list_of_mounts_has_no_network_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prerequisites, "_MOUNTS", tmp_path / "none")
    assert network_disk(Path("/shared/calls.db")) is None


class Beside(Processes):
    """One of two processes, of which the other has this host and this path."""

    def __init__(self, host: str, path: str | None = None) -> None:
        super().__init__(0, 2)
        self._host, self._path = host, path

    def gather(self, value: Any) -> list[Any]:
        path = Path(self._path) if self._path else value[1]
        return [value, (self._host, path, network_disk(path))]


def test_two_machines_may_not_write_one_file_on_a_network_disk(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prerequisites.socket, "gethostname", lambda: "node-a")
    shared = ReplayConfig(mode=ReplayMode.replay_or_record, path="/shared/calls.db")
    with pytest.raises(ConfigError) as refused:
        refuse_shared_record(shared, Beside("node-b"))
    assert str(refused.value) == (
        "replay.path=/shared/calls.db lies on a network disk (nfs4), where node-a and node-b must not write one SQLite "
        "file: set a path on a disk of each machine, as replay.path=/tmp/calls.db."
    )
    refuse_shared_record(shared, Beside("node-a"))  # one machine
    refuse_shared_record(shared, Beside("node-b", "/shared/calls-b.db"))  # each its own
    refuse_shared_record(ReplayConfig(mode=ReplayMode.replay, path="/shared/calls.db"), Beside("node-b"))
    refuse_shared_record(ReplayConfig(mode=ReplayMode.record, path="/tmp/calls.db"), Beside("node-b"))
    refuse_shared_record(ReplayConfig(), Beside("node-b"))


@pytest.mark.slow
def test_a_run_on_two_machines_is_refused_in_both(tmp_path: Path):
    elsewhere = f"policy 0 ELSEWHERE {tmp_path / 'mountinfo'}"
    folder = tmp_path / "run"
    first, second = run(
        folder, make_policy(tmp_path), "replay.mode=record", "replay.path=/shared/calls.db",
        stops={0: elsewhere, 1: elsewhere},
    )  # fmt: skip
    assert [first.returncode, second.returncode] == [2, 2], first.stderr + second.stderr
    (told,) = lines(first.stderr)
    assert told.startswith("replay.path=/shared/calls.db lies on a network disk (nfs4), where ")
    assert lines(second.stderr) == []
    assert not folder.exists()
