import json

import pytest

from orchestra_jax.config.schema import ConfigError, ModelConfig
from orchestra_jax.models.checkpoint.reading import read_config
from orchestra_jax.models.families import FAMILIES, preset_config, run_settings
from orchestra_jax.models.qwen3 import Qwen3Config

CONFIG = Qwen3Config.preset("tiny", vocab_size=40, dtype="bfloat16")


class Other(Qwen3Config):
    model_type = "other"


def test_the_folder_names_its_family(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_hf()))
    assert read_config(tmp_path, dtype="bfloat16") == CONFIG
    assert read_config(str(tmp_path / "config.json"), dtype="bfloat16") == CONFIG
    assert isinstance(read_config(tmp_path), Qwen3Config)
    with pytest.raises(FileNotFoundError, match=r"No Hugging Face config at .*config\.json"):
        read_config(tmp_path / "none")


def test_an_unknown_family_is_refused_with_the_known_ones(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_hf() | {"model_type": "other"}))
    with pytest.raises(
        ValueError,
        match=r"model_type 'other' .*of one of llama, mistral, qwen2, qwen3, qwen3_moe, or set model\.family=",
    ):
        read_config(tmp_path)
    assert isinstance(read_config(tmp_path, Other), Other)
    with pytest.raises(ValueError, match="'other' is not supported by Qwen3Config; give a 'qwen3' model"):
        read_config(tmp_path, Qwen3Config)


def test_a_run_names_the_family_of_its_preset() -> None:
    config = preset_config(ModelConfig(remat="full"), vocab_size=40)
    assert config == Qwen3Config.preset("tiny", vocab_size=40, remat="full")
    assert run_settings(ModelConfig())["family"] is None
    mine = preset_config(ModelConfig(family=f"{__name__}:Other"), vocab_size=40)
    assert type(mine).__name__ == "Other"
    assert FAMILIES.names() == ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
    with pytest.raises(ConfigError, match=r"model\.family=qwen4 is no known model family: did you mean qwen3"):
        preset_config(ModelConfig(family="qwen4"), vocab_size=40)
