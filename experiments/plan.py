"""Tell, without the hardware, whether a run fits on its GPUs and what a training step costs; docs/planner.md.

python experiments/plan.py +experiment=hle mesh.fsdp=16
python experiments/plan.py +experiment=hle mesh.fsdp=8 plan.gpu=h200
python experiments/plan.py +experiment=hle mesh.fsdp=16 rollout.history=keep
python experiments/plan.py +experiment=hle model.path=Qwen/Qwen3-8B mesh.fsdp=16
python experiments/plan.py +experiment=hle +placement=separate mesh.fsdp=8 rollout.server.python=python
"""

import os
from typing import TYPE_CHECKING

from orchestra_jax.config import command, flags

if TYPE_CHECKING:
    from omegaconf import DictConfig

os.environ["JAX_PLATFORMS"] = "cpu"  # nothing runs here, so no GPU is started even where there is one


def main(config: "DictConfig") -> None:
    """Plan the composed config."""
    from hydra.core.hydra_config import HydraConfig

    from orchestra_jax.config import cli, from_run
    from orchestra_jax.config.placing import placed

    config, told = placed(config, HydraConfig.get().overrides.task)
    if told:
        print(told, flush=True)
    cfg = cli.configure(config)
    from orchestra_jax.planning.report import run  # only now: a mistake needs no JAX

    with from_run.one_sentence():
        run(cfg)


if __name__ == "__main__":
    command.run(main, __doc__, flags=(flags.PATH,))
