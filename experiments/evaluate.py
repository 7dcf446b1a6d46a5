"""Evaluate a policy on benchmarks: a checkpoint, a run's export, a model behind an address, or a baseline.

python experiments/evaluate.py name=seed1
python experiments/evaluate.py +benchmark=quickstart policy=baseline:preference_oracle --limit 20
python experiments/evaluate.py +benchmark=frames policy=checkpoints/Qwen3-8B --limit 20
python experiments/evaluate.py +benchmark=gsm8k policy=outputs/gsm8k name=again --dry-run
python experiments/evaluate.py +benchmark=hle name=gpt-5 policy=https://api.openai.com/v1 --dry-run \\
    evaluation.endpoint.model=gpt-5 evaluation.endpoint.api_key_env=OPENAI_API_KEY
"""

import sys
from typing import TYPE_CHECKING

from orchestra_jax.config import command, flags

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(config: "DictConfig") -> None:
    """Evaluate with the composed config."""
    from orchestra_jax.config import cli, from_run
    from orchestra_jax.config.missing_policy import missing_to_evaluate, not_on_hub
    from orchestra_jax.config.record import Start
    from orchestra_jax.envs.registry import environment_class

    config, told = from_run.from_run(config)
    cfg = cli.configure(config)
    if told:
        print(told, flush=True)
    if cfg.evaluation.dry_run:
        from orchestra_jax.config.errors import remove_empty
        from orchestra_jax.training.forecast import dry_run_evaluation

        with from_run.one_sentence():
            dry_run_evaluation(cfg)
        remove_empty(cfg.output_dir)
        return
    start = Start.of(config)

    def lacking() -> list[str]:
        return [*missing_to_evaluate(cfg), *not_on_hub(cfg.policy), *environment_class(cfg).problems(cfg)]

    cli.require(cfg, "evaluate", start, lacking, "evaluation")
    from orchestra_jax.training.evaluate import evaluate  # only now: a mistake needs no JAX

    evaluate(cfg, start)


if __name__ == "__main__":
    if any(word.startswith("policy=") for word in sys.argv):
        from orchestra_jax.config.from_run import in_its_folder

        sys.argv[1:] = in_its_folder(sys.argv[1:])
    command.run(main, __doc__, "evaluate", (flags.LIMIT, flags.DRY_RUN))
