"""Gradients that are sums over many tokens: in bf16 a sum grows no more at 256 times its terms."""

import functools

import jax
import numpy as np
import pytest

from orchestra_jax.models.llama import Qwen2Config
from orchestra_jax.rl.batching import MicroShapes, PackShapes, TokenSequence
from orchestra_jax.rl.learner import Learner, LearnerConfig
from orchestra_jax.rl.losses import LossConfig
from orchestra_jax.rl.packing import micro_batches, pack
from tests.models.trees import drawn_params

from .packed_rows import recorder

ROWS, WIDTH = 512, 4
SHAPES = MicroShapes(ROWS * WIDTH, (WIDTH,), (1,))
PACKED = PackShapes(ROWS * WIDTH, 1, ROWS, shared=True)
# All rows say the same after one prompt, so that all terms of a sum are alike.
SEQUENCES = [TokenSequence((5, 3, 3, 3, 3), (False, False, True, True, True), (0.0,) * 5, 1, 1.0)] * ROWS
MODEL = Qwen2Config(
    vocab_size=16, hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8,
    tie_word_embeddings=False, initializer_range=0.3,
)  # fmt: skip


@functools.cache
def gradients(dtype: str, param_dtype: str, packed: bool = False) -> dict[str, np.ndarray]:
    model = MODEL.replace(dtype=dtype, param_dtype=param_dtype)
    learner = Learner(model, LearnerConfig(LossConfig()), recorder())
    (batch,) = pack(SEQUENCES, PACKED) if packed else micro_batches(SEQUENCES, SHAPES)
    assert packed or batch.prefix_lengths.tolist()[0] == 1
    state, _ = learner.supervised_step(learner.init(drawn_params(model)), [batch])
    leaves = jax.tree_util.tree_leaves_with_path(state.opt_state)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


@pytest.mark.parametrize("param_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "part"),
    [
        pytest.param("layers_0/v/bias", slice(None), id="bias"),
        pytest.param("embed", 3, id="token of all rows"),
        pytest.param("embed", 5, id="token of the shared prompt"),
    ],
)
def test_what_many_tokens_share_gets_the_gradient_of_all(name, part, param_dtype):
    wanted, found = (gradients(*kind)[name][part] for kind in (("float32",) * 2, ("bfloat16", param_dtype)))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=0.05 * np.abs(wanted).max())


def test_rollouts_that_begin_with_the_same_words_each_count():
    """All of them are predicted from one place of a packed row, whose gradient is the sum of theirs."""
    kinds = ("float32", "float32"), ("bfloat16", "float32", True)
    wanted, found = (gradients(*kind)["layers_0/v/bias"] for kind in kinds)
    np.testing.assert_allclose(found, wanted, atol=0.05 * np.abs(wanted).max())
