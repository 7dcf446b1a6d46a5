"""What a loss reports of ratios, clips, KL and mismatch, against NumPy."""

import jax
import numpy as np
import pytest

from orchestra_jax.rl.losses import LossConfig, masked_percentiles

from .test_losses import batch, call, correction


@pytest.mark.parametrize("share", [0.0, 0.01, 0.4, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (40, 50)])
def test_percentiles_are_numpys(share, shape):
    rng = np.random.default_rng(3)
    mask, percents = rng.random(shape) < share, (0, 1, 37.5, 50, 99, 100)
    values = np.where(mask, rng.lognormal(size=shape), rng.choice([np.nan, np.inf, -np.inf])).astype(np.float32)
    found = jax.jit(masked_percentiles, static_argnums=2)(values, mask, percents)
    expected = np.percentile(values[mask], percents) if mask.any() else np.zeros(len(percents))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("loss", ["grpo", "sequence"])
def test_ratio_percentiles_are_those_of_the_tokens_ratios(loss):
    data = batch(seed=4, B=6, T=12)
    _, metrics = call(data, LossConfig(loss=loss))
    gaps = np.where(data["mask"], np.where(data["mask"], data["logprobs"], 0.0) - data["old_logprobs"], 0.0)
    if loss == "sequence":
        gaps = np.broadcast_to(gaps.sum(-1, keepdims=True), gaps.shape)
    expected = np.percentile(np.exp(gaps[data["mask"]]), (1, 50, 99))
    found = [metrics[f"ratio_{name}"] for name in ("p01", "p50", "p99")]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert found[0] < found[1] < found[2] <= metrics["ratio_max"]


@pytest.mark.parametrize("importance", ["none", "tis"])
def test_metrics_are_numpys_over_the_masked_tokens(importance):
    data, low, high = batch(seed=5, B=6, T=12, scale=0.5), 0.2, 0.28
    data["advantages"][4] = 0.0  # a clip stops no gradient there
    bounds = {} if importance == "none" else {"mask_geometric_high": 1.1, "mask_product_low": 0.5, "mask_veto": 0.3}
    cfg = LossConfig(dual_clip=1.1, clip_low=low, clip_high=high, importance=importance, **bounds)
    _, metrics = call(data, cfg, **correction(data))
    mask = data["mask"]
    new, old, rollout, ref = (
        data[f"{name}logprobs"][mask].astype(np.float64) for name in ("", "old_", "rollout_", "ref_")
    )
    A, row = np.broadcast_to(data["advantages"][:, None], mask.shape)[mask], np.nonzero(mask)[0]
    ratio, gap = np.exp(new - old), old - rollout
    totals, lengths = np.bincount(row, gap, 6)[mask.any(1)], mask.sum(1)[mask.any(1)]
    lowest = np.array([gap[row == b].min() for b in np.unique(row)])
    out = {"geometric": totals / lengths > np.log(1.1), "product": totals < np.log(0.5), "veto": lowest < np.log(0.3)}
    masked = out["geometric"] | out["product"] | out["veto"]
    w = np.exp(gap) if importance == "none" else np.minimum(np.exp(gap), 2.0) * ~np.repeat(masked, lengths)
    wanted = {
        "ratio_mean": ratio.mean(),
        "ratio_max": ratio.max(),
        "clip_fraction_low": np.mean((ratio < 1 - low) & (A < 0)),
        "clip_fraction_high": np.mean((ratio > 1 + high) & (A > 0)),
        "clip_fraction_dual": np.mean((ratio > 1.1) & (A < 0)),
        "approx_kl": np.mean(ratio - 1 - np.log(ratio)),
        "kl_ref": np.mean(np.exp(ref - new) - 1 - (ref - new)),
        "mismatch_mean": np.abs(gap).mean(),
        "mismatch_max": np.abs(gap).max(),
        "importance_ess": w.sum() ** 2 / (len(w) * (w**2).sum()),
    }
    if importance == "tis":
        wanted |= {f"sequence_masked_{name}": some.mean() for name, some in out.items()}
        wanted["sequence_masked"] = masked.mean()
        assert all(0 < some.mean() < masked.mean() < 1 for some in out.values())
    assert {name: metrics[name] for name in wanted} == pytest.approx(wanted, rel=1e-4)


def test_percentiles_change_no_gradient():
    data = batch(seed=5)

    def loss(logprobs):
        value, metrics = call(data | {"logprobs": logprobs}, LossConfig())
        return value + metrics["ratio_p99"]

    plain = jax.grad(lambda logprobs: call(data | {"logprobs": logprobs}, LossConfig())[0])
    np.testing.assert_array_equal(jax.grad(loss)(data["logprobs"]), plain(data["logprobs"]))
