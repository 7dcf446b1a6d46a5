"""A matrix with adapters in the forward pass."""

import flax.linen as nn
import jax
from jaxtyping import Array, Float


class AdaptedDense(nn.Dense):
    """Multiplication by a merged matrix beside the leaves lora_a and lora_b (`models.lora.attach`).

    The two leaves then get the gradient of (x @ lora_a) @ lora_b, which adds 0 to the value, and x that of the kernel.
    """

    def __call__(self, x: Float[Array, "N in"]) -> Float[Array, "N out"]:
        y = super().__call__(x)
        lora_a, lora_b = (self.get_variable("params", name).astype(y.dtype) for name in ("lora_a", "lora_b"))
        change = (jax.lax.stop_gradient(x).astype(y.dtype) @ lora_a) @ lora_b
        return y + (change - jax.lax.stop_gradient(change))
