"""Stretched rotary frequencies, for models that were made for longer texts than they were first trained on.

Three kinds are known, under Hugging Face's names: `linear` divides every frequency by the factor; `llama3` divides slow
frequencies, keeps fast ones and blends between; `yarn` (Peng et al. 2023) does the same over dimensions and sharpens
attention by a factor on cosine and sine.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import jax.numpy as jnp
from jaxtyping import Array, Float

# Keys that each kind needs in config.json besides its factor.
_NEEDS: Mapping[str, tuple[str, ...]] = {"linear": (), "llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ()}


@dataclass(frozen=True)
class RopeScaling:
    """The change of a model's frequencies from theta^(-2i/d).

    Attributes:
        kind: "linear", "llama3" or "yarn".
        factor: factor by which texts may become longer.
        original_length: longest text in tokens before stretching; unused by linear.
        slow, fast: turns of a frequency in a text of `original_length`: llama3 divides frequencies with fewer turns
            than `slow` and keeps those with more than `fast`; so does yarn, up to rounding.
        attention_factor: factor on cosine and sine.
        truncate: whether yarn's ramp starts and ends at whole dimensions.
    """

    kind: str
    factor: float
    original_length: int = 0
    slow: float = 1.0
    fast: float = 4.0
    attention_factor: float = 1.0
    truncate: bool = True

    @classmethod
    def from_hf(cls, rope: Mapping[str, Any], longest: int) -> Self | None:
        """Read `rope_parameters` or `rope_scaling` of a config.json; return None for plain frequencies.

        Args:
            longest: the model's max_position_embeddings, used where no original length is given.

        Raises:
            ValueError: a kind that is not known, or one of its numbers is missing.
        """
        kind = str(rope.get("rope_type", rope.get("type", "default")))
        if rope.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise ValueError("partial_rotary_factor is not supported; this decoder rotates all of a head.")
        if kind == "default":
            return None
        if kind not in _NEEDS:
            raise ValueError(f"RoPE scaling {kind!r} is not supported; give a model with one of {', '.join(_NEEDS)}.")
        length = rope.get("original_max_position_embeddings") or longest
        factor = rope.get("factor")
        if kind == "yarn" and factor is None:
            factor = longest / length
        missing = [key for key in ("factor", *_NEEDS[kind]) if (factor if key == "factor" else rope.get(key)) is None]
        if missing or factor is None:
            raise ValueError(f"RoPE scaling {kind!r} lacks {', '.join(missing)}; add it to the model's config.json.")
        if kind == "linear":
            return cls(kind, float(factor))
        if kind == "llama3":
            slow, fast = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
            return cls(kind, float(factor), int(length), slow, fast)
        slow, fast = float(rope.get("beta_slow") or 1), float(rope.get("beta_fast") or 32)
        sharper = _attention_factor(float(factor), rope)
        return cls(kind, float(factor), int(length), slow, fast, sharper, rope.get("truncate", True))

    def to_hf(self) -> dict[str, Any]:
        """Return the settings that `from_hf` and transformers read, without rope_theta."""
        found: dict[str, Any] = {"rope_type": self.kind, "factor": self.factor}
        if self.kind == "linear":
            return found
        found["original_max_position_embeddings"] = self.original_length
        if self.kind == "llama3":
            return found | {"low_freq_factor": self.slow, "high_freq_factor": self.fast}
        found |= {"beta_slow": self.slow, "beta_fast": self.fast, "attention_factor": self.attention_factor}
        return found if self.truncate else found | {"truncate": False}

    def kept(self, frequencies: Float[Array, " d/2"], theta: float) -> Float[Array, " d/2"]:
        """Return how much of each frequency is kept as it was, from 0 (divided by the factor) to 1."""
        if self.kind == "linear":
            return jnp.zeros_like(frequencies)
        if self.kind == "llama3":
            turns = self.original_length * frequencies / (2 * math.pi)
            return jnp.clip((turns - self.slow) / (self.fast - self.slow), 0, 1)
        dim = 2 * frequencies.size

        def place(turns: float) -> float:
            """Return the dimension whose angle makes this many turns in a text of the original length."""
            return dim * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

        first, last = place(self.fast), place(self.slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        ramp = (jnp.arange(frequencies.size, dtype=jnp.float32) - first) / ((last - first) or 0.001)
        return 1 - jnp.clip(ramp, 0, 1)


def _attention_factor(factor: float, rope: Mapping[str, Any]) -> float:
    """Return Yarn's factor on cosine and sine: the one in config.json, or the paper's 0.1 ln(s) + 1 (equation 22)."""
    given = rope.get("attention_factor")
    if given is not None:
        return float(given)

    def sharper(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    above, below = rope.get("mscale"), rope.get("mscale_all_dim")
    return sharper(above) / sharper(below) if above and below else sharper(1)
