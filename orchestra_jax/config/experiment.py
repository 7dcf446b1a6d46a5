"""Tell what a run's configuration changes of the experiment that it is based on."""

from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from orchestra_jax.config.checks import flat

# Settings that name a file of experiments/prepare.py where it is there (`${there:PATH}` in conf/): the part that makes
# it, and what a run has without it.
_PREPARED = {
    "tools.search.index": (
        "retrieval_index",
        "local search goes by words (BM25), without the paper's dense index",
    ),
    "data.preferences_file": ("preferences", "users' wishes are our handwritten ones, not ones that a model wrote"),
    "tools.descriptions": ("descriptions", "menus describe models by their cards, not by ten tasks that they tried"),
}


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
    head = f"{len(lines)} settings of this run's own:" if lines else "no settings of this run's own."
    return "\n".join((f"Experiment {name}, with {head}", *lines))


def unprepared(config: DictConfig) -> list[str]:
    """Return a sentence for each file that `prepare paper` makes, that the run would use, and that is not there."""
    return [
        f"Not prepared: {without} (orchestra-jax prepare paper FOLDER --only {part}; docs/data.md)."
        for key, (part, without) in _PREPARED.items()
        if _asks_for(config, key) and OmegaConf.select(config, key) is None
    ]


def _asks_for(config: DictConfig, key: str) -> bool:
    """Return whether a setting is that of conf/, which looks for a file."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent)._get_node(name)
    return node is not None and str(node._value()).startswith("${there:")


def _settings(config: DictConfig) -> dict[str, Any]:
    container = OmegaConf.to_container(config, resolve=True)
    assert isinstance(container, dict)
    return dict(flat(container))


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)
