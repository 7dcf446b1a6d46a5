"""Evaluates a policy without training: model.path, or what the run of this name exported. `--help` shows every key.

python experiments/evaluate.py name=seed1
python experiments/evaluate.py +experiment=hle model.path=checkpoints/Qwen3-8B
python experiments/evaluate.py 'evaluation.benchmarks=[held_out,my_benchmark:tasks]'
"""

import hydra
from omegaconf import DictConfig

from orchestra_jax.config import cli
from orchestra_jax.config.record import Start


@hydra.main(version_base="1.3", config_path="../conf", config_name="evaluate")
def main(config: DictConfig) -> None:
    """One evaluation of the composed config."""
    run_config = cli.configure(config)
    # Only now: `--cfg` and a mistyped key need no JAX.
    from orchestra_jax.training.evaluate import evaluate

    evaluate(run_config, Start.of(config))


if __name__ == "__main__":
    cli.run(main)
