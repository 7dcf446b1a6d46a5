"""Train an orchestrator: without arguments the quickstart, on a laptop; the same command again resumes it.

python experiments/train.py
python experiments/train.py seed=1 name=seed1 steps=100
python experiments/train.py +experiment=hle model.path=checkpoints/Qwen3-8B
python experiments/train.py +experiment=my_logs path=log.csv
python experiments/train.py --multirun hydra/launcher=joblib reward.outcome=0.5,1 reward.compute=0,0.5,1
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra_jax.config import command

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(config: "DictConfig") -> None:
    """Train with the composed config."""
    from hydra.core.hydra_config import HydraConfig

    from orchestra_jax.config import cli
    from orchestra_jax.config.checks import missing
    from orchestra_jax.config.record import FILE_NAME, Start
    from orchestra_jax.envs.registry import environment_class

    opening, words = "", HydraConfig.get().overrides.task
    if HydraConfig.get().runtime.choices.get("experiment") is not None:
        from orchestra_jax.config.experiment import changed_settings, unprepared

        opening = "\n".join((changed_settings(config), *unprepared(config)))
    if "+experiment=kept" in words:
        from orchestra_jax.config.from_run import one_sentence
        from orchestra_jax.serving.kept_worlds import in_its_world

        with one_sentence():
            config, told = in_its_world(config, words)
        opening = f"{told}\n{opening}"
    if config.rollout.engine == "sglang":
        from orchestra_jax.config.placing import placed

        config, told = placed(config, words)
        opening = f"{opening}\n{told}".strip()
    cfg, start = cli.configure(config), Start.of(config)
    if Path(cfg.output_dir, FILE_NAME).is_file():
        from orchestra_jax.config.begun import nothing_left

        if nothing_left(cfg):
            return
    cli.require(cfg, "train", start, lambda: [*missing(cfg), *environment_class(cfg).problems(cfg)])
    from orchestra_jax.training.main import run  # only now: a mistake needs no JAX

    run(cfg, opening, start)


if __name__ == "__main__":
    if any(word.startswith("path=") for word in sys.argv):
        from orchestra_jax.config.flags import PATH, as_settings
        from orchestra_jax.config.served_path import logs_of_any_form

        sys.argv[1:] = logs_of_any_form(as_settings(sys.argv[1:], [PATH]))
    if {"-m", "--multirun"} & set(sys.argv):
        from orchestra_jax.config.sweep import each_job

        command.run(each_job(main), __doc__)
    else:
        command.run(main, __doc__)
