"""Measure the judge `tools.judge` on answers that are known to be right or wrong; docs/judge.md.

python experiments/judge.py +benchmark=hle --sample labelled.jsonl --dry-run
python experiments/judge.py +benchmark=hle --sample labelled.jsonl budget.run_usd=1
python experiments/judge.py +benchmark=hle --sample labelled.jsonl tools.judge=gpt-5-mini name=judged-by-mini
"""

from pathlib import Path
from typing import TYPE_CHECKING

from orchestra_jax.config import command, flags

if TYPE_CHECKING:
    from omegaconf import DictConfig

SAMPLE = flags.Flag("--sample", "evaluation.judge_sample", "rows {question, reference, answer, correct}", "FILE")


def main(config: "DictConfig") -> None:
    """Ask the judge of the composed config about the rows of evaluation.judge_sample."""
    from orchestra_jax.config import cli
    from orchestra_jax.config.errors import remove_empty
    from orchestra_jax.config.missing_policy import missing_to_ask
    from orchestra_jax.config.record import Start
    from orchestra_jax.evaluation.results.judge_agreement import measure, read_sample

    cfg = cli.configure(config)
    sample = cfg.evaluation.judge_sample

    def lacking() -> list[str]:
        if not (found := missing_to_ask(cfg, sample)):
            read_sample(sample)  # raises what `require` tells
        return found

    cli.require(cfg, "judge", Start.of(config), lacking, "evaluation")
    # Only now: a mistake needs no JAX.
    from orchestra_jax.training.evaluate import FOLDER
    from orchestra_jax.training.main import exit_status

    with exit_status(folder=cfg.output_dir, calls=cfg.replay.path):
        measure(cfg, Path(cfg.output_dir) / FOLDER)
    remove_empty(cfg.output_dir)  # of a dry run


if __name__ == "__main__":
    command.run(main, __doc__, "evaluate", (SAMPLE, flags.DRY_RUN))
