"""Tell what a run's configuration changes of the experiment that it is based on."""

from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from orchestra_jax.config.checks import flat


def changed_settings(config: DictConfig) -> str:
    """Return every setting that differs from `+experiment=NAME` alone, a line each; "" without an experiment.

    Args:
        config: what Hydra composed, inside its `main` function.
    """
    hydra = HydraConfig.get()
    name = hydra.runtime.choices.get("experiment")
    if name is None:
        return ""
    plain = _settings(compose(str(hydra.job.config_name), overrides=[f"+experiment={name}"]))
    ours = _settings(config)
    lines = [
        f"  {key}: {_shown(plain.get(key))} -> {_shown(ours.get(key))}"
        for key in sorted(plain.keys() | ours.keys())
        if plain.get(key) != ours.get(key)
    ]
    if not lines:
        return f"Experiment {name}, with no settings of this run's own."
    return "\n".join((f"Experiment {name}, with {len(lines)} settings of this run's own:", *lines))


def _settings(config: DictConfig) -> dict[str, Any]:
    container = OmegaConf.to_container(config, resolve=True)
    assert isinstance(container, dict)
    return dict(flat(container))


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)
