"""TensorBoard: event files in the run's `tensorboard` folder."""

from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter

from orchestra_jax.config.schema import RunConfig


class TensorBoardLogger:
    """Writes a scalar for every figure; TensorBoard hides events of an earlier process from `first_step` on."""

    def __init__(self, cfg: RunConfig, first_step: int) -> None:
        self._folder, self._first = Path(cfg.output_dir) / "tensorboard", first_step
        self._writer: SummaryWriter | None = None  # made with the first figures: a finished run leaves no empty file

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = SummaryWriter(str(self._folder), purge_step=self._first)
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
