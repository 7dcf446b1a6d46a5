import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.rl.losses import LOSSES as REGISTRY
from orchestra_jax.rl.losses import LossConfig, aggregation_of, kl_estimate, policy_loss

LOSSES = list(REGISTRY.names())
AGGREGATIONS = ["token", "sequence", "constant"]


# Outside jit, JAX compiles every operation for each shape: small cases are padded to that of `batch`.
SHAPE = 4, 6


def padded(values):
    """An array [B, T] or [B] of fp32 or bool in a corner of one of SHAPE; the rest is 0 or False, and so masked."""
    values = np.asarray(values)
    values = values if values.dtype == bool else values.astype(np.float32)
    return np.pad(values, [(0, most - size) for most, size in zip(SHAPE, values.shape, strict=False)])


def batch(seed=0, B=SHAPE[0], T=SHAPE[1], scale=0.3, garbage=math.nan):
    """Random log-probs with garbage where masked; row 2 has no token."""
    rng = np.random.default_rng(seed)
    mask = rng.random((B, T)) < 0.7
    mask[2], mask[0, 0] = False, True
    old = -rng.random((B, T)) - 0.1
    arrays = {
        "logprobs": old + scale * rng.standard_normal((B, T)),
        "old_logprobs": old,
        "rollout_logprobs": old + scale * rng.standard_normal((B, T)),
        "ref_logprobs": old + scale * rng.standard_normal((B, T)),
    }
    arrays = {name: np.where(mask, values, garbage).astype(np.float32) for name, values in arrays.items()}
    return arrays | {"advantages": rng.standard_normal(B).astype(np.float32), "mask": mask}


def call(data, cfg, **options):
    return policy_loss(data["logprobs"], data["old_logprobs"], data["advantages"], data["mask"], cfg, **options)


def correction(data):
    return {"rollout_logprobs": data["rollout_logprobs"], "ref_logprobs": data["ref_logprobs"]}


def one(new, old, advantage, cfg, **options):
    """Loss and gradient of a single token."""

    options = {name: padded(values) for name, values in options.items()}

    def loss(value):
        return policy_loss(value, padded([[old]]), padded([advantage]), padded([[True]]), cfg, **options)

    (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(padded([[new]]))
    return float(value), float(gradient[0, 0]), metrics


def brute_force(data, cfg, denominator=None):
    """The loss with plain loops, in float64; also its policy part."""
    new, old, mask = (np.asarray(data[name], np.float64) for name in ("logprobs", "old_logprobs", "mask"))
    rollout, ref = (np.asarray(data[name], np.float64) for name in ("rollout_logprobs", "ref_logprobs"))
    B, T = new.shape
    rows = []
    for b in range(B):
        tokens = [t for t in range(T) if mask[b, t]]
        A = float(data["advantages"][b])
        row = []
        for t in tokens:
            gaps = [new[b, s] - old[b, s] for s in tokens]
            log_ratio = {"gspo": sum(gaps) / len(gaps), "sequence": sum(gaps)}.get(cfg.loss, new[b, t] - old[b, t])
            ratio = math.exp(log_ratio)
            clipped = min(max(ratio, 1 - cfg.clip_low), 1 + cfg.clip_high)
            if cfg.loss == "cispo":
                value = -clipped * A * new[b, t]
            else:
                value = -min(ratio * A, clipped * A)
                if cfg.dual_clip is not None and A < 0:
                    value = min(value, -A * cfg.dual_clip)
            w = math.exp(old[b, t] - rollout[b, t])
            if cfg.importance == "tis":
                value *= min(w, cfg.importance_cap)
            elif cfg.importance == "icepop":
                floor = 1 / cfg.importance_cap if cfg.importance_floor is None else cfg.importance_floor
                value *= w if floor <= w <= cfg.importance_cap else 0
            d = ref[b, t] - new[b, t]
            kl = {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - d - 1}[cfg.kl]
            # Beside the ratio of a whole trajectory, the KL of the whole: its mean over the tokens is their sum.
            value += cfg.kl_coef * kl * (len(tokens) if cfg.loss == "sequence" else 1)
            row.append(value)
        rows.append(row)
    rows = [row for row in rows if row]
    if cfg.aggregation == "sequence":
        return sum(sum(row) / len(row) for row in rows) / (denominator or len(rows))
    total = sum(sum(row) for row in rows)
    if cfg.aggregation == "constant":
        return total / (denominator or cfg.constant or B * T)
    return total / (denominator or sum(len(row) for row in rows))


@pytest.mark.parametrize(("loss", "aggregation"), list(itertools.product(LOSSES, AGGREGATIONS)))
def test_matches_plain_loops(loss, aggregation):
    data = batch()
    for options in (
        {},
        {"kl_coef": 0.3, "kl": "k1", "importance": "tis", "importance_cap": 1.2},
        {"kl_coef": 0.3, "kl": "k2", "importance": "icepop", "importance_cap": 1.3, "dual_clip": 1.1},
        {"kl_coef": 0.3, "kl": "k3", "importance": "icepop", "importance_floor": 0.9, "constant": 7.0},
    ):
        cfg = LossConfig(loss=loss, aggregation=aggregation, clip_low=0.1, clip_high=0.15, **options)
        value, metrics = call(data, cfg, **correction(data))
        np.testing.assert_allclose(value, brute_force(data, cfg), rtol=2e-5, atol=1e-6)
        assert all(np.isfinite(metric) and metric.shape == () for metric in metrics.values())


@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_matches_finite_differences(loss):
    data = batch(seed=3)
    cfg = LossConfig(
        loss=loss, aggregation="sequence", kl_coef=0.5, kl="k3", importance="tis", clip_low=0.1, clip_high=0.1
    )

    def value(logprobs):
        return call(data | {"logprobs": logprobs}, cfg, **correction(data))[0]

    gradient = np.asarray(jax.grad(value)(jnp.asarray(data["logprobs"])))
    assert (gradient[~data["mask"]] == 0).all()
    assert np.isfinite(gradient).all()
    for b, t in zip(*np.nonzero(data["mask"]), strict=True):
        moved = [data["logprobs"].astype(np.float64) for _ in range(2)]
        moved[0][b, t] += 1e-6
        moved[1][b, t] -= 1e-6
        if loss == "cispo":  # its weight is a constant: differentiate with the ratio frozen
            ratio = np.clip(np.exp(data["logprobs"][b, t] - data["old_logprobs"][b, t]), 0.9, 1.1)
            w = min(np.exp(data["old_logprobs"][b, t] - data["rollout_logprobs"][b, t]), 2.0)
            share = data["mask"][b].sum() * (data["mask"].any(axis=1)).sum()
            kl = 0.5 * (1 - np.exp(data["ref_logprobs"][b, t] - data["logprobs"][b, t]))
            expected = (-ratio * data["advantages"][b] * w + kl) / share
        else:
            high, low = (brute_force(data | {"logprobs": m}, cfg) for m in moved)
            expected = (high - low) / 2e-6
        np.testing.assert_allclose(gradient[b, t], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "gspo", "sequence"])
def test_on_policy_closed_form(loss):
    data = batch()
    data["old_logprobs"] = data["logprobs"]
    lengths = data["mask"].sum(axis=1)
    A = data["advantages"]
    token = -(A * lengths).sum() / lengths.sum()
    np.testing.assert_allclose(call(data, LossConfig(loss=loss, aggregation="token"))[0], token, rtol=1e-5)
    sequence = -A[lengths > 0].mean()
    value, metrics = call(data, LossConfig(loss=loss, aggregation="sequence"))
    np.testing.assert_allclose(value, sequence, rtol=1e-5)
    assert float(metrics["ratio_mean"]) == 1.0
    assert float(metrics["approx_kl"]) == 0.0
    assert float(metrics["clip_fraction_low"]) == float(metrics["clip_fraction_high"]) == 0.0


@pytest.mark.parametrize("loss", ["grpo", "gspo", "cispo", "sequence"])
def test_on_policy_gradient_is_the_policy_gradient(loss):
    data = batch(garbage=0.0)
    cfg = LossConfig(loss=loss, aggregation="constant", constant=1.0)
    gradient = jax.grad(lambda x: call(data | {"logprobs": x, "old_logprobs": x}, cfg)[0])(data["logprobs"])
    A, lengths = data["advantages"][:, None], data["mask"].sum(axis=1, keepdims=True)
    # The sequence ratio's gradient reaches each of the row's L identical token losses: L times, 1 for gspo's mean.
    expected = -A * data["mask"] * (lengths if loss == "sequence" else 1)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_nothing_but_the_log_probs_has_a_gradient():
    data, cfg = batch(garbage=0.0), LossConfig("sequence", kl_coef=0.3, kl="k2", importance="tis")
    given = {name: jnp.asarray(values) for name, values in data.items() if name not in ("mask", "logprobs")}
    given |= {"share": jnp.full(4, 0.5), "other_log_ratios": jnp.full(4, 0.1)}

    def loss(given):
        return policy_loss(data["logprobs"], mask=data["mask"], cfg=cfg, **given)[0]

    for name, gradient in jax.jit(jax.grad(loss))(given).items():
        np.testing.assert_array_equal(gradient, np.zeros_like(gradient), err_msg=name)


def test_sequence_ratios_by_hand():
    # Log-ratios .1 and .3: trajectory ratio exp(.4) = 1.491825, length-normalised exp(.2) = 1.221403.
    args = padded([[-0.9, -0.7]]), padded([[-1.0, -1.0]]), padded([2.0]), padded([[True, True]])
    wide = {"clip_high": 9.0}
    for loss, ratio in (("sequence", 1.4918247), ("gspo", 1.2214028)):
        value, metrics = policy_loss(*args, LossConfig(loss=loss, **wide))
        np.testing.assert_allclose([value, metrics["ratio_max"]], [-2 * ratio, ratio], rtol=1e-6)
    value, _ = policy_loss(*args, LossConfig(loss="sequence"))
    np.testing.assert_allclose(value, -2 * 1.28, rtol=1e-6)


def test_clipping_direction():
    cfg = LossConfig(clip_low=0.2, clip_high=0.28)
    up, down = math.log(1.5), math.log(0.5)
    value, gradient, metrics = one(up, 0.0, 1.0, cfg)  # a good token that is already likelier: stop
    assert (value, gradient) == (pytest.approx(-1.28), 0.0)
    assert (metrics["clip_fraction_high"], metrics["clip_fraction_low"]) == (1.0, 0.0)
    value, gradient, metrics = one(up, 0.0, -1.0, cfg)  # a bad token that got likelier: push back
    assert (value, gradient) == (pytest.approx(1.5), pytest.approx(1.5))
    assert metrics["clip_fraction_high"] == 0.0
    value, gradient, metrics = one(down, 0.0, -1.0, cfg)  # a bad token that is already unlikely: stop
    assert (value, gradient) == (pytest.approx(0.8), 0.0)
    assert (metrics["clip_fraction_high"], metrics["clip_fraction_low"]) == (0.0, 1.0)
    value, gradient, _ = one(down, 0.0, 1.0, cfg)  # a good token that got unlikely: pull back
    assert (value, gradient) == (pytest.approx(-0.5), pytest.approx(-0.5))
    value, gradient, _ = one(25.0, 0.0, -1.0, cfg)  # no ratio is above exp(20)
    assert (value, gradient) == (pytest.approx(math.exp(20), rel=1e-5), 0.0)
    value, gradient, _ = one(-25.0, 0.0, 1.0, cfg)  # and none below exp(-20)
    assert (value * math.exp(20), gradient) == (pytest.approx(-1.0, rel=1e-5), 0.0)


def test_dual_clip_bounds_bad_tokens_only():
    cfg = LossConfig(dual_clip=3.0)
    value, gradient, metrics = one(math.log(8.0), 0.0, -2.0, cfg)
    assert (value, gradient, float(metrics["clip_fraction_dual"])) == (pytest.approx(6.0), 0.0, 1.0)
    value, gradient, metrics = one(math.log(2.0), 0.0, -2.0, cfg)
    assert (value, gradient, float(metrics["clip_fraction_dual"])) == (pytest.approx(4.0), pytest.approx(4.0), 0.0)


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    value, gradient, metrics = one(math.log(0.9), math.log(0.3), 2.0, LossConfig(loss="cispo"))  # ratio 3 -> 1.28
    assert gradient == pytest.approx(-1.28 * 2.0)
    assert value == pytest.approx(-1.28 * 2.0 * math.log(0.9))
    assert (metrics["clip_fraction_low"], metrics["clip_fraction_high"]) == (0.0, 1.0)
    for advantage in (-2.0, 2.0):  # a clip holds the weight at any advantage: ratio 1/3 -> 0.8
        _, gradient, metrics = one(math.log(0.3), math.log(0.9), advantage, LossConfig(loss="cispo"))
        assert gradient == pytest.approx(-0.8 * advantage)
        assert (metrics["clip_fraction_low"], metrics["clip_fraction_high"]) == (1.0, 0.0)


def test_kl_estimators_by_hand():
    new, ref = jnp.array([[-1.0]]), jnp.array([[-1.5]])  # d = -.5
    values = [float(kl_estimate(new, ref, kl)[0, 0]) for kl in ("k1", "k2", "k3")]
    np.testing.assert_allclose(values, [0.5, 0.125, math.exp(-0.5) - 0.5], rtol=1e-6)
    assert kl_estimate(new - 25, ref, "k3")[0, 0] == pytest.approx(math.exp(20) - 21, rel=1e-5)  # d = 24.5, held at 20
    assert kl_estimate(new + 25, ref, "k3")[0, 0] == pytest.approx(math.exp(-20) + 19, rel=1e-5)  # d = -25.5
    value, gradient, metrics = one(-1.0, -1.0, 0.0, LossConfig(kl_coef=0.1, kl="k2"), ref_logprobs=ref)
    assert (value, gradient) == (pytest.approx(0.0125), pytest.approx(0.05))
    assert metrics["kl_ref"] == pytest.approx(math.exp(-0.5) - 0.5)
    assert metrics["kl_loss"] == pytest.approx(0.125)


def test_importance_by_hand():
    # w = exp(old - rollout) = 4, 1, .25 on three tokens; A = 1, on-policy, so each token's loss is -w corrected.
    old = np.full((1, 3), -1.0)
    args = padded(old), padded(old), padded([1.0]), padded([[True] * 3])
    rollout = padded(old - np.log([[4.0, 1.0, 0.25]]))
    value, metrics = policy_loss(*args, LossConfig(importance="tis"), rollout_logprobs=rollout)
    np.testing.assert_allclose(value, -(2 + 1 + 0.25) / 3, rtol=1e-6)
    np.testing.assert_allclose(metrics["importance_ess"], 3.25**2 / (3 * 5.0625), rtol=1e-6)
    np.testing.assert_allclose(metrics["mismatch_mean"], 2 * math.log(4) / 3, rtol=1e-6)
    np.testing.assert_allclose(metrics["mismatch_max"], math.log(4), rtol=1e-6)
    value, metrics = policy_loss(*args, LossConfig(importance="icepop"), rollout_logprobs=rollout)
    np.testing.assert_allclose([value, metrics["icepop_fraction"]], [-1 / 3, 2 / 3], rtol=1e-6)
    wide = LossConfig(importance="icepop", importance_floor=0.2, importance_cap=5.0)
    np.testing.assert_allclose(policy_loss(*args, wide, rollout_logprobs=rollout)[0], -5.25 / 3, rtol=1e-6)
    value, metrics = policy_loss(*args, LossConfig(), rollout_logprobs=rollout)  # measured, not corrected
    np.testing.assert_allclose(value, -1.0)
    np.testing.assert_allclose(metrics["importance_ess"], 5.25**2 / (3 * (16 + 1 + 1 / 16)), rtol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_no_nan_with_empty_masks_and_extreme_ratios(loss):
    data = batch()
    data["mask"] = np.zeros_like(data["mask"])
    cfg = LossConfig(loss=loss, kl_coef=0.1, importance="icepop", dual_clip=10.0)

    def value(logprobs, data=data):
        return call(data | {"logprobs": logprobs}, cfg, **correction(data))

    (loss_value, metrics), gradient = jax.value_and_grad(value, has_aux=True)(jnp.asarray(data["logprobs"]))
    assert float(loss_value) == 0.0
    assert (np.asarray(gradient) == 0).all()
    assert all(np.isfinite(metric) for metric in metrics.values())
    far = batch(garbage=-np.inf)
    far["logprobs"] = np.where(far["mask"], 500.0 * np.sign(far["logprobs"] + 0.6), np.nan).astype(np.float32)
    loss_value, gradient = jax.value_and_grad(lambda x: value(x, far)[0])(jnp.asarray(far["logprobs"]))
    assert np.isfinite(loss_value)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_the_kl_weighs_the_same_beside_the_policy_term_at_40_and_at_4000_tokens(loss):
    """The gradient of each term alone, with the log-ratios of every token alike in short and long trajectories."""

    def weight(length):
        shape, cfg = (2, length), LossConfig(loss=loss, kl_coef=0.1, clip_low=0.9, clip_high=9.0)
        old, ref = jnp.full(shape, -1.0), jnp.full(shape, -1.2)
        arguments = old, jnp.array([1.0, -0.5]), jnp.ones(shape, bool), cfg
        gradient = jax.jit(
            jax.grad(lambda new, scale: policy_loss(new, *arguments, ref_logprobs=ref, kl_scale=scale)[0])
        )
        both, policy = np.asarray(gradient(old, 1.0)), np.asarray(gradient(old, 0.0))
        return np.linalg.norm(both - policy) / np.linalg.norm(policy)

    short = weight(40)
    assert weight(4000) == pytest.approx(short, rel=1e-3)
    assert short == pytest.approx(0.1 * 0.2 / np.sqrt((1 + 0.25) / 2), rel=1e-3)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("loss", ["grpo", "gspo", "cispo"])
def test_micro_batches_add_up(loss, aggregation):
    data = batch()
    cfg = LossConfig(loss=loss, aggregation=aggregation, constant=11.0, kl_coef=0.2)
    mask = data["mask"]
    denominator = {"token": mask.sum(), "sequence": mask.any(axis=1).sum(), "constant": 11.0}[aggregation]

    def value(logprobs, part, **options):
        return call(part | {"logprobs": logprobs}, cfg, ref_logprobs=part["ref_logprobs"], **options)[0]

    expected = jax.grad(value)(jnp.asarray(data["logprobs"]), data)
    both = jax.jit(jax.value_and_grad(value))  # compiled once for both parts
    total, gradients = 0.0, []
    for start in (0, 2):
        part = {name: values[start : start + 2] for name, values in data.items()}
        piece, gradient = both(jnp.asarray(part["logprobs"]), part, denominator=denominator)
        total += float(piece)
        gradients.append(gradient)
    np.testing.assert_allclose(total, call(data, cfg, ref_logprobs=data["ref_logprobs"])[0], rtol=1e-5)
    np.testing.assert_allclose(jnp.concatenate(gradients), expected, rtol=1e-5, atol=1e-7)


def test_advantages_per_token_and_bfloat16_inputs():
    data = batch()
    tokens = np.broadcast_to(data["advantages"][:, None], data["mask"].shape)
    cfg = LossConfig()
    np.testing.assert_array_equal(call(data, cfg)[0], call(data | {"advantages": tokens}, cfg)[0])
    half = {name: values if name == "mask" else jnp.asarray(values, jnp.bfloat16) for name, values in data.items()}
    assert call(half, cfg)[0].dtype == jnp.float32


def test_config_is_a_static_argument():
    data = batch()
    jitted = jax.jit(policy_loss, static_argnames="cfg")
    for loss in LOSSES:
        value, metrics = jitted(
            data["logprobs"], data["old_logprobs"], data["advantages"], data["mask"], cfg=LossConfig(loss=loss)
        )
        np.testing.assert_allclose(value, call(data, LossConfig(loss=loss))[0], rtol=1e-6)
        assert int(metrics["tokens"]) == data["mask"].sum()
        assert int(metrics["sequences"]) == 3


def test_aggregation_default_follows_the_loss():
    resolved = {loss: aggregation_of(LossConfig(loss=loss)) for loss in LOSSES}
    assert resolved == {
        "grpo": "token", "dr_grpo": "constant", "dapo": "token",
        "gspo": "sequence", "cispo": "token", "sequence": "sequence",
    }  # fmt: skip
    assert aggregation_of(LossConfig(loss="dr_grpo", aggregation="token")) == "token"
    assert one(-1.0, -1.0, 3.0, LossConfig("dr_grpo", constant=0.5))[0] == pytest.approx(-6.0)  # a divisor below 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"kl": "k4"}, "k1, k2, k3"),
        ({"aggregation": "mean"}, "token, sequence, constant"),
        ({"importance": "clip"}, "none, tis, icepop"),
        ({"clip_low": -0.1}, "clip_low"),
        ({"clip_high": -1.0}, "clip_high"),
        ({"dual_clip": 0.5}, "dual_clip"),
        ({"constant": 0.0}, "constant"),
        ({"importance_cap": 0.0}, "importance_cap"),
        ({"importance": "icepop", "importance_cap": 0.5}, "importance_cap"),
        ({"importance": "icepop", "importance_floor": 3.0}, "importance range"),
        ({"importance_level": "turn"}, "token, sequence, geometric"),
        ({"mask_product_low": 2.0, "mask_product_high": 0.5}, "mask_product_low=2.0 is above mask_product_high=0.5"),
        ({"mask_veto": -1.0}, "mask_veto"),
    ],
)
def test_bad_configs(bad, message):
    with pytest.raises(ValueError, match=message):
        LossConfig(**bad)


def test_an_unknown_loss_is_one_sentence_with_its_neighbour():
    with pytest.raises(
        ConfigError, match=r"algorithm.loss.loss=grop is no known loss: did you mean .*grpo.* use one of"
    ):
        call(batch(), LossConfig("grop"))


def test_missing_logprobs():
    data = batch()
    with pytest.raises(ValueError, match="rollout_logprobs"):
        call(data, LossConfig(importance="tis"))
    with pytest.raises(ValueError, match="mask of sequences needs rollout_logprobs"):
        call(data, LossConfig(mask_veto=1e-4))
    with pytest.raises(ValueError, match="ref_logprobs"):
        call(data, LossConfig(kl_coef=0.1))
