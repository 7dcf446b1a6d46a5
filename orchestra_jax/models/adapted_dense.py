"""A matrix with a bias, or with adapters in the forward pass."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class AdaptedDense(nn.Dense):
    """Multiplication by a matrix, and what some have beside it.

    A bias has the value of `nn.Dense`, and a gradient that is summed over tokens in fp32: a sum in bf16 grows no more
    at 256 times its terms. Beside a merged matrix (`models.lora.attach`) the leaves lora_a and lora_b get the gradient
    of (x @ lora_a) @ lora_b, which adds 0 to the value, and x that of the kernel.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "N in"]) -> Float[Array, "N out"]:
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features), self.param_dtype)
        y = x.astype(self.dtype) @ kernel.astype(self.dtype)
        if self.use_bias:
            bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype)
            # Rounded after it is spread over the tokens, so that their gradients are not.
            y += jnp.broadcast_to(bias.astype(jnp.float32), y.shape).astype(y.dtype)
        if self.has_variable("params", "lora_a"):
            lora_a, lora_b = (self.get_variable("params", name).astype(y.dtype) for name in ("lora_a", "lora_b"))
            change = (jax.lax.stop_gradient(x).astype(y.dtype) @ lora_a) @ lora_b
            y += change - jax.lax.stop_gradient(change)
        return y
