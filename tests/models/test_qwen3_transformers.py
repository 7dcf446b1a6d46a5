"""Parity with transformers' Qwen3ForCausalLM; needs torch."""

import functools

import jax
import numpy as np
import pytest

from orchestra_jax.models.checkpoint.reading import read_config
from orchestra_jax.models.decoder import empty_cache, forward, logits, write_cache
from tests.models.trees import to_params, to_tensors

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

LENGTH = 24
# heads, kv heads, head_dim, hidden, layers, theta, tied, scan
CASES = [
    (4, 2, 16, 64, 2, 1e4, True, False),
    (4, 1, 24, 48, 3, 1e6, False, False),
    (6, 6, 8, 40, 2, 1e4, True, True),
    (8, 2, 32, 64, 1, 5e5, False, True),
    (3, 1, 20, 56, 1, 1e6, True, False),
    (5, 5, 12, 32, 3, 1e3, False, True),
    (8, 4, 10, 96, 2, 1e6, True, True),
]


@functools.partial(jax.jit, static_argnums=1)
def run(params, config, tokens, positions, past=None, past_lengths=None):
    hidden, kv = forward(params, config, tokens, positions, past=past, past_lengths=past_lengths)
    return logits(params, config, hidden), kv


# What is computed outside of jit compiles a program for each operation and shape; numpy compiles nothing.
write = jax.jit(write_cache)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_in_full_and_cached(case, tmp_path) -> None:
    heads, kv_heads, head_dim, hidden, layers, theta, tied, scan = case
    seed = CASES.index(case)
    torch.manual_seed(seed)
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=97 + seed,
            hidden_size=hidden,
            intermediate_size=2 * hidden + 8,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            rope_parameters={"rope_type": "default", "rope_theta": theta},
            tie_word_embeddings=tied,
            attn_implementation="eager",
        )
    ).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn_like(weight)
            weight.copy_(1 + 0.2 * noise if "norm" in name else 0.1 * noise)
        tokens = torch.randint(0, model.config.vocab_size, (3, LENGTH))
        want = model(tokens).logits.numpy()
    model.config.save_pretrained(tmp_path)
    config = read_config(tmp_path, scan_layers=scan)
    state = {name: weight.numpy() for name, weight in model.state_dict().items()}
    params = to_params(state, config)
    ids = tokens.numpy().astype(np.int32)
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), ids.shape)
    got, _ = run(params, config, ids, positions)
    assert np.abs(want).max() > 1
    assert np.abs(np.asarray(got) - want).max() < 1e-4

    back = to_tensors(params, config)
    assert set(back) == set(state) - ({"lm_head.weight"} if tied else set())
    assert all(np.array_equal(back[name], state[name]) for name in back)

    for chunks in ([1] * LENGTH, [11, 1, 11, 1]):  # each length is a program more to compile
        cache, start = empty_cache(config, 3, LENGTH + 3), 0
        for size in chunks:
            part = slice(start, start + size)
            lengths = np.full(3, start, np.int32)
            step, kv = run(params, config, ids[:, part], positions[:, part], cache, lengths)
            assert np.abs(np.asarray(step) - want[:, part]).max() < 1e-4
            cache = write(cache, kv, np.arange(3), lengths, np.full(3, size))
            start += size
