"""How the scripts of `experiments/` start: the schema known to Hydra, and every user error one plain sentence."""

import contextlib
import errno
import functools
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, cast

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from orchestra_jax.config.checks import RENAMED, keys, load, unknown_key
from orchestra_jax.config.ranges import shown, unknown_choice
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.io.shipped import CONF

USAGE_ERROR, DISK_FULL, INTERRUPTED = 2, 5, 130  # exit statuses


@functools.cache  # the schema does not change, and making it takes a tenth of a second
def register() -> None:
    """Makes the schema known to Hydra as `run_config`, the first entry of `conf/config.yaml`'s defaults."""
    ConfigStore.instance().store(name="run_config", node=_schema())


def compose(*overrides: str, name: str = "config") -> RunConfig:
    """The config of a command line, for notebooks and programs: `compose("+experiment=hle", "seed=1")`.

    Args:
        name: "config" for what experiments/train.py composes, "evaluate" for experiments/evaluate.py.

    Raises:
        ConfigError: one sentence per problem.
    """
    register()
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            return load(hydra.compose(name, list(overrides)))
    except Exception as error:
        if isinstance(error, ConfigError) or not _is_users(error):
            raise
        raise ConfigError(explain_error(error)) from error


def run(main: Callable[[], None], flags: Mapping[str, str] | None = None, *, ends_process: bool = False) -> None:
    """Calls a `hydra.main` function; a user's error ends the process with one sentence and status 2.

    Everything else, a bug above all, keeps its stack trace. HYDRA_FULL_ERROR=1 shows the traces of user errors too.

    Args:
        flags: settings that have a flag of their own, by flag: "--limit" for "evaluation.limit=", and "--dry-run" for
            "evaluation.dry_run=true".
        ends_process: nothing comes after this, so that a signal from now on ends the process at once, with the status
            that it has: no library may trace where it was in its cleaning up.
    """
    status = 1
    try:
        _run(main, flags or {})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        if ends_process:
            _wind_down(status)


def _wind_down(status: int) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
        sys.stdout.flush()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(status))


def _run(main: Callable[[], None], flags: Mapping[str, str]) -> None:
    register()
    sys.argv[1:] = _without_flags(sys.argv[1:], flags)
    asked = os.environ.get("HYDRA_FULL_ERROR", "0")
    wants_trace = asked == "1"
    # Otherwise Hydra prints errors its own way and exits, and there is nothing left to explain.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)  # nothing has begun: a run has a sentence for it
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            print(f"No space, or quota, is left on the disk of {error.filename or os.getcwd()!r}.", file=sys.stderr)
            sys.exit(DISK_FULL)
        if wants_trace or not _is_users(error):
            raise
        _end(explain_error(error))
    finally:
        os.environ["HYDRA_FULL_ERROR"] = asked  # a program that goes on after this keeps its own choice


def _without_flags(words: Sequence[str], flags: Mapping[str, str]) -> list[str]:
    """The words of a command line with flags written as settings; the value of one stands behind "=" or follows."""
    found, rest = list[str](), list(words)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        setting = flags.get(flag)
        if setting is None:
            found.append(f"{flag}{equals}{value}")
        elif not setting.endswith("="):
            found.append(setting)
        else:
            found.append(setting + (value if equals or not rest else rest.pop(0)))
    return found


def configure(config: DictConfig) -> RunConfig:
    """The validated config inside a `hydra.main` function, its `output_dir` the folder that Hydra made for this job.

    Raises:
        SystemExit: with status 2, after one sentence per problem.
    """
    try:
        run = load(config, HydraConfig.get().runtime.output_dir)
    except (ConfigError, OmegaConfBaseException) as error:
        # Raised further, Hydra would put a line of its own above the sentence.
        _end(explain_error(error))
    if run.rollout.server.share_gpus:
        # JAX keeps what it once took of a GPU, unless this says otherwise before it starts (engines/gpus.py).
        os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")
    return run


def explain_error(error: BaseException) -> str:
    """What a user did wrong, in one sentence (one per problem for a `ConfigError`)."""
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return (
            "A job of this sweep would get a folder with a longer name than the file system allows: number the "
            "folders with hydra.sweep.subdir='${hydra.job.num}', or put what all jobs share into a file of "
            "conf/experiment."
        )
    if isinstance(error, RecursionError):
        return "A setting has too many brackets within brackets to be read."
    if isinstance(error, OverflowError) and (found := re.search(r"full_key: (\S+)", str(error))):
        return f"{found[1]} is a number that 32 bits do not hold: change it."
    if isinstance(error, UnicodeDecodeError):  # Hydra does not say where
        known = [frame.f_locals.get("config_path") for frame, _ in traceback.walk_tb(error.__traceback__)]
        return _one_line(f"In '{next(filter(None, reversed(known)), 'a file')}': {error}.")
    if isinstance(error, TypeError):  # of Hydra's own code, where it takes the value for another
        return _one_line(f"A setting has a kind of value that its place does not take ({error}): write KEY=VALUE.")
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for cause in chain:
        if isinstance(cause, ConfigAttributeError | ConfigKeyError):
            key = str(cause.full_key)
            return unknown_key(key) if key.partition(".")[0] != "hydra" else _one_line(f"{chain[0]} {cause}")
        if isinstance(cause, MissingConfigException) and cause.options is not None and cause.missing_cfg_file:
            return _unknown_choice(str(cause.missing_cfg_file), list(cause.options))
    if sentence := _wrong_value("\n".join(str(cause) for cause in chain)):
        return sentence
    # A key in a file: Hydra keeps the text of the cause only.
    if found := re.match(
        r"In '(.+)': Config(?:Key|Attribute)Error .*^\s*full_key: (\S+)", str(error), re.DOTALL | re.MULTILINE
    ):
        return f"In '{found[1]}': {unknown_key(found[2])}"
    if found := re.match(r"Could not override '([^'@]+)'\.\s+No match in the defaults list", str(error)):
        if f"{found[1]}.name" in keys():
            return f"'{found[1]}' is no choice of a config group: write {found[1]}.name=NAME."
        return f"'{found[1]}' has no default to replace: write +{found[1]}=NAME."
    return _one_line(" ".join(str(cause) for cause in chain))


def _wrong_value(text: str) -> str | None:
    """The sentence for a name that is no choice, or a value where a group of settings is; None for another text."""
    file = re.match(r"In '(.+)': ValidationError", text)
    where = f"In '{file[1]}': " if file else ""
    if found := re.search(r"Invalid value '(.*)', expected one of \[(.*)\]\s+full_key: (\S+)", text):
        return where + unknown_choice(found[3], found[1], found[2].split(", "))
    if found := re.search(r"\w+ is not a subclass of (\w+)\. value: (.*)\s+full_key:(.*)", text):
        old = [key for key in RENAMED if (node := keys().get(key)) and node.__name__ == found[1]]
        if (key := found[3].strip()) in old:
            return where + unknown_key(key)
        if old:  # a file's error has no key
            new = " or ".join(RENAMED[key] for key in old)
            return f"{where}{found[2]} stands where a group of settings is: write {new}."
    return None


def _is_users(error: Exception) -> bool:
    """Whether a user made the error: ours and Hydra's, and whatever its reading of files and arguments meets."""
    if isinstance(error, ConfigError | HydraException | OmegaConfBaseException):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return True
    return any(frame.f_code.co_name == "load_configuration" for frame, _ in traceback.walk_tb(error.__traceback__))


def _unknown_choice(path: str, options: list[str]) -> str:
    group, _, choice = (shown(part) for part in path.rpartition("/"))
    near = get_close_matches(choice, options, n=2)
    # A group without a default (experiment) is added, not replaced.
    plus = "" if group in keys() or group.startswith("hydra/") else "+"
    hint = f": did you mean {' or '.join(f'{plus}{group}={name}' for name in near)}? " if near else ". "
    return f"Unknown choice '{group}={choice}'{hint}{group} has: {', '.join(options)}."


def _one_line(message: str) -> str:
    """Hydra's and OmegaConf's text without the lines that are of use to programmers only."""
    lines = [line.strip() for line in message.splitlines()]
    kept = (line for line in lines if line and not line.startswith(("full_key:", "object_type", "reference_type")))
    return " ".join(shown(word) for line in kept for word in line.split())


def _end(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(USAGE_ERROR)


def recorded(settings: Mapping[str, Any]) -> RunConfig:
    """The run of settings that were composed before, such as those in run.json.

    Raises:
        ConfigError, omegaconf.errors.OmegaConfBaseException: they are not of this version.
    """
    return load(cast(DictConfig, OmegaConf.merge(_schema(), settings)))


def _schema() -> DictConfig:
    schema: DictConfig = OmegaConf.structured(RunConfig)
    _unlock(schema)
    return schema


def _unlock(node: DictConfig) -> None:
    """Lets Hydra write what frozen dataclasses make read-only; `load` gives frozen ones again."""
    node._set_flag("readonly", None)
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig):
            _unlock(child)
