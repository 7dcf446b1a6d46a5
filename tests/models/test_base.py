import pytest

from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.models.sizes import num_params

HF = {
    "model_type": "qwen3",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("qwen3-0.6b", 596),
        ("qwen3-1.7b", 1721),
        ("qwen3-4b", 4022),
        ("qwen3-8b", 8191),
        ("qwen3-14b", 14768),
        ("qwen3-32b", 32762),
    ],
)
def test_released_sizes_have_the_official_parameter_count(name: str, millions: int) -> None:
    config = Qwen3Config.preset(name, scan_layers=True)
    assert num_params(config) / 1e6 == pytest.approx(millions, abs=0.6)


def test_tiny_preset_and_overrides() -> None:
    config = Qwen3Config.preset("tiny", vocab_size=600, remat="full")
    assert (config.num_layers, config.hidden_size, config.num_heads, config.head_dim) == (3, 96, 4, 24)
    assert (config.num_kv_heads, config.intermediate_size, config.rope_theta) == (2, 256, 10000.0)
    assert config.tie_word_embeddings
    assert config.vocab_size == 600
    assert config.remat == "full"
    with pytest.raises(ValueError, match="pass vocab_size"):
        Qwen3Config.preset("small")


def test_unknown_preset_lists_the_names() -> None:
    with pytest.raises(ValueError, match=r"tiny, reader, small, qwen3-0\.6b"):
        Qwen3Config.preset("qwen3-9b")


def test_reads_transformers_5_and_4() -> None:
    new = Qwen3Config.from_hf(HF, dtype="bfloat16")
    assert (new.rope_theta, new.rms_norm_eps, new.dtype, new.max_position_embeddings) == (5e5, 1e-5, "bfloat16", 512)
    old = {key: value for key, value in HF.items() if key != "rope_parameters"}
    old |= {"rope_theta": 5e5, "rope_scaling": None}
    assert Qwen3Config.from_hf(old, dtype="bfloat16") == new


def test_to_hf_is_read_back_by_us_and_by_transformers() -> None:
    config = Qwen3Config.preset("tiny", vocab_size=600)
    assert Qwen3Config.from_hf(config.to_hf()) == config
    transformers = pytest.importorskip("transformers")
    theirs = transformers.Qwen3Config(**config.to_hf())
    assert Qwen3Config.from_hf(theirs.to_dict()) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "qwen3_moe"}, "'qwen3_moe' is not supported"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}},
            "RoPE scaling 'dynamic' is not supported; give a",
        ),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "RoPE scaling 'linear' lacks factor; add it"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is not supported"),
        ({"use_sliding_window": True, "sliding_window": 64}, "sliding_window=64 of this qwen3 model is not supported"),
        ({"use_sliding_window": True}, "sliding_window=4096 .* or set use_sliding_window to false in its config"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window=4096 of this qwen3 model"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; this decoder has only hidden_act='silu'"),
        ({"num_key_value_heads": 3}, "multiple of num_kv_heads"),
        ({"head_dim": 15}, "must be even"),
    ],
)
def test_what_the_decoder_does_not_have_is_refused(change, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Qwen3Config.from_hf(HF | change)


def test_bad_remat() -> None:
    with pytest.raises(ValueError, match="none, full, dots"):
        Qwen3Config.preset("tiny", vocab_size=8, remat="half")
