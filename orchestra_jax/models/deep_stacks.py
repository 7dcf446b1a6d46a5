"""Layers of a deep model: scanned for a fast compilation, and recomputed in the backward pass to save memory."""

from typing import Any

import flax.linen as nn
import jax

from orchestra_jax.models.base import DecoderConfig


def recomputing(block: type[nn.Module], config: DecoderConfig) -> Any:
    """Return the block with a backward pass that computes again what `config.remat` names."""
    policies = jax.checkpoint_policies
    policy = policies.dots_with_no_batch_dims_saveable if config.remat == "dots" else policies.nothing_saveable
    # Inside a scan the loop already keeps XLA from merging the recomputation with the forward pass.
    return nn.remat(block, policy=policy, prevent_cse=not config.scan_layers)


def scanned(block: type[nn.Module], config: DecoderConfig) -> Any:
    """Return the module that scans the block over stacked parameters; past keys and values are stacked too."""
    return nn.scan(
        block,
        variable_axes={"params": 0, "intermediates": 0},
        split_rngs={"params": True},
        in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
        length=config.num_layers,
    )
