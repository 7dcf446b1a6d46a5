"""Llama and its kin without torch: sizes, what their config.json says, and rotary positions by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.models.base import DecoderConfig
from orchestra_jax.models.llama import LlamaConfig, MistralConfig, Qwen2Config
from orchestra_jax.models.rope import rope_angles
from orchestra_jax.models.rope_scaling import RopeScaling
from orchestra_jax.models.sizes import num_params

SIZES = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "name", "millions"),
    [
        (LlamaConfig, "smollm2-135m", 134.5),
        (LlamaConfig, "smollm2-360m", 361.8),
        (LlamaConfig, "smollm2-1.7b", 1711.4),
        (LlamaConfig, "llama-3.2-1b", 1235.8),
        (LlamaConfig, "llama-3.2-3b", 3212.7),
        (LlamaConfig, "llama-3.1-8b", 8030.3),
        (MistralConfig, "mistral-7b-v0.3", 7248.0),
        (Qwen2Config, "qwen2.5-0.5b", 494.0),
        (Qwen2Config, "qwen2.5-1.5b", 1543.7),
        (Qwen2Config, "qwen2.5-3b", 3085.9),
        (Qwen2Config, "qwen2.5-7b", 7615.6),
        (Qwen2Config, "qwen2.5-14b", 14770.0),
        (Qwen2Config, "qwen2.5-32b", 32763.9),
    ],
)
def test_released_sizes_have_the_official_parameter_count(
    family: type[DecoderConfig], name: str, millions: float
) -> None:
    config = family.preset(name, scan_layers=True)
    assert num_params(config) / 1e6 == pytest.approx(millions, abs=0.06)
    read = family.from_hf(config.to_hf(), scan_layers=True)
    assert read == config


def test_where_biases_are() -> None:
    def of(family: type[DecoderConfig], **fields: bool) -> tuple[str, ...]:
        return family.from_hf(SIZES | {"model_type": family.model_type, "sliding_window": None} | fields).bias

    assert of(LlamaConfig) == of(MistralConfig, attention_bias=True) == ()
    assert of(LlamaConfig, attention_bias=True) == ("q", "k", "v", "o")
    assert of(Qwen2Config) == Qwen2Config.preset("qwen2.5-7b").bias == ("q", "k", "v")
    with pytest.raises(ValueError, match="mlp_bias=True is not supported"):
        of(LlamaConfig, mlp_bias=True)


def test_mistral_has_a_window_unless_its_config_says_no() -> None:
    hf = SIZES | {"model_type": "mistral"}
    for given, window in ((hf, 4096), (hf | {"sliding_window": 128}, 128)):
        with pytest.raises(ValueError, match=f"sliding_window={window} of this mistral .*set sliding_window to null"):
            MistralConfig.from_hf(given)
    assert MistralConfig.from_hf(hf | {"sliding_window": None}).to_hf()["sliding_window"] is None
    # Qwen2.5 names a window that it does not use.
    assert Qwen2Config.from_hf(SIZES | {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 64})


def frequencies(scaling: RopeScaling | None, theta: float = 1e4, dim: int = 8) -> np.ndarray:
    cos, sin = rope_angles(jnp.ones((1, 1), int), dim, theta, scaling)
    return np.arctan2(sin, cos)[0, 0]


def test_scaled_frequencies_by_hand() -> None:
    plain = 10.0 ** -np.arange(4.0)
    np.testing.assert_allclose(frequencies(None), plain, rtol=1e-5)
    np.testing.assert_allclose(frequencies(RopeScaling("linear", 4.0)), plain / 4, rtol=1e-5)
    # Of 2 pi * 20 tokens the frequencies turn 20, 2, .2 and .02 times: kept, a third of the way from 1 to 4, divided.
    llama3 = RopeScaling("llama3", 8.0, original_length=40 * np.pi, slow=1.0, fast=4.0)
    np.testing.assert_allclose(frequencies(llama3), [1, 0.1 * (1 / 3 + 2 / 3 / 8), 0.01 / 8, 0.001 / 8], rtol=1e-5)
    # The same text under yarn: what turns 18 times is past dimension 0, what turns .25 times before dimension 2.
    yarn = RopeScaling("yarn", 4.0, original_length=40 * np.pi, slow=0.25, fast=18.0, attention_factor=1.5)
    np.testing.assert_allclose(frequencies(yarn), [1, 0.1 * (1 / 2 + 1 / 8), 0.01 / 4, 0.001 / 4], rtol=1e-5)
    cos, sin = rope_angles(jnp.ones((1, 1), int), 8, 1e4, yarn)
    np.testing.assert_allclose(np.hypot(cos, sin), 1.5, rtol=1e-6)


def test_yarn_takes_the_papers_numbers_where_none_are_given() -> None:
    found = RopeScaling.from_hf({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072)
    assert found == RopeScaling("yarn", 4.0, 32768, 1.0, 32.0, pytest.approx(0.1 * np.log(4) + 1))
    by_length = RopeScaling.from_hf({"rope_type": "yarn", "original_max_position_embeddings": 64}, 256)
    assert (by_length.factor, by_length.original_length) == (4.0, 64)
    assert RopeScaling.from_hf({"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.0}, 99).original_length == 99
    with pytest.raises(ValueError, match="'llama3' lacks low_freq_factor, high_freq_factor; add it"):
        RopeScaling.from_hf({"rope_type": "llama3", "factor": 2.0}, 64)
