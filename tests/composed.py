"""A command line's configuration as Hydra composes it, before it is checked."""

import hydra
from omegaconf import DictConfig

from orchestra_jax.config.cli import register
from orchestra_jax.io.shipped import CONF


def composed(*overrides: str, name: str = "config") -> DictConfig:
    """Return it, with the files that are there now."""
    register()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(name, list(overrides))
