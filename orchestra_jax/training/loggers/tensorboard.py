"""TensorBoard: event files in the run's `tensorboard` folder."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from orchestra_jax.config.schema import WorldConfig


class TensorBoardLogger:
    """A logger that writes a scalar for every figure. TensorBoard hides earlier processes' events from `first_step` on.

    It does not use tensorboardX's `SummaryWriter`, whose thread dies on a full disk and lets its callers wait for ever.
    """

    def __init__(self, cfg: WorldConfig, first_step: int) -> None:
        self._folder, self._first = Path(cfg.output_dir) / "tensorboard", first_step
        self._writer: Any = None  # made with the first figures: a finished run leaves no empty file

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
            self._writer = RecordWriter(str(self._folder / name))
            self._write(file_version="brain.Event:2")
            self._write(step=self._first, session_log=SessionLog(status=SessionLog.START))
        for name, value in metrics.items():
            self._write(step=step, summary=scalar(name, float(value)))
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _write(self, **content: Any) -> None:
        self._writer.write(Event(wall_time=time.time(), **content).SerializeToString())
