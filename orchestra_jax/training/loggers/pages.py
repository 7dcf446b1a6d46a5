"""Pages and Inspect's logs of the rollouts in a run's folder, also while the run goes on."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from omegaconf.errors import OmegaConfBaseException

from orchestra_jax.config import errors, record
from orchestra_jax.config.compose import recorded_config
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.evaluation.decoding import read_groups, steps_in
from orchestra_jax.evaluation.group_files import StoredGroup
from orchestra_jax.evaluation.results.group_page import Decode
from orchestra_jax.evaluation.results.pages import write_pages
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.training.inspect.logs import write_logs
from orchestra_jax.training.loggers import jsonl
from orchestra_jax.training.loggers.rollouts import FOLDER

Track = Callable[[list[int]], Iterable[int]]


def pages_of(run: Path, out: Path | None = None, steps: int = 0, track: Track = iter) -> Path:
    """Write pages of a run's rollouts.

    Args:
        run: its folder.
        out: folder of the pages; None: `view` in the run's.
        steps: the number of steps to show, evenly from the first to the last; 0: all.
        track: yields the given steps as they are worked on, such as a progress bar.

    Returns:
        The index.

    Raises:
        ConfigError: the folder is no run's, or holds no rollouts.
        ValueError: a file in it is damaged.
    """
    cfg, groups = _rollouts(run, steps, track)
    metrics = run / jsonl.FILE_NAME
    return write_pages(
        groups,
        out or run / "view",
        name=cfg.name,
        reward=cfg.reward,
        decode=_decode(cfg),
        metrics=jsonl.read_metrics(metrics) if metrics.is_file() else (),
    )


def inspect_logs_of(run: Path, out: Path | None = None, steps: int = 0, track: Track = iter) -> list[Path]:
    """Write logs of Inspect, by default into `inspect` in the run's folder; otherwise as `pages_of`.

    Raises:
        ImportError: inspect-ai is not installed.
    """
    cfg, groups = _rollouts(run, steps, track)
    return write_logs(groups, out or run / "inspect", name=cfg.name, reward=cfg.reward)


def _rollouts(run: Path, steps: int, track: Track) -> tuple[RunConfig, Iterator[StoredGroup]]:
    kept = record.read(run)
    if kept is None:
        raise ConfigError(f"{str(run)!r} is no run: a run's folder has {record.FILE_NAME} in it.")
    there = steps_in(run / FOLDER)
    if not there:
        raise ConfigError(f"{str(run)!r} has no rollouts yet; a run with logger.rollouts=false keeps none.")
    try:
        cfg = recorded_config(kept["config"])
    except (ConfigError, OmegaConfBaseException) as error:
        raise ConfigError(f"{str(run)!r} is a run of another version: {errors.explain_error(error)}") from None
    chosen = there if not steps else sorted({there[int(n)] for n in np.linspace(0, len(there) - 1, steps).round()})
    return cfg, chain.from_iterable(read_groups(run / FOLDER, [step]) for step in track(chosen))


def _decode(cfg: RunConfig) -> Decode | None:
    """Return the decoding of the policy's tokenizer, or None if its folder is no longer there."""
    try:
        decode: Decode = make_chat(cfg).tokenizer.decode
    except (OSError, ValueError):
        return None
    return decode
