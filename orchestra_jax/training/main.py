"""One training run from its configuration: checks, parts, warm start, policy steps, report."""

import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax

from orchestra_jax.config.cli import DISK_FULL, INTERRUPTED
from orchestra_jax.config.record import RunRecord, Start, parent
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.io import hub
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.models import checkpoint
from orchestra_jax.money.run_budget import Halted, RunBudget
from orchestra_jax.processes import Processes, joined
from orchestra_jax.processes.lock import alone_in
from orchestra_jax.rollout.chat import ChatFormat, make_chat
from orchestra_jax.training.build import keep_compiled, preflight
from orchestra_jax.training.forecast import forecast
from orchestra_jax.training.loggers.base import RunLog, chosen
from orchestra_jax.training.stopping import (
    Interrupted,
    disk_full,
    disk_full_sentence,
    end_now,
    handling,
)
from orchestra_jax.training.subject import POLICY_FOLDER
from orchestra_jax.training.summary import report, summary
from orchestra_jax.training.trainer import Trainer
from orchestra_jax.training.warm_start import warm_start

_EXIT_STATUS = {ConfigError: 2, Halted: 3, Interrupted: INTERRUPTED}


@contextmanager
def exit_status(processes: Processes | None = None, folder: str | None = None) -> Iterator[None]:
    """Ends the process with one sentence, not a stack trace, where the user can mend or wanted what happened.

    Args:
        processes: of the run; what ends all of them is told by the first.
        folder: of the run.

    Raises:
        SystemExit: status 2 after one sentence per thing that is missing; 3 after a budget or the record ended the run;
            5 on a full disk; 130 after Ctrl-C, SIGTERM or SIGHUP.
    """
    try:
        with handling(end_now):
            yield
    except KeyboardInterrupt:
        print("Stopped at once; the same command continues from the last checkpoint.", file=sys.stderr, flush=True)
        raise SystemExit(INTERRUPTED) from None
    except tuple(_EXIT_STATUS) as end:
        if processes is None or processes.first or not processes.agreed:
            print(end, file=sys.stderr, flush=True)
        raise SystemExit(next(status for kind, status in _EXIT_STATUS.items() if isinstance(end, kind))) from None
    except Exception as error:
        if not disk_full(error):
            raise
        if processes is None or processes.first or not processes.agreed:
            print(disk_full_sentence(folder), file=sys.stderr, flush=True)
        raise SystemExit(DISK_FULL) from None


def run(cfg: RunConfig, opening: str = "", start: Start | None = None) -> None:
    """Trains until `cfg.steps`, or continues a run in the same folder, and writes its summary and pictures.

    Args:
        opening: what the first process prints before anything else.
        start: for run.json; None: this process's command line.

    Raises:
        SystemExit: see `exit_status`.
    """
    # Rollouts make many small objects and few cycles: Python's default looks for cycles so often that it takes a tenth
    # of a quickstart step.
    gc.set_threshold(20_000, 20, 20)
    with (
        exit_status(),
        joined(cfg.mesh) as processes,
        exit_status(processes, cfg.output_dir),
        recorded(cfg, Path(cfg.output_dir), "train", start, processes) as record,
    ):
        if opening:
            print(opening, flush=True)
        with processes.together():  # what cannot run leaves no folder
            keep_compiled(cfg)
            preflight(cfg, processes)
            chosen(cfg)
        with working_in(Path(cfg.output_dir), processes):
            _train(cfg, processes, record)


def recorded(cfg: RunConfig, folder: Path, kind: str, start: Start | None, processes: Processes) -> RunRecord:
    """The record of a start in this folder, see `config.record`; of several processes the first writes it."""
    return RunRecord(folder, cfg, kind, start, stops=(Halted, Interrupted), writes=processes.first)


@contextmanager
def working_in(folder: Path, processes: Processes) -> Iterator[None]:
    """Makes the folder, and keeps every other run out of it.

    Raises:
        ConfigError: another run is at work in it.
    """
    with ExitStack() as held:
        with processes.together():
            if processes.first:
                folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(alone_in(folder))
        yield


def _train(cfg: RunConfig, processes: Processes, record: RunRecord) -> None:
    directory = Path(cfg.output_dir)
    with processes.together():
        chat, environment = make_chat(cfg), make_environment(cfg)
        if sentence := forecast(cfg):
            print(sentence, flush=True)
        money = RunBudget(cfg.budget, directory, processes)
    with LoopThread() as loop:
        try:
            trainer = Trainer(cfg, environment, chat, money, loop, processes)
            origin = trainer.origin
            if origin is not None and processes.first:
                at = f"step {trainer.state.step} of {trainer.state.phase}"
                print(f"Continues from {origin} ({at}).", flush=True)
            with processes.together():
                record.begin(
                    origin=None if origin is None else origin.name, parents=parents(cfg), devices=device_names()
                )
            done = trainer.state.step if trainer.state.phase == "policy" else 0
            with trainer.running(), RunLog(cfg, done + 1, writes=processes.first) as log:
                if trainer.state.phase == "warm_start":
                    if trainer.warm is not None:
                        warm_start(trainer, trainer.warm, environment)
                    trainer.begin_policy_phase()
                trainer.optimise(log)
                notes = trainer.state.notes
                notes["after"] = trainer.evaluate("after") if trainer.state.step else notes["before"]
                if cfg.checkpoint.export:
                    _export(trainer, chat)
                found = summary(trainer)
        finally:
            loop.run(environment.close())
            money.close()  # requests under way have ended: their bill is known now
    if processes.first:
        report(found, directory)


def parents(cfg: RunConfig) -> list[dict[str, Any]]:
    """What the policy of a run is made from, for its record."""
    found = [] if cfg.model.path is None else [parent("model.path", hub.local(cfg.model.path, "model"))]
    return found if cfg.model.lora.path is None else [*found, parent("model.lora.path", Path(cfg.model.lora.path))]


def device_names() -> list[str]:
    """The kind of each device of this process."""
    return [device.device_kind for device in jax.local_devices()]


def _export(trainer: Trainer, chat: ChatFormat) -> None:
    """Writes the policy so that transformers and SGLang load it, or its adapters so that PEFT does."""
    folder, trained = trainer.directory / POLICY_FOLDER, trainer.state.trained.params
    if trainer.lora is None:
        checkpoint.save(folder, trainer.model, trained, tokenizer=chat.tokenizer, overwrite=True)
    else:
        from orchestra_jax.models.lora import save_peft

        base = str(trainer.cfg.model.path)
        save_peft(folder, trainer.model, trained, trainer.lora, base, tokenizer=chat.tokenizer, overwrite=True)
    print(f"The policy is in {folder}" + (" (adapters in PEFT's format)." if trainer.lora else "."), flush=True)
