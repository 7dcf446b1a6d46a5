"""Trains an orchestrator. Without arguments: the quickstart. `--help` shows every key; running again resumes.

python experiments/train.py seed=1 name=seed1
python experiments/train.py +experiment=hle model.path=checkpoints/Qwen3-8B
python experiments/train.py --multirun hydra/launcher=joblib reward.outcome=0.5,1 reward.compute=0,0.5,1
"""

import hydra
from omegaconf import DictConfig

from orchestra_jax.config import cli
from orchestra_jax.config.experiment import changed_settings
from orchestra_jax.config.record import Start


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(config: DictConfig) -> None:
    """One run of the composed config."""
    run_config = cli.configure(config)
    # Only now: `--cfg` and a mistyped key need no JAX.
    from orchestra_jax.training.main import run

    run(run_config, changed_settings(config), Start.of(config))


if __name__ == "__main__":
    cli.run(main, ends_process=True)
