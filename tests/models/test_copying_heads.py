import functools

import jax
import numpy as np
import pytest

from orchestra_jax.models import decoder
from orchestra_jax.models.copying_heads import with_copying_heads
from orchestra_jax.models.llama import LlamaConfig
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.models.qwen3_moe import Qwen3MoeConfig

TOKENS = np.random.default_rng(0).permutation(200)[:60]
CONFIGS = [
    Qwen3Config.preset("tiny", vocab_size=200),
    Qwen3Config.preset("small", vocab_size=200, scan_layers=True),
    # The released heads. Only the first layer's attention is looked at, so nothing else need be large.
    Qwen3Config.preset("qwen3-0.6b", vocab_size=200, num_layers=1, intermediate_size=64),
    LlamaConfig.preset("tiny", vocab_size=200),
    Qwen3MoeConfig.preset("tiny", vocab_size=200),
]


heads_added = jax.jit(with_copying_heads, static_argnums=1)


@functools.cache
def fresh(config, heads=True):
    if not heads:
        return decoder.init_params(config, jax.random.key(0))
    return heads_added(fresh(config, heads=False), config, jax.random.key(1))


@functools.partial(jax.jit, static_argnums=1)
def logits_of(params, config):
    hidden, _ = decoder.forward(params, config, TOKENS[None], np.arange(60)[None])
    return decoder.logits(params, config, hidden)[0]


def first_attention(config, params, head):
    """Return where a head of the first layer looks, [query, key], in float64 by NumPy alone."""
    layer = jax.tree.map(lambda leaf: leaf[0], params["layers"]) if config.scan_layers else params["layers_0"]
    x = np.asarray(params["embed"], np.float64)[TOKENS]
    x /= np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps)
    turn = np.outer(np.arange(len(x)), config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim))

    def rotated(name, index):
        columns = slice(index * config.head_dim, (index + 1) * config.head_dim)
        y = x @ np.asarray(layer[name]["kernel"])[:, columns].astype(np.float64)
        if f"{name}_norm" in layer:
            y /= np.sqrt((y**2).mean(-1, keepdims=True))
        turned = (y[:, : config.head_dim // 2] + 1j * y[:, config.head_dim // 2 :]) * np.exp(1j * turn)
        return np.concatenate([turned.real, turned.imag], -1)

    key = rotated("k", head // (config.num_heads // config.num_kv_heads))
    logits = np.where(np.tri(len(x)) > 0, rotated("q", head) @ key.T / config.head_dim**0.5, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.model_type}-{config.hidden_size}")
def test_the_first_heads_look_one_and_two_tokens_back(config):
    params = fresh(config)
    for head in range(2):
        looks = first_attention(config, params, head)
        by_distance = [np.diag(looks, -back)[5:].mean() for back in range(50)]
        assert np.argmax(by_distance) == head + 1
        assert by_distance[head + 1] > max(0.3, 1.5 * np.sort(by_distance)[-2])
    others = range(2, config.num_heads)
    assert max(np.diag(first_attention(config, params, head), -1).mean() for head in others) < 0.1
    plain = fresh(config, heads=False)
    assert np.diag(first_attention(config, plain, 0), -1).mean() < 0.1


@pytest.mark.parametrize("config", CONFIGS[:2], ids=lambda config: str(config.hidden_size))
def test_a_fresh_policy_favours_the_tokens_that_its_heads_look_at(config):
    def favour(params):
        """Return by how many deviations the two tokens before lie above the mean logit."""
        logits = np.asarray(logits_of(params, config))
        seen = [logits[i, TOKENS[i - back]] for i in range(5, 60) for back in (1, 2)]
        return (np.mean(seen) - logits[5:].mean()) / logits.std()

    assert favour(fresh(config)) > favour(fresh(config, heads=False)) + 0.1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_copying_is_added(dtype):
    config = CONFIGS[0].replace(param_dtype=dtype)
    before, after = (jax.tree_util.tree_leaves_with_path(fresh(config, heads)) for heads in (False, True))
    changed = set()
    for (path, old), (same_path, new) in zip(before, after, strict=True):
        assert (path, old.shape, dtype) == (same_path, new.shape, new.dtype)
        if (np.asarray(old) != np.asarray(new)).any():
            changed.add(jax.tree_util.keystr(path, simple=True, separator="/"))
    assert changed == {"embed", "layers_0/q/kernel", "layers_0/k/kernel"} | {f"layers_{i}/o/kernel" for i in range(3)}
