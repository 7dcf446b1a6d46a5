"""From a run's folder to pages of its rollouts; also while the run goes on."""

from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

import numpy as np
from omegaconf.errors import OmegaConfBaseException

from orchestra_jax.config import cli, record
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.evaluation.pages import write_pages
from orchestra_jax.evaluation.pages.group import Decode
from orchestra_jax.evaluation.stored import read_groups, steps_in
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.training.loggers import jsonl
from orchestra_jax.training.loggers.rollouts import FOLDER


def pages_of(
    run: Path, out: Path | None = None, steps: int = 0, track: Callable[[list[int]], Iterable[int]] = iter
) -> Path:
    """Writes the pages of a run.

    Args:
        run: its folder.
        out: where to; None: `view` in it.
        steps: so many of them, evenly from the first to the last; 0: all.
        track: is given the steps, and gives them again as they are worked on: a progress bar.

    Returns:
        The index.

    Raises:
        ConfigError: the folder is no run's, or holds no rollouts.
        ValueError: a file in it is damaged.
    """
    kept = record.read(run)
    if kept is None:
        raise ConfigError(f"{str(run)!r} is no run: a run's folder has {record.FILE_NAME} in it.")
    there = steps_in(run / FOLDER)
    if not there:
        raise ConfigError(f"{str(run)!r} has no rollouts yet; a run with logger.rollouts=false keeps none.")
    try:
        cfg = cli.recorded(kept["config"])
    except (ConfigError, OmegaConfBaseException) as error:
        raise ConfigError(f"{str(run)!r} is a run of another version: {cli.explain_error(error)}") from None
    chosen = there if not steps else sorted({there[int(n)] for n in np.linspace(0, len(there) - 1, steps).round()})
    metrics = run / jsonl.FILE_NAME
    return write_pages(
        chain.from_iterable(read_groups(run / FOLDER, [step]) for step in track(chosen)),
        out or run / "view",
        name=cfg.name,
        reward=cfg.reward,
        decode=_decode(cfg),
        metrics=jsonl.read_metrics(metrics) if metrics.is_file() else (),
    )


def _decode(cfg: RunConfig) -> Decode | None:
    """The policy's tokenizer; None where its folder is no longer there."""
    try:
        decode: Decode = make_chat(cfg).tokenizer.decode
    except (OSError, ValueError):
        return None
    return decode
