"""Make a run's config without a command line: for notebooks, programs, and runs that are read again."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, cast

import hydra
from omegaconf import DictConfig, OmegaConf

from orchestra_jax.config.checks import load
from orchestra_jax.config.cli import register, schema
from orchestra_jax.config.errors import explain_error, is_users_error
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.io.shipped import CONF


def compose(*overrides: str, name: str = "config") -> RunConfig:
    """Return the config of a command line, for notebooks and programs.

    Examples:
        >>> cfg = compose("+experiment=hle", "model=tiny", "seed=1")
        >>> cfg.seed, cfg.algorithm.group_size
        (1, 8)

    Args:
        overrides: the words of the command line.
        name: "config" for what experiments/train.py composes, "evaluate" for experiments/evaluate.py.

    Raises:
        TypeError: one of the words is no text.
        ConfigError: one sentence per problem.
    """
    if wrong := [word for word in (*overrides, name) if not isinstance(word, str)]:
        raise TypeError(f"compose takes words of a command line, as in compose('seed=1', 'steps=2'), not {wrong[0]!r}.")
    register()
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            return load(hydra.compose(name, list(overrides)))
    except ConfigError:
        raise
    except Exception as error:
        if not is_users_error(error):
            raise
        raise ConfigError(explain_error(error)) from error


def recorded_config(settings: Mapping[str, Any]) -> RunConfig:
    """Return the config that was written to run.json, without settings that this version does not have.

    Raises:
        ConfigError, omegaconf.errors.OmegaConfBaseException: another version wrote it.
    """
    return load(cast(DictConfig, OmegaConf.merge(schema(), of_this_version(settings)[0])))


def of_this_version(recorded: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return recorded settings without those that this version does not have, and the latter as "key=value"."""
    gone = list[str]()

    def kept(settings: Any, node: Any, above: str) -> Any:
        if not isinstance(settings, Mapping) or not is_dataclass(OmegaConf.get_type(node)):
            return settings
        fields = set(node)  # `in node` is False where a value is missing
        known = {name: value for name, value in settings.items() if name in fields}
        gone.extend(f"{above}{name}={settings[name]}" for name in settings if name not in known)
        return {name: kept(value, node._get_node(name), f"{above}{name}.") for name, value in known.items()}

    return kept(recorded, schema(), ""), gone
