"""The loss of docs/add_a_loss.md, from a folder outside the repository."""

import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.rl.losses import LOSSES, LossConfig, policy_loss
from tests.docs.pages import DOCS, begin_with

OLD = np.log(np.array([[0.9, 0.5, 0.1, 0.7]], np.float32))
MASK = np.array([[True, True, True, False]])


def test_the_example_is_used_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begin_with("add_a_loss.md", "my_loss.py", tmp_path, monkeypatch)
    cfg = LossConfig("my_loss:shy", clip_low=0.5, clip_high=0.5, kl_coef=0.1)

    @jax.jit
    def loss(logprobs):
        return policy_loss(logprobs, OLD, jnp.ones(1), MASK, cfg, ref_logprobs=jnp.asarray(OLD))

    (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(OLD + np.float32(np.log(1.2)))
    # Ratio 1.2 everywhere: clipped for the sure token alone, whose room is 0.1.
    assert metrics["policy_loss"] == pytest.approx(-(1.05 + 1.2 + 1.2) / 3)
    assert metrics["clip_fraction_high"] == pytest.approx(1 / 3)
    assert value == pytest.approx(float(metrics["policy_loss"] + 0.1 * metrics["kl_loss"]))
    without_kl = jax.grad(lambda x: policy_loss(x, OLD, jnp.ones(1), MASK, replace(cfg, kl_coef=0.0))[0])
    assert (np.asarray(without_kl(OLD + np.float32(np.log(1.2))))[0] != 0).tolist() == [False, True, True, False]
    assert gradient[0, 3] == 0


def test_the_page_has_every_loss():
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "add_a_loss.md").read_text(), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == list(LOSSES.names())
