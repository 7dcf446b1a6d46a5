"""A pretrained policy's own weights against transformers on real text; needs torch and `make smollm2`."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.models import checkpoint, saved_tokenizer
from orchestra_jax.models.decoder import forward, logits

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

TEXT = (
    "A train leaves Paris at 14:05 and needs 2 hours 47 minutes to Lyon. When does it arrive?\n\n"
    "def arrival(hour, minute):\n    total = 60 * (hour + 2) + minute + 47\n"
    "    return divmod(total, 60)\n\nIt arrives at 16:52, half an hour before the café closes."
)


def test_logits_are_those_of_transformers_in_float64_up_to_rounding(smollm2_dir: Path) -> None:
    """Compare fp32 with transformers in float64.

    The largest of four million rounding errors depends on the processor (0.7 to 1.7 times that of transformers in
    fp32), so their mean square has the narrow bound.
    """
    found = saved_tokenizer.load(smollm2_dir)
    ids = found(TEXT)["input_ids"]
    assert len(ids) > 80
    assert found.decode(ids) == TEXT
    config, params = checkpoint.load(smollm2_dir)
    tokens = jnp.asarray(ids)[None]
    run = jax.jit(lambda p, x: logits(p, config, forward(p, config, x, jnp.arange(x.shape[1])[None])[0]))
    ours = np.asarray(run(params, tokens))
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_dir, attn_implementation="eager").eval()
    with torch.no_grad():
        exact = model.double()(torch.tensor([ids])).logits.numpy()
    largest, errors = np.abs(exact).max(), np.abs(ours - exact)
    mean = np.sqrt(np.square(errors).mean())
    print(f"largest logit {largest:.1f}: error {errors.max():.2e}, mean square's root {mean:.2e}")
    assert errors.max() < 1e-5 * largest
    assert mean < 1e-6 * largest
    np.testing.assert_array_equal(ours.argmax(-1), exact.argmax(-1))
