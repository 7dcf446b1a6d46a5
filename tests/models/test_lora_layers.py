"""Adapters of the last layers alone: what is below is the base's, in the forward pass, the file and the gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.models.lora import LoRA, attach, load_peft, merge, save_peft
from tests.models.test_lora import CONFIG, LAST, base_of, loss, run, trained
from tests.models.trees import assert_same

EVERY = LoRA(4, 6.0, ("q", "v", "down"))


def test_the_last_layer_alone_is_adapted(tmp_path) -> None:
    base, adapters = base_of(CONFIG), trained(CONFIG, LAST)
    assert list(adapters) == ["layers_1"]
    merged = merge(base, adapters, LAST)
    assert_same(merged["layers_0"], base["layers_0"])
    # The same as adapters of every layer, of which the first's change nothing.
    everywhere = trained(CONFIG, EVERY) | {"layers_1": adapters["layers_1"]}
    nothing = jax.tree.map(jnp.zeros_like, everywhere["layers_0"])
    assert_same(merge(base, {**everywhere, "layers_0": nothing}, EVERY), merged)
    np.testing.assert_allclose(run(attach(base, adapters, LAST), CONFIG), run(merged, CONFIG), atol=2e-5)

    save_peft(tmp_path / "adapter", CONFIG, adapters, LAST, "base")
    found, back = load_peft(tmp_path / "adapter", CONFIG)
    assert found == LAST
    assert_same(back, adapters)


def test_the_backward_pass_ends_at_the_first_adapted_layer() -> None:
    """Counted in the compiled gradient: products of the last of two layers cost less than those of both."""
    base = base_of(CONFIG)

    def work(lora: LoRA) -> float:
        gradient = jax.jit(jax.grad(lambda adapters: loss(attach(base, adapters, lora), CONFIG)))
        return gradient.lower(trained(CONFIG, lora)).compile().cost_analysis()["flops"]

    def forward_work() -> float:
        return jax.jit(lambda params: loss(params, CONFIG)).lower(base).compile().cost_analysis()["flops"]

    whole, last, without = work(EVERY), work(LAST), forward_work()
    assert without < last < without + 0.75 * (whole - without)


def test_layers_that_cannot_be_adapted_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.lora\.layers=3, but the policy has 2 layers\."):
        trained(CONFIG, LoRA(4, 6.0, layers=3))
    with pytest.raises(ValueError, match=r"some layers of a stack: set model\.scan_layers=false"):
        trained(CONFIG.replace(scan_layers=True), LAST)
