"""Measures the judge of `tools.judge` on answers that are known to be right or wrong. See docs/evaluation.md.

python experiments/judge.py +benchmark=hle name=hle-evaluation --sample labelled.jsonl
python experiments/judge.py +benchmark=hle tools.judge=gpt-5-mini name=mini --sample labelled.jsonl --dry-run
"""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from orchestra_jax.config import cli


@hydra.main(version_base="1.3", config_path="../conf", config_name="evaluate")
def main(config: DictConfig) -> None:
    """Asks the judge of the composed config about the rows of evaluation.judge_sample."""
    cfg = cli.configure(config)
    # Only now: `--cfg` and a mistyped key need no JAX.
    from orchestra_jax.evaluation.results.judge_agreement import measure
    from orchestra_jax.training.evaluate import FOLDER
    from orchestra_jax.training.main import exit_status

    with exit_status(folder=cfg.output_dir):
        measure(cfg, Path(cfg.output_dir) / FOLDER)


if __name__ == "__main__":
    flags = {"--sample": "evaluation.judge_sample=", "--dry-run": "evaluation.dry_run=true"}
    cli.run(main, flags, ends_process=True)
