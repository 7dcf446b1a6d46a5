"""Checkpoints that the disk has lost or changed a part of: the run goes on from the one before, and says so."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.processes.several import SeveralProcesses
from orchestra_jax.training import checksums, damaged
from orchestra_jax.training.checkpointing import Checkpoints
from orchestra_jax.training.damaged import put_damaged_aside
from orchestra_jax.training.resuming import restored_arrays
from tests.processes.others import Prepared

ARRAYS = {"w": jax.random.normal(jax.random.key(0), (40, 50)), "step": jnp.int32(3)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with checkpoints 1 and 2: arrays times 1 and 2."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    checkpoints = Checkpoints(folder / "checkpoints", keep=2)
    for step in (1, 2):
        checkpoints.save(step, jax.tree.map(lambda x, by=step: x * by, ARRAYS), {"step": step})
    checkpoints.close()
    return folder


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    shutil.copytree(saved, tmp_path / "run")
    return tmp_path / "run"


def loaded(run: Path) -> int:
    """The step that a run would go on from; its arrays must be right to the bit."""
    checkpoints = Checkpoints(run / "checkpoints", 2)
    meta = checkpoints.peek()
    assert meta is not None
    restored = restored_arrays(checkpoints, ARRAYS)
    checkpoints.close()
    for name, array in ARRAYS.items():
        assert np.asarray(restored[name]).tobytes() == np.asarray(array * meta["step"]).tobytes()
    return meta["step"]


def largest(step: Path) -> Path:
    return max((file for file in step.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)


def named(name: str) -> Callable[[Path], Path]:
    return lambda step: step / name


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def zeroed(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def scribbled(file: Path) -> None:
    file.write_text('{"phase": "poli')


def nested(file: Path) -> None:
    file.write_text("[" * 100_000)


def removed(file: Path) -> None:
    shutil.rmtree(file) if file.is_dir() else file.unlink()


def hollow(folder: Path) -> None:
    removed(folder)
    folder.mkdir()


def a_file(folder: Path) -> None:
    removed(folder)
    folder.write_text("not a folder")


DAMAGE = [
    (truncated, largest), (flipped, largest), (zeroed, largest), (removed, largest),
    (removed, named("arrays/manifest.ocdbt")), (scribbled, named("arrays/_METADATA")),
    (nested, named("arrays/_METADATA")), (nested, named("arrays/checksums.json")), (emptied, named("meta/metadata")),
    (scribbled, named("meta/metadata")), (flipped, named("meta/metadata")),
    (removed, named("arrays")), (removed, named("meta")), (hollow, named("arrays")), (hollow, named(".")),
    (a_file, named(".")), (emptied, named("_CHECKPOINT_METADATA")), (scribbled, named("_CHECKPOINT_METADATA")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "where"), DAMAGE, ids=[f"{damage.__name__}-{where(Path()) if where is not largest else 'largest'}"
    for damage, where in DAMAGE]
)  # fmt: skip
def test_a_damaged_checkpoint_is_put_aside_and_the_older_one_serves(run: Path, capsys, damage, where):
    damage(where(run / "checkpoints" / "2"))
    assert loaded(run) == 1
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "heckpoint" in line)
    assert re.fullmatch(r"Checkpoint 2 is damaged \(.+\): the run goes on from checkpoint 1; .+damaged/2'.+", line), (
        line
    )
    assert (run / "damaged" / "2").exists()
    assert loaded(run) == 1  # and nothing is said or moved again
    assert "damaged" not in capsys.readouterr().err


def test_no_flipped_bit_of_any_file_passes(run: Path):
    files = [file for file in sorted((run / "checkpoints" / "2").rglob("*")) if file.name != "commit_success.txt"]
    for number, file in enumerate(file for file in files if file.is_file() and file.parent.name != "2"):
        content = file.read_bytes()
        place = number * 7919 % len(content)
        file.write_bytes(content[:place] + bytes([content[place] ^ 1 << number % 8]) + content[place + 1 :])
        assert loaded(run) == 1, file
        back = run / "damaged" / file.relative_to(run / "checkpoints")
        back.write_bytes(content)
        shutil.move(run / "damaged" / "2", run / "checkpoints" / "2")
    assert loaded(run) == 2


def test_a_step_that_was_damaged_is_saved_again(run: Path):
    flipped(largest(run / "checkpoints" / "2"))
    checkpoints = Checkpoints(run / "checkpoints", 2)
    checkpoints.save(2, jax.tree.map(lambda x: x * 2, ARRAYS), {"step": 2})
    checkpoints.close()
    assert loaded(run) == 2
    flipped(largest(run / "checkpoints" / "2"))
    assert loaded(run) == 1
    assert sorted(path.name for path in (run / "damaged").iterdir()) == ["2", "2-2"]


def test_what_is_no_checkpoint_of_ours_is_left_alone(run: Path, capsys):
    folder = run / "checkpoints"
    (folder / "notes.txt").write_text("mine")
    (folder / ".DS_Store").write_bytes(b"\0")
    (folder / "old").mkdir()
    (folder / "2" / "arrays" / ".nfs0001").write_text("of the file system")
    assert loaded(run) == 2
    assert "damaged" not in capsys.readouterr().err
    assert (folder / "notes.txt").exists()


def test_a_file_in_the_place_of_an_older_checkpoint_is_none(run: Path):
    a_file(run / "checkpoints" / "1")
    assert loaded(run) == 2


def test_no_checkpoint_that_can_be_used_is_one_sentence_and_nothing_is_moved(run: Path):
    for step in ("1", "2"):
        flipped(largest(run / "checkpoints" / step))
    with pytest.raises(ConfigError) as refused:
        loaded(run)
    (sentence,) = str(refused.value).splitlines()
    assert all(part in sentence for part in ("2 (", "1 (", "delete"))
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["1", "2"]


def test_checksums_of_one_item_alone_are_damage(run: Path):
    removed(run / "checkpoints" / "2" / "arrays" / "checksums.json")
    assert loaded(run) == 1


class Other(SeveralProcesses):
    """The first of two processes; the other one finds what it is told, and nothing after that."""

    def __init__(self, *finds: str) -> None:
        super().__init__(0, 2)
        self.finds = list(finds)

    def gather(self, value):
        return [value, self.finds.pop(0) if value is None and self.finds else value]


def test_what_another_process_finds_counts_for_all(run: Path, capsys):
    put_damaged_aside(run / "checkpoints", Other("arrays/x is missing"))
    assert "Checkpoint 2 is damaged (arrays/x is missing)" in capsys.readouterr().err
    assert loaded(run) == 1


def test_several_processes_read_each_file_once(run: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[Path] = []
    monkeypatch.setattr(checksums, "_crc", lambda path, original=checksums._crc: read.append(path) or original(path))
    for index in range(2):
        assert damaged.problem(run / "checkpoints" / "2", Prepared(index, 2, [None])) is None
    everything = [file for item in ("arrays", "meta") for file in (run / "checkpoints" / "2" / item).rglob("*")]
    unlisted = ("checksums.json", "commit_success.txt")  # written after the list
    assert sorted(read) == sorted(file for file in everything if file.is_file() and file.name not in unlisted)
