"""The composed configuration of `+experiment=hle`, before it is checked."""

from typing import Any

import hydra

from orchestra_jax.config.cli import register
from orchestra_jax.io.shipped import CONF


def hle() -> Any:
    """Return it as Hydra composes it, with the files that are there now."""
    register()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", ["+experiment=hle"])
