"""A matrix with a bias, or with adapters in the forward pass."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class AdaptedDense(nn.Dense):
    """Multiplies by a matrix that may have a bias or adapters.

    The gradient of a bias is summed over tokens in fp32, since a bf16 sum stops growing at 256 times its terms.
    Adapters are merged into the kernel already (`models.lora.attach`), so (x @ lora_a) @ lora_b adds 0 to the value.
    It only gives lora_a and lora_b their gradient; the gradient of x is the kernel's.
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
