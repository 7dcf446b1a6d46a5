"""Weights & Biases: one W&B run per run folder, continued when the run resumes (pip install 'orchestra-jax[wandb]')."""

import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError, RunConfig

try:
    import wandb
except ModuleNotFoundError as error:
    raise ConfigError(
        "logger.names has wandb, which is not installed: pip install 'orchestra-jax[wandb]', or leave it out."
    ) from error

ID_FILE = "wandb_id"  # file with the id of the folder's W&B run


class WandbLogger:
    """A logger that sends every figure to the W&B run whose id lies in the run's folder.

    A new folder starts a new W&B run in the project `logger.project`. WANDB_MODE=offline, WANDB_ENTITY and the other
    variables of W&B work as usual. W&B's own step only rises, and would drop a step that is done again after a kill. So
    the training step is a figure of its own, and the axis of the others.
    """

    def __init__(self, cfg: RunConfig, first_step: int) -> None:
        folder = Path(cfg.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        identity = folder / ID_FILE
        if not identity.exists():
            identity.write_text(secrets.token_hex(4) + "\n")
        self._run: Any = wandb.init(
            project=cfg.logger.project,
            name=cfg.name,
            id=identity.read_text().strip(),
            resume="allow",
            dir=folder,
            config=asdict(cfg),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def close(self) -> None:
        self._run.finish()
