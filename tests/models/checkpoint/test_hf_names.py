import jax
import numpy as np
import pytest

from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.checkpoint.hf_names import sources
from orchestra_jax.models.qwen3 import Qwen3Config
from tests.models.trees import drawn_params, to_params, to_tensors

CONFIG = Qwen3Config.preset("tiny", vocab_size=40, hidden_size=16, intermediate_size=24)


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_round_trip(scan: bool, tied: bool) -> None:
    config = CONFIG.replace(scan_layers=scan, tie_word_embeddings=tied)
    params = drawn_params(config)
    tensors = to_tensors(params, config)
    assert tensors["model.layers.2.mlp.down_proj.weight"].shape == (16, 24)
    assert ("lm_head.weight" in tensors) != tied
    assert len(tensors) == 3 - tied + 11 * 3
    assert all(tensor.flags.c_contiguous for tensor in tensors.values())
    jax.tree.map(np.testing.assert_array_equal, to_params(tensors, config), dict(params))
    assert jax.tree.structure(sources(config)) == jax.tree.structure(params)


def test_a_parameter_without_a_name_is_refused() -> None:
    class Nameless(Qwen3Config):
        tensor_names = DecoderConfig.tensor_names

    with pytest.raises(ValueError, match=r"Nameless\.tensor_names has no name for the parameter 'k_norm'"):
        sources(Nameless(**vars(CONFIG)))
