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


def test_logits_are_as_near_to_float64_as_those_of_transformers(smollm2_dir: Path) -> None:
    """In fp32 two programs differ by the rounding of each, so both are held against float64."""
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
        theirs = model(torch.tensor([ids])).logits.numpy()
        exact = model.double()(torch.tensor([ids])).logits.numpy()
    our_error, their_error = np.abs(ours - exact).max(), np.abs(theirs - exact).max()
    print(f"largest logit {np.abs(exact).max():.1f}: ours {our_error:.2e}, transformers {their_error:.2e} off float64")
    assert our_error < 1e-5 * np.abs(exact).max()
    assert our_error < 1.5 * their_error
    np.testing.assert_array_equal(ours.argmax(-1), exact.argmax(-1))
