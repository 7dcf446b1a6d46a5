"""YAML files from outside."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from orchestra_jax.io.untrusted import Unreadable


def read_yaml(file: Path) -> Any:
    """Return the plain value of a YAML file, interpolations resolved; raise Unreadable if it has none."""
    try:
        return OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror}") from None
    except (YAMLError, OmegaConfBaseException, ValueError, RecursionError) as error:
        raise Unreadable(f"it cannot be read: {' '.join(str(error).split())}") from None
