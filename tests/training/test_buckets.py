"""Checkpoints in a bucket: the real clients and a small Google Cloud Storage on 127.0.0.1."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from etils import epath

from orchestra_jax.config.plugin_checks import checkpoint_problems
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.models.checkpoint.safetensors import ONE_FILE
from orchestra_jax.training import buckets
from orchestra_jax.training.checkpoint_names import checkpoint_folder, newest_checkpoint
from orchestra_jax.training.checkpointing import Checkpoints
from orchestra_jax.training.resuming import restored_arrays
from orchestra_jax.training.trainer import Trainer
from tests.models.trees import assert_same
from tests.training.fake_gcs import Store, serving
from tests.training.test_checkpointing import tree
from tests.training.test_trainer import MICRO, config, train_here

pytestmark = pytest.mark.skipif(find_spec("gcsfs") is None, reason="gcsfs is not installed")

BUCKET = "orchestra-test"


@pytest.fixture(scope="module")
def server() -> Iterator[Store]:
    with serving(BUCKET) as store:
        yield store


@pytest.fixture
def folder(server: Store, request: pytest.FixtureRequest) -> str:
    return f"gs://{BUCKET}/{request.node.name}/checkpoints"


def opened(folder: str, keep: int = 2) -> Checkpoints:
    return Checkpoints(checkpoint_folder("unused", folder), keep)


def test_the_newest_are_kept_and_come_back_bit_for_bit(folder: str):
    checkpoints = opened(folder)
    for step in (1, 5, 9):
        checkpoints.save(step, tree(step), {"step": step})
    checkpoints.close()
    assert sorted(path.name for path in epath.Path(folder).iterdir()) == ["5", "9"]
    later = opened(folder)
    assert later.peek() == {"step": 9}
    assert_same(restored_arrays(later, tree(0)), tree(9))
    later.close()
    assert not list(epath.Path(folder).glob("*/arrays/checksums*"))  # the bucket has its own


KILLED = """
import sys
import jax.numpy as jnp
from orchestra_jax.training.checkpointing import Checkpoints
from orchestra_jax.training.checkpoint_names import checkpoint_folder

checkpoints = Checkpoints(checkpoint_folder("unused", sys.argv[1]), keep=2)
checkpoints.save(2, {"w": jnp.full((30, 100), 2.0), "half": jnp.ones(4, jnp.bfloat16)}, {"step": 2})
checkpoints.close()
"""


def test_a_process_killed_while_saving_leaves_the_last_whole_checkpoint(server, folder: str, monkeypatch):
    checkpoints = opened(folder)
    checkpoints.save(1, tree(1), {"step": 1})
    checkpoints.close()

    begun, killed = threading.Event(), threading.Event()

    def slow(name: str) -> None:
        """Keep an array of checkpoint 2 on the wire until its process is dead."""
        if "/2/arrays/ocdbt.process_0/d/" in name:
            begun.set()
            assert killed.wait(60)

    monkeypatch.setattr(server, "before_write", slow)
    with subprocess.Popen([sys.executable, "-c", KILLED, folder], stderr=subprocess.PIPE, text=True) as saving:
        try:
            assert begun.wait(60)
        finally:
            os.kill(saving.pid, signal.SIGKILL)
            assert saving.wait(60) == -signal.SIGKILL
            killed.set()
    left = sorted(path.name for path in epath.Path(folder).iterdir())
    assert left == ["1", "2"]  # under its own name: nothing but the missing mark tells that it is no checkpoint
    assert newest_checkpoint(epath.Path(folder)).name == "1"

    later = opened(folder)
    assert sorted(path.name for path in epath.Path(folder).iterdir()) == ["1"]
    assert later.peek() == {"step": 1}
    assert_same(restored_arrays(later, tree(0)), tree(1))
    later.save(2, tree(2), {"step": 2})
    later.close()
    again = opened(folder)
    assert again.peek() == {"step": 2}
    assert_same(restored_arrays(again, tree(0)), tree(2))
    again.close()


def test_a_folder_that_works_has_no_problem_and_keeps_nothing(folder: str):
    assert buckets.bucket_problems(folder) == []
    assert not epath.Path(folder).exists()


def test_a_bucket_that_is_not_there_is_one_sentence(server, tmp_path, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        train_here(tmp_path / "run", *MICRO, "checkpoint.folder=gs://nowhere-at-all/run")
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "checkpoint.folder" in line]
    assert said.startswith("checkpoint.folder=gs://nowhere-at-all/run cannot be used: there is no bucket")
    assert not (tmp_path / "run").exists()


def test_missing_credentials_are_one_sentence(folder: str, monkeypatch, tmp_path):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))  # no login of this machine's user
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # nor of the machine, if it is Google's
    (said,) = buckets.bucket_problems(folder)
    assert "there are no credentials of Google Cloud. Run `gcloud auth application-default login`" in said


def test_a_bucket_that_may_not_be_written_is_one_sentence(server, folder: str, monkeypatch):
    def refuse(name: str) -> None:
        raise PermissionError("not in this bucket")

    monkeypatch.setattr(server, "before_write", refuse)
    (said,) = buckets.bucket_problems(folder)
    assert "not in this bucket" in said
    assert "role Storage Object User" in said


def test_a_server_that_is_silent_is_one_sentence(folder: str, monkeypatch):
    monkeypatch.setattr(buckets, "_DEADLINE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{silent.getsockname()[1]}")
        (said,) = buckets.bucket_problems(folder)
    assert said.startswith(f"checkpoint.folder={folder} cannot be used: ")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("s3://bucket/run", "not to s3://"),
        ("'http://['", "not to http://"),
        ("gs://bucket", "gs://BUCKET/PATH"),
        ("gs:///run", "gs://BUCKET/PATH"),
    ],
)
def test_places_that_cannot_be_are_refused(place: str, words: str, tmp_path):
    with pytest.raises(ConfigError, match=r"checkpoint\.folder") as refused:
        config(tmp_path, f"checkpoint.folder={place}")
    assert words in str(refused.value)


def test_places_on_a_disk_are_fine():
    assert [*checkpoint_problems("/shared/run"), *checkpoint_problems("relative/run")] == []


@pytest.mark.slow
def test_a_run_goes_on_from_a_bucket_and_ends_with_the_same_parameters(folder: str, tmp_path, capsys):
    small = (
        *MICRO, "steps=2", "warm_start.steps=2", "checkpoint.every=1", "evaluation.every=0", "evaluation.questions=0",
    )  # fmt: skip
    train_here(tmp_path / "whole", *small)

    def crash(trainer: Trainer) -> None:
        if trainer.state.phase == "policy":
            raise MemoryError("the first machine")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "stop_if_asked", crash)
        with pytest.raises(MemoryError, match="the first machine"):
            train_here(tmp_path / "first", *small, f"checkpoint.folder={folder}")
    assert not (tmp_path / "first" / "checkpoints").exists()
    capsys.readouterr()
    train_here(tmp_path / "second", *small, f"checkpoint.folder={folder}")
    assert f"Continues from {folder}/policy-000001 (step 1 of policy)." in capsys.readouterr().out
    ends = [newest_checkpoint(place) for place in (tmp_path / "whole" / "checkpoints", epath.Path(folder))]
    assert [end.name for end in ends] == ["policy-000002"] * 2
    whole, gone_on = ((tmp_path / name / "policy" / ONE_FILE).read_bytes() for name in ("whole", "second"))
    assert whole == gone_on
