import json
import shutil
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import optax
import pytest

from orchestra_jax.rl.objectives import init_state
from orchestra_jax.training import checksums
from orchestra_jax.training.checkpointing import Checkpoints
from orchestra_jax.training.resuming import restored_arrays
from tests.models.trees import assert_same


def tree(seed: float) -> dict[str, jax.Array]:
    """Arrays of several dtypes, NaN included."""
    return {
        "w": jax.random.normal(jax.random.key(int(seed)), (3, 5)) + seed,
        "half": jnp.arange(4, dtype=jnp.bfloat16) * seed,
        "count": jnp.asarray(int(seed), jnp.int32),
        "odd": jnp.array([jnp.nan, -jnp.inf, 1e-40]),
    }


@pytest.fixture
def checkpoints(tmp_path):
    made = Checkpoints(tmp_path / "run" / "checkpoints", keep=2)  # missing folders are made
    yield made
    made.close()


def reopened(tmp_path, keep: int = 2) -> Checkpoints:
    return Checkpoints(tmp_path / "run" / "checkpoints", keep)


def test_a_new_folder_has_no_checkpoint(checkpoints):
    assert checkpoints.peek() is None


def test_round_trip_is_bit_equal_in_a_new_manager(checkpoints, tmp_path):
    meta = {"phase": "train", "cursor": {"epoch": 1, "index": [2, 3]}, "version": 7, "best": 0.1 + 0.2, "none": None}
    arrays = tree(3.0)
    checkpoints.save(3, arrays, meta)
    checkpoints.close()
    later = reopened(tmp_path)
    assert later.peek() == meta
    assert json.loads(json.dumps(later.peek())) == meta
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
    for wanted in (jax.tree.map(jnp.zeros_like, arrays), like):
        assert_same(restored_arrays(later, wanted), arrays)
    later.close()


def test_a_train_state_comes_back_as_one(checkpoints):
    state = init_state({"w": tree(1.0)["w"]}, optax.adamw(1e-3))
    checkpoints.save(1, state, {})
    checkpoints.close()
    restored = restored_arrays(checkpoints, init_state({"w": jnp.zeros((3, 5))}, optax.adamw(1e-3)))
    assert type(restored) is type(state)
    assert_same(restored, state)


def test_shardings_are_those_of_like(checkpoints):
    mesh = jax.make_mesh((2,), ("data",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    array = jnp.arange(8.0)
    checkpoints.save(1, {"x": jax.device_put(array, split)}, {})
    checkpoints.close()
    whole = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for sharding in (split, whole):
        restored = restored_arrays(checkpoints, {"x": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)})["x"]
        assert restored.sharding == sharding
        assert_same(restored, array)


def test_arrays_may_be_donated_once_save_returns(checkpoints):
    arrays = {"x": jnp.full((500_000,), 3.0)}
    checkpoints.save(1, arrays, {})
    gone = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)(arrays["x"])
    gone.block_until_ready()
    checkpoints.close()
    assert_same(restored_arrays(checkpoints, {"x": gone})["x"], jnp.full((500_000,), 3.0))


def test_a_slow_disk_has_hours_for_a_save(checkpoints, monkeypatch):
    """98 GB at 80 MB/s are 20 minutes, after which Orbax by itself gives a save up, and the run with it."""
    given, wait = [], checksums._Summing.result

    def result(future, timeout=None):
        given.append(timeout)
        wait(future, timeout)

    monkeypatch.setattr(checksums._Summing, "result", result)
    checkpoints.save(1, tree(1.0), {})
    checkpoints.manager.wait_until_finished()
    assert given
    assert min(given) > 10 * 3600


def test_the_newest_are_kept(checkpoints, tmp_path):
    for step in (1, 5, 9):
        checkpoints.save(step, tree(step), {"step": step})
    checkpoints.close()
    folder = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["5", "9"]
    later = reopened(tmp_path)
    assert later.peek() == {"step": 9}
    assert_same(restored_arrays(later, tree(0.0)), tree(9))
    later.close()


def test_saving_a_step_again_does_nothing(checkpoints):
    checkpoints.save(4, tree(1.0), {"first": True})
    checkpoints.save(4, tree(2.0), {"first": False})
    checkpoints.close()
    assert checkpoints.peek() == {"first": True}
    assert_same(restored_arrays(checkpoints, tree(0.0)), tree(1.0))


def test_a_half_written_step_is_ignored_and_can_be_saved_again(checkpoints, tmp_path):
    checkpoints.save(1, tree(1.0), {"step": 1})
    checkpoints.close()
    # What a process killed while saving step 2 leaves behind: part of the files under a temporary name.
    folder = tmp_path / "run" / "checkpoints"
    torn = folder / "2.orbax-checkpoint-tmp"
    shutil.copytree(folder / "1" / "arrays", torn / "arrays.orbax-checkpoint-tmp")
    (torn / "arrays.orbax-checkpoint-tmp" / "manifest.ocdbt").unlink()

    later = reopened(tmp_path)
    assert later.peek() == {"step": 1}
    assert_same(restored_arrays(later, tree(0.0)), tree(1.0))
    later.save(2, tree(2.0), {"step": 2})
    later.close()
    assert later.peek() == {"step": 2}
    assert_same(restored_arrays(later, tree(0.0)), tree(2.0))


KILLED = """
import os, signal, sys
from pathlib import Path
import jax.numpy as jnp
from orchestra_jax.training import checksums
from orchestra_jax.training.checkpointing import Checkpoints

checkpoints = Checkpoints(Path(sys.argv[1]), keep=2)
checkpoints.save(1, {"x": jnp.full((1000,), 1.0)}, {"step": 1})
checkpoints.close()
checkpoints = Checkpoints(Path(sys.argv[1]), keep=2)
checkpoints.save(2, {"x": jnp.full((5_000_000,), 2.0)}, {"step": 2})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_while_saving_leaves_a_whole_checkpoint(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder)], capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    later = reopened(tmp_path)
    meta = later.peek()
    assert meta in ({"step": 1}, {"step": 2})  # as a rule 1, but the disk may have been quick
    size = {1: 1000, 2: 5_000_000}[meta["step"]]
    assert_same(restored_arrays(later, {"x": jnp.zeros(size)})["x"], jnp.full((size,), float(meta["step"])))
    later.close()
