"""Writes new worlds, or preferences, with language models. Running again goes on. See docs/synthesis.md.

python experiments/synthesize.py synthesis.domain=library tools.server.url=http://127.0.0.1:30000/v1 --dry-run
python experiments/synthesize.py synthesis.make=preferences tools.experts_file=experts.yaml budget.run_usd=20
"""

import hydra
from omegaconf import DictConfig

from orchestra_jax.config import cli


@hydra.main(version_base="1.3", config_path="../conf", config_name="synthesis")
def main(config: DictConfig) -> None:
    """What synthesis.make of the composed config says."""
    cfg = cli.configure(config)
    # Only now: `--cfg` and a mistyped key need no JAX.
    from orchestra_jax.synthesis.synthesize import synthesize
    from orchestra_jax.training.main import exit_status

    with exit_status(folder=cfg.output_dir):
        made = synthesize(cfg)
    if not made:
        raise SystemExit(1)


if __name__ == "__main__":
    cli.run(main, {"--dry-run": "evaluation.dry_run=true"}, ends_process=True)
