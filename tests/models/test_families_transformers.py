"""Parity of every family with transformers, by files in both directions; needs torch."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from orchestra_jax.models import checkpoint
from orchestra_jax.models.decoder import empty_cache, forward, logits, write_cache

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

LENGTH = 24
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e3, "factor": 4.0, "original_max_position_embeddings": 64}
ODD_YARN = YARN | {"beta_fast": 8.0, "beta_slow": 0.5, "truncate": False, "mscale": 0.8, "mscale_all_dim": 0.3}
MOE = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20}
# class, (heads, kv heads, head size, hidden size), tied, scan_layers, fields of its config
CASES = {
    "llama": ("Llama", (4, 2, 16, 64), True, False, {"rope_parameters": PLAIN}),
    "llama-bias-llama3": ("Llama", (3, 1, 24, 48), False, True, {"rope_parameters": LLAMA3, "attention_bias": True}),
    "llama-linear": ("Llama", (4, 4, 8, 32), True, True, {"rope_parameters": LINEAR}),
    "mistral": ("Mistral", (4, 1, 20, 48), False, False, {"rope_parameters": PLAIN, "sliding_window": None}),
    "mistral-yarn": ("Mistral", (2, 2, 32, 64), True, True, {"rope_parameters": YARN, "sliding_window": None}),
    "qwen2": ("Qwen2", (4, 2, 16, 64), True, True, {"rope_parameters": PLAIN}),
    "qwen2-yarn": ("Qwen2", (6, 2, 8, 48), False, False, {"rope_parameters": ODD_YARN}),
    "qwen3": ("Qwen3", (4, 2, 16, 64), True, True, {"rope_parameters": PLAIN}),
    "qwen3-moe": ("Qwen3Moe", (4, 2, 24, 32), False, True, {"rope_parameters": PLAIN, **MOE, "norm_topk_prob": True}),
    "qwen3-moe-softmax": ("Qwen3Moe", (4, 2, 16, 48), True, False, {"rope_parameters": PLAIN, **MOE}),
    "qwen3-bias-yarn": ("Qwen3", (4, 2, 24, 32), True, False, {"rope_parameters": YARN, "attention_bias": True}),
}


class Parity(NamedTuple):
    """Largest differences of logits from transformers' on the same file, both in fp32.

    Attributes:
        largest: logit there is, by its absolute value.
        full: of all tokens at once.
        cached: of pieces of 11, 1, 11 and 1 tokens on a cache.
        read_back: of transformers on the file that we wrote from it.
    """

    largest: float
    full: float
    cached: float
    read_back: float


@functools.partial(jax.jit, static_argnums=1)
def run(params, config, tokens, positions, past=None, past_lengths=None):
    hidden, kv = forward(params, config, tokens, positions, past=past, past_lengths=past_lengths)
    return logits(params, config, hidden), kv


# What is computed outside of jit compiles a program for each operation and shape; numpy compiles nothing.
write = jax.jit(write_cache)


def their_model(kind: str, sizes: tuple[int, int, int, int], tied: bool, fields: dict):
    heads, kv_heads, head_dim, hidden = sizes
    if kind != "Qwen2":  # its config has no head size: hidden / heads
        fields = fields | {"head_dim": head_dim}
    model = getattr(transformers, f"{kind}ForCausalLM")(
        getattr(transformers, f"{kind}Config")(
            vocab_size=90,
            hidden_size=hidden,
            intermediate_size=hidden + 24,
            num_hidden_layers=2,
            bos_token_id=1,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=256,
            eos_token_id=2,
            tie_word_embeddings=tied,
            attn_implementation="eager",
            rms_norm_eps=1e-5,
            **fields,
        )
    ).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn_like(weight)
            weight.copy_(1 + 0.2 * noise if "norm" in name else 0.15 * noise)
    return model


def parity(name: str, folder: Path) -> Parity:
    """One of CASES, with files in `folder` in both directions."""
    kind, sizes, tied, scan, fields = CASES[name]
    torch.manual_seed(len(name))
    model = their_model(kind, sizes, tied, fields)
    ids = torch.randint(0, 90, (2, LENGTH))
    where = torch.arange(LENGTH).expand(2, -1) + torch.tensor([[0], [150]])  # the second row far into a text

    def theirs(model: Any) -> np.ndarray:
        with torch.no_grad():
            return model(ids, position_ids=where).logits.numpy()

    want = theirs(model)
    model.save_pretrained(folder / "theirs")
    config, params = checkpoint.load(folder / "theirs", scan_layers=scan)
    assert (config.architecture, config.head_dim) == (f"{kind}ForCausalLM", sizes[2])
    tokens, positions = ids.numpy().astype(np.int32), where.numpy().astype(np.int32)
    got = np.asarray(run(params, config, tokens, positions)[0])
    if config.rope_scaling is not None:  # which changes what is compared
        plain, _ = run(params, config.replace(rope_scaling=None), tokens, positions)
        assert np.abs(got - np.asarray(plain)).max() > 0.1

    cache, start, cached = empty_cache(config, 2, LENGTH + 3), 0, 0.0
    for size in (11, 1, 11, 1):  # each length is a program more to compile
        part, lengths = slice(start, start + size), np.full(2, start, np.int32)
        step, kv = run(params, config, tokens[:, part], positions[:, part], cache, lengths)
        cached = max(cached, float(np.abs(np.asarray(step) - want[:, part]).max()))
        cache = write(cache, kv, np.arange(2), lengths, np.full(2, size))
        start += size
    assert start == LENGTH

    checkpoint.save(folder / "ours", config, jax.tree.map(np.asarray, params))
    assert checkpoint.load(folder / "ours", scan_layers=scan)[0] == config
    back, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report.values())
    assert type(back) is type(model)
    read_back = np.abs(theirs(back.eval()) - want).max()
    return Parity(float(np.abs(want).max()), float(np.abs(got - want).max()), cached, float(read_back))


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers_and_it_reads_what_we_write(name: str, tmp_path) -> None:
    found = parity(name, tmp_path)
    assert found.largest > 1
    assert found.full < 1e-4
    assert found.cached < 1e-4
    assert found.read_back < 1e-5
