"""Choose a placement for a run on several GPUs that names none: a server on each GPU of the trainer, in turns."""

import math
from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf, open_dict

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.from_run import parsed, set_again
from orchestra_jax.io.shipped import CONF

# Whoever sets one of these says where the servers are.
_PLACES = (
    *("placement", "rollout.urls", "rollout.weight_folder", "rollout.server.device"),
    *("rollout.server.gpus", "rollout.server.share_gpus"),
)
_SIZES = ("data", "fsdp", "tensor")
_PYTHON = ".venv-sglang/bin/python"  # of `make sglang-cpu`


def placed(config: DictConfig, given: Sequence[str]) -> tuple[DictConfig, str]:
    """Return the settings with `+placement=shared` for each GPU of a node, and a sentence, or as they are, and "".

    A placement is chosen where SGLang samples, the command names a mesh of several devices, and neither it nor an
    experiment says where servers are. The other placements need something that only the user knows.

    Args:
        given: words of the command line that they are composed from.
    """
    words = parsed(given)
    keys = {word.key_or_group for word in words}
    sizes = [config.mesh[name] for name in _SIZES]
    named = keys & {"mesh", *(f"mesh.{name}" for name in _SIZES)}
    usual = OmegaConf.load(CONF / "rollout" / "sglang.yaml")
    if config.rollout.engine != EngineName.sglang or not named or keys.intersection(_PLACES):
        return config, ""
    if config.rollout.urls != usual.urls or min(sizes) < 1 or math.prod(sizes) == 1:
        return config, ""
    here = min(math.prod(sizes), config.plan.gpus_per_node)
    each = sizes[-1] if here % sizes[-1] == 0 else 1
    servers = [list(range(first, first + each)) for first in range(0, here, each)]
    shared = OmegaConf.load(CONF / "placement" / "shared.yaml").rollout
    shared.server.gpus = servers
    shared.server.python = config.rollout.server.python or _PYTHON
    found = OmegaConf.merge(config, {"rollout": shared})
    assert isinstance(found, DictConfig)
    with open_dict(found):
        for word in words:
            if word.key_or_group.startswith("rollout."):
                set_again(found, word)
    where = "the GPU" if here == 1 else f"each of the {here} GPUs of a node" if each == 1 else f"every {each} GPUs"
    return found, (
        f"Placement: a server on {where}, in turns with the trainer (+placement=shared). For another way name "
        "+placement=separate, +placement=nodes or rollout.urls=[...] (docs/scale.md)."
    )
