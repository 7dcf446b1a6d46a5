"""Checkpoints of the policy as folders that transformers and SGLang load."""

from orchestra_jax.models.checkpoint.safetensors import load, save

__all__ = ["load", "save"]
