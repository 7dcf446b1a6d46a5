"""Write new worlds, or preferences, with language models; the same command again goes on; docs/synthesis.md.

python experiments/synthesize.py synthesis.domain=library tools.server.url=http://127.0.0.1:30000/v1 --dry-run
python experiments/synthesize.py synthesis.domain=pharmacy tools.experts_file=experts.yaml --dry-run
python experiments/synthesize.py synthesis.domain=pharmacy tools.experts_file=experts.yaml budget.run_usd=50
python experiments/synthesize.py synthesis.make=preferences tools.experts_file=experts.yaml --dry-run
python experiments/synthesize.py synthesis.make=preferences tools.experts_file=experts.yaml budget.run_usd=20
"""

from typing import TYPE_CHECKING

from orchestra_jax.config import command, flags

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(config: "DictConfig") -> None:
    """Make what synthesis.make of the composed config names."""
    from orchestra_jax.config import cli
    from orchestra_jax.config.errors import remove_empty
    from orchestra_jax.config.missing_policy import missing_to_ask
    from orchestra_jax.config.record import Start

    cfg = cli.configure(config)
    cli.require(cfg, "synthesize", Start.of(config), lambda: missing_to_ask(cfg))
    # Only now: a mistake needs no JAX.
    from orchestra_jax.synthesis.synthesize import synthesize
    from orchestra_jax.training.main import exit_status

    with exit_status(folder=cfg.output_dir, calls=cfg.replay.path):
        made = synthesize(cfg, cfg.synthesis)
    remove_empty(cfg.output_dir)  # of a dry run
    if not made:
        raise SystemExit(1)


if __name__ == "__main__":
    command.run(main, __doc__, "synthesis", (flags.DRY_RUN,))
