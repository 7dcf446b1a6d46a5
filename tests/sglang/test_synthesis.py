"""Synthesis by a real SGLang server with a tiny random model: all of it is rejected and counted, nothing is kept."""

import json

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.synthesis.synthesize import synthesize

pytestmark = pytest.mark.sglang


@pytest.mark.parametrize("make", ["world", "preferences"])
def test_a_model_that_knows_nothing(servers, folder, tmp_path, make):
    experts = tmp_path / "experts.yaml"
    fields = {
        "model": "default", "base_url": f"{servers[1].url}/v1", "context_tokens": 4000, "max_tokens": 24,
        "tokenizer": str(folder), "retries": 0,
    }  # fmt: skip
    experts.write_text(json.dumps({"experts": {"qwen3-32b": fields}}))
    models = [f"synthesis.models.{role}=qwen3-32b" for role in ("writer", "checker", "programmer", "evolver", "solver")]
    cfg = compose(
        f"synthesis.make={make}", f"output_dir={tmp_path / 'run'}", f"tools.experts_file={experts}", *models,
        "synthesis.tries=2", "synthesis.preferences=4", name="synthesis",
    )  # fmt: skip

    assert not synthesize(cfg, cfg.synthesis)

    card = json.loads((tmp_path / "run" / "card.json").read_text())
    asked = 1 if make == "world" else 4
    assert card["stages"][0]["reasons"] == {"no fitting reply": asked}
    assert (card["stages"][0]["kept"], card["calls"]) == (0, 2 * asked)
    assert card["tokens"] > 0
    assert not (tmp_path / "run" / "library").exists()
    assert cfg.replay.path is not None
    before = (tmp_path / "run" / "card.json").read_bytes()
    assert not synthesize(cfg, cfg.synthesis)  # from its stages and the record: the same again
    assert (tmp_path / "run" / "card.json").read_bytes() == before
