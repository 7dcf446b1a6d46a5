"""Tells, without the hardware, whether a run fits on its GPUs and what a training step costs.

python experiments/plan.py +experiment=hle mesh.fsdp=16
python experiments/plan.py +experiment=hle mesh.fsdp=8 plan.gpu=h200
"""

import os
import sys

import hydra
from omegaconf import DictConfig

from orchestra_jax.config import cli
from orchestra_jax.config.schema import ConfigError

# Nothing runs here, so no GPU is started even where there is one.
os.environ["JAX_PLATFORMS"] = "cpu"


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(config: DictConfig) -> None:
    """Plans the composed config."""
    run_config = cli.configure(config)
    from orchestra_jax.planning.report import run

    try:
        run(run_config)
    except ConfigError as error:
        # Raised further, Hydra would put a line of its own above the sentence.
        print(error, file=sys.stderr)
        sys.exit(cli.USAGE_ERROR)


if __name__ == "__main__":
    cli.run(main, ends_process=True)
