"""Take a run's config from Hydra; a user's error ends the process with one plain sentence."""

import contextlib
import functools
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestra_jax.config.checks import load
from orchestra_jax.config.exit_status import USAGE_ERROR
from orchestra_jax.config.record import RunRecord, Start
from orchestra_jax.config.schema import ConfigError, RunConfig


@functools.cache  # the schema does not change, and making it takes a tenth of a second
def register() -> None:
    """Make the schema known to Hydra as `run_config`, the first entry of `conf/config.yaml`, and `${there:PATH}`."""
    OmegaConf.register_new_resolver("there", lambda path, other=None: path if os.path.exists(path) else other)
    ConfigStore.instance().store(name="run_config", node=schema())


def configure(config: DictConfig) -> RunConfig:
    """Return the checked config inside a `hydra.main` function; `output_dir` is the folder that Hydra made for the job.

    Raises:
        SystemExit: status 2, after one sentence per problem.
    """
    folder = HydraConfig.get().runtime.output_dir
    try:
        run = load(config, folder)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(1 << 16))  # with less room no run can begin
    except (ConfigError, OmegaConfBaseException, OSError) as error:
        from orchestra_jax.config.errors import explain_error

        end(explain_error(error, folder), folder)  # raised further, Hydra would put a line of its own above it
    if run.rollout.server.share_gpus:
        # JAX keeps what it once took of a GPU, unless this says otherwise before it starts (engines/gpus.py).
        os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")
    return run


def require(
    cfg: RunConfig, command: str, start: Start, problems: Callable[[], Iterable[str]], folder: str = ""
) -> None:
    """End a command that lacks something, before JAX is imported or data is read.

    The record in `folder`, within `output_dir`, notes the refused start.

    Args:
        problems: function that returns a sentence for each thing that is missing.

    Raises:
        SystemExit: status 2, after the sentences.
    """
    try:
        lacking = "\n".join(dict.fromkeys(problems()))
    except ConfigError as error:
        lacking = str(error)
    if lacking:
        with contextlib.suppress(ConfigError), RunRecord(Path(cfg.output_dir, folder), cfg, command, start):
            raise ConfigError(lacking)
        end(lacking, cfg.output_dir)


@contextlib.contextmanager
def user_errors(*, ends_process: bool = False) -> Iterator[None]:
    """End the process with one sentence and status 2, if a user's error comes out of the block.

    The block calls a `hydra.main` function.
    Everything else, a bug above all, keeps its stack trace. HYDRA_FULL_ERROR=1 shows the traces of user errors too.

    Args:
        ends_process: nothing comes after this: neither signals nor threads then keep it from ending with its status.
    """
    register()
    asked, status = os.environ.get("HYDRA_FULL_ERROR", "0"), 0
    # Otherwise Hydra prints errors its own way and exits, and there is nothing left to explain.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        raise
    except BaseException as error:
        status = 1
        from orchestra_jax.config.errors import told

        if (ended := told(error, traced=asked == "1")) is None:
            raise
        sys.exit(status := ended)
    finally:
        os.environ["HYDRA_FULL_ERROR"] = asked  # a program that goes on after this keeps its own choice
        if ends_process:
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
                sys.stdout.flush()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, lambda *_: os._exit(status))
            if status > 1:  # all is told
                from orchestra_jax.config.errors import leave

                leave(status)


def end(message: str, folder: str = "") -> NoReturn:
    """End the process with a sentence on standard error, as every user's error does; remove `folder` if it is empty."""
    from orchestra_jax.config.errors import remove_empty

    remove_empty(folder)
    print(message, file=sys.stderr)
    sys.exit(USAGE_ERROR)


def schema() -> DictConfig:
    """Return the schema of a run, as Hydra fills it in."""
    node: DictConfig = OmegaConf.structured(RunConfig)
    _unlock(node)
    return node


def _unlock(node: DictConfig) -> None:
    """Let Hydra write what frozen dataclasses make read-only; `load` gives frozen ones again."""
    node._set_flag("readonly", None)
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig):
            _unlock(child)
