"""Open a policy with the world of its run, as an evaluation does, to be asked again and again."""

import contextlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import hydra
from omegaconf.errors import OmegaConfBaseException

from orchestra_jax.config import checks, cli, errors, from_run
from orchestra_jax.config.choices import ReplayMode
from orchestra_jax.config.flags import Flag, as_settings
from orchestra_jax.config.missing_policy import missing_to_evaluate, not_on_hub
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.base import Baseline, Environment
from orchestra_jax.envs.registry import environment_class, make_environment
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.io.shipped import CONF
from orchestra_jax.types import Task

if TYPE_CHECKING:  # these import JAX, and a mistake needs none
    from orchestra_jax.engines.base import Engine
    from orchestra_jax.money.run_budget import RunBudget
    from orchestra_jax.rollout.chat import ChatFormat
    from orchestra_jax.rollout.messages import MessageEngine
    from orchestra_jax.training.subject import Subject

FOLDER = "serving"  # of the run's folder
_POLICY = Flag("--policy", "policy", "", "POLICY", quoted=True)


@runtime_checkable
class AskableWorld(Protocol):
    """An environment that takes questions of users, beside tasks of its own."""

    def wishes(self) -> Mapping[str, str]:
        """Return what a user may name in a word, such as "cheap", and the sentence that it stands for."""

    def pose(self, question: str, wish: str | None) -> Task:
        """Return the task of a user's question.

        Args:
            wish: what the user says beside it, in words; None: nothing.

        Raises:
            ValueError: this world has no answer to it; one sentence.
        """


@dataclass(frozen=True)
class OpenPolicy:
    """A policy that answers, and all that it needs; `close` ends it.

    Attributes:
        subject: the policy, with the settings in force.
        environment: the world of the run, which is also an `AskableWorld`.
        chat: chat format of a policy that our engines sample.
        money: budget of all questions in this folder, those of earlier starts included.
    """

    subject: "Subject"
    environment: Environment
    chat: "ChatFormat | None"
    engine: "Engine | MessageEngine | Baseline"
    loop: LoopThread
    money: "RunBudget"
    folder: Path
    parts: contextlib.ExitStack

    def close(self) -> None:
        """End engine, tools and connections, close the bill and leave the folder; twice is harmless."""
        self.parts.close()


def open_policy(policy: str | Path, settings: Sequence[str] = (), *, alone: bool = True) -> OpenPolicy:
    """Open what `policy` names: a run's folder, a checkpoint, a hub id, an address or "baseline:NAME".

    Args:
        settings: words of the command line of experiments/evaluate.py; what a run recorded is in force beside them.
        alone: whether no other process may open it meanwhile, so that the bill in its folder is exact.

    Raises:
        ConfigError: it cannot be opened, or another process has opened it; one sentence per problem.
    """
    return open_checked(checked_settings(policy, settings), alone=alone)


def open_checked(settings: Any, *, alone: bool = True) -> OpenPolicy:
    """Open the policy of `checked_settings`; `alone` and ConfigError as in `open_policy`."""
    from orchestra_jax.money.run_budget import RunBudget  # only now: a mistake needs no JAX
    from orchestra_jax.processes import Processes
    from orchestra_jax.processes.lock import alone_in
    from orchestra_jax.rollout.chat import make_chat
    from orchestra_jax.training.evaluate import engine_of

    with contextlib.ExitStack() as parts, contextlib.redirect_stdout(sys.stderr):
        subject = _subject(settings)
        cfg = subject.cfg
        folder = Path(cfg.output_dir) / FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if alone:
                parts.enter_context(alone_in(folder))
        except OSError as error:
            raise ConfigError(errors.unwritable(str(folder), str(error.strerror))) from error
        chat, environment = make_chat(cfg) if subject.own else None, make_environment(cfg)
        loop = parts.enter_context(LoopThread("serving"))
        money = RunBudget(cfg.budget, folder)
        parts.callback(money.close)
        parts.callback(lambda: loop.run(environment.close()))
        if not isinstance(environment, AskableWorld):
            raise ConfigError(
                f"env={cfg.env.name} poses its tasks itself and takes no questions of users: open a run on env=qa, "
                "env=recorded or the quickstart, or give the environment `pose` and `wishes` (docs/serve.md)."
            )
        engine = parts.enter_context(engine_of(subject, environment, folder, Processes(), loop, chat))
        return OpenPolicy(subject, environment, chat, engine, loop, money, folder, parts.pop_all())


def settings_in_force(policy: str | Path, settings: Sequence[str]) -> Any:
    """Return the settings that a run recorded with those of the command line, which win, as a config of its own.

    Raises:
        ConfigError: one of them is wrong; one sentence per problem.
    """
    if wrong := [word for word in settings if not re.match(r"[+~]*[\w.@/-]+(=|$)", word)]:
        raise ConfigError(f"{wrong[0]!r} is no setting: write KEY=VALUE, as in docs/keys.md.")
    words = from_run.in_its_folder([*as_settings([f"--policy={policy}"], [_POLICY]), *settings])
    given = {word.lstrip("+").partition("=")[0] for word in words}
    if not given & {"name", "output_dir"}:
        words.append("name=served")
    cli.register()
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            config = hydra.compose("config", words)
        config, home = from_run.settings(config, words, str(config.output_dir))
        cfg = checks.load(config)
    except Exception as error:
        if isinstance(error, ConfigError) or not (
            isinstance(error, OmegaConfBaseException) or errors.is_users_error(error)
        ):
            raise
        raise ConfigError(errors.explain_error(error)) from error
    if home is not None:
        print(from_run.told(config, words, home), file=sys.stderr)
    return cfg


def checked_settings(policy: str | Path, settings: Sequence[str]) -> Any:
    """Return `settings_in_force` after every check that needs no JAX.

    Raises:
        ConfigError: one of them is wrong, or something is not there; one sentence per problem.
    """
    with contextlib.redirect_stdout(sys.stderr):
        cfg = settings_in_force(policy, settings)
        found = [*missing_to_evaluate(cfg), *not_on_hub(cfg.policy), *environment_class(cfg).problems(cfg)]
        if found:
            raise ConfigError("\n".join(dict.fromkeys(found)))
    return cfg


def _subject(cfg: Any) -> "Subject":
    """Return the policy with its settings, after checks that everything it needs is there."""
    from orchestra_jax.tools.base import unreachable  # only now: a mistake needs no JAX
    from orchestra_jax.training.build import keep_compiled, preflight
    from orchestra_jax.training.subject import subject_of

    subject = subject_of(cfg)
    asks = subject.url is not None and cfg.replay.mode is not ReplayMode.replay
    if asks and (found := unreachable(subject.name, subject.url, "policy=")):
        raise ConfigError("\n".join(found))
    # Users come when they come: nobody waits for the others' tools.
    cfg = replace(subject.cfg, rollout=replace(subject.cfg.rollout, lockstep=False))
    keep_compiled(cfg)
    preflight(cfg)
    return replace(subject, cfg=cfg)
