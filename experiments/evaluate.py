"""Evaluates a policy without training: a checkpoint, a run, or any OpenAI-compatible endpoint. See docs/evaluation.md.

python experiments/evaluate.py name=seed1                                       what the run of this name exported
python experiments/evaluate.py +benchmark=frames policy=checkpoints/Qwen3-8B --limit 20
python experiments/evaluate.py +benchmark=hle policy=https://api.openai.com/v1 evaluation.endpoint.model=gpt-5 \
    evaluation.endpoint.api_key_env=OPENAI_API_KEY name=gpt-5 --dry-run
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
    flags = {"--limit": "evaluation.limit=", "--dry-run": "evaluation.dry_run=true"}
    cli.run(main, flags, ends_process=True)
