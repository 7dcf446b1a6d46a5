"""Tells, without the hardware, whether a run fits on its GPUs and what a training step costs.

python experiments/plan.py +experiment=hle mesh.fsdp=16
python experiments/plan.py +experiment=hle mesh.fsdp=8 plan.gpu=h200
"""

import os

import hydra
from omegaconf import DictConfig

from orchestra_jax.config import cli

# Nothing runs here, so no GPU is started even where there is one.
os.environ["JAX_PLATFORMS"] = "cpu"


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(config: DictConfig) -> None:
    """Plans the composed config."""
    run_config = cli.configure(config)
    from orchestra_jax.planning.report import run

    run(run_config)


if __name__ == "__main__":
    cli.run(main)
