"""The same run on a mesh, on packed rows, with adapters and with a reference in host memory."""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.models import checkpoint
from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.lora import LoRA, adapter_base, load_peft, merge
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.training.adapters import starting_adapters
from orchestra_jax.training.build import preflight
from orchestra_jax.training.loggers.jsonl import read_metrics
from tests.training.test_trainer import MICRO, assert_same_arrays, config, final_arrays, reference, train, train_here

__all__ = ["reference"]  # a fixture

SMALL = (*MICRO, "evaluation.every=0", "evaluation.questions=0", "steps=3")
# The quickstart's row widths split a step into several micro-batches; one width does for all of it.
PACKED = ("algorithm.packing=true", "algorithm.row_length=320", "algorithm.micro_tokens=640")


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(PACKED, id="packed", marks=pytest.mark.slow),
        pytest.param(
            (*PACKED, "mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2", "algorithm.reference_offload=true"),
            id="all",
            marks=pytest.mark.release,
        ),
    ],
)
def test_the_first_update_is_that_of_one_device(tmp_path: Path, reference: Path, overrides: tuple[str, ...]):
    train_here(tmp_path, *SMALL, *overrides)
    wanted, found = read_metrics(reference)[0], read_metrics(tmp_path)[0]
    # The warm start's sums are in another order, so samples may differ in a later step.
    for name in ("loss", "grad_norm", "entropy", "tokens/sampled"):
        assert found[name] == pytest.approx(wanted[name], rel=2e-3, abs=1e-5), name
    for row in read_metrics(tmp_path):
        assert row["mismatch/max"] < 1e-4
        assert row["updates/skipped"] == 0


@pytest.mark.release
def test_a_run_on_a_mesh_resumes_bit_for_bit(tmp_path: Path):
    mesh = ("mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2")
    train_here(tmp_path / "whole", *SMALL, *mesh)
    assert train(tmp_path / "killed", *SMALL, *mesh, stop="policy 2 SIGKILL").returncode == -9
    done = train(tmp_path / "killed", *SMALL, *mesh)
    assert done.returncode == 0, done.stderr
    assert_same_arrays(tmp_path / "whole", tmp_path / "killed")


def test_the_exported_policy_is_the_trained_one(reference: Path):
    loaded, params = checkpoint.load(reference / "policy")
    exported = {np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)}
    trained = {leaf.tobytes() for leaf in final_arrays(reference)}
    assert isinstance(loaded, Qwen3Config)
    assert exported <= trained
    assert (reference / "policy" / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    "mesh", [pytest.param((), id="one"), pytest.param(("mesh.fsdp=8",), id="mesh", marks=pytest.mark.slow)]
)
def test_adapters_train_on_a_frozen_base(tmp_path: Path, reference: Path, mesh: tuple[str, ...]):
    adapted = (f"model.path={reference / 'policy'}", "model.lora.rank=4", "model.lora.targets=[q,v,down]", *mesh)
    train_here(tmp_path, *SMALL, *adapted)
    model, base = checkpoint.load(reference / "policy")
    lora, adapters = load_peft(tmp_path / "policy", model)
    assert (lora.rank, lora.targets) == (4, ("q", "v", "down"))
    assert any(np.abs(leaf["lora_b"]).max() > 0 for layer in adapters.values() for leaf in layer.values())
    merged = merge(base, adapters, lora)
    np.testing.assert_array_equal(merged["embed"], base["embed"])
    # What the engine samples from is the base with the adapters: the learner's log-probs agree.
    assert all(row["mismatch/max"] < 1e-4 for row in read_metrics(tmp_path))
    named = json.loads((tmp_path / "policy" / "adapter_config.json").read_text())
    assert named["base_model_name_or_path"] == str(reference / "policy")
    assert (tmp_path / "policy" / "tokenizer.json").is_file()
    (made_from,) = json.loads((tmp_path / "run.json").read_text())["parents"]
    assert (made_from["path"], made_from["run"]) == (str(reference / "policy"), str(reference))


@pytest.mark.slow
def test_a_run_starts_from_the_adapters_of_another(tmp_path: Path, reference: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    adapted = (*SMALL, f"model.path={reference / 'policy'}", "model.lora.targets=[v]", "model.lora.rank=2")
    train_here(first, *adapted, "steps=1")
    start = (*adapted, f"model.lora.path={first / 'policy'}", "seed=1")
    train_here(second, *start, "steps=0")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (first / "policy" / name).read_bytes() == (second / "policy" / name).read_bytes()
    _, made_from = json.loads((second / "run.json").read_text())["parents"]
    assert (made_from["setting"], made_from["run"]) == ("model.lora.path", str(first))
    third = tmp_path / "third"
    train_here(third, *start, "steps=2")
    rows = read_metrics(third)
    assert rows[0]["kl/ref"] == pytest.approx(0, abs=1e-12)  # the reference is the policy that this run starts from
    assert rows[1]["kl/ref"] > 1e-9
    with pytest.raises(ConfigError, match=r"set rank=2 alpha=32 targets=\[v\] layers=0"):
        starting_adapters(str(first / "policy"), 0, *given(first, rank=3))
    with pytest.raises(ConfigError, match=r"No adapter_config.json in .*PEFT's save_pretrained"):
        starting_adapters(str(tmp_path), 0, *given(first, rank=2))


def given(run: Path, rank: int) -> tuple[DecoderConfig, LoRA]:
    """The policy of a run, and adapters of its values."""
    base = adapter_base(run / "policy")
    return checkpoint.load(base)[0], LoRA(rank, 32.0, ("v",))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("model.lora.rank=4",), "model.lora.rank needs a base to freeze"),
        (("model.lora.path=adapters",), "set model.lora.rank to theirs"),
        (
            ("algorithm.packing=true", "algorithm.row_length=64"),
            "does not hold a trajectory of rollout.limits.max_length",
        ),
    ],
)
def test_what_cannot_work_is_said_in_a_sentence(tmp_path: Path, overrides: tuple[str, ...], sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        config(tmp_path, *overrides)


def test_a_mesh_that_the_machine_does_not_have(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"does not cover 8 device\(s\)"):
        preflight(config(tmp_path, "mesh.fsdp=3"))
    assert os.environ["XLA_FLAGS"].count("device_count=8")
