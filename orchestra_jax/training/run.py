"""One training run from its configuration: checks, parts, training, report."""

import gc
import json
import math
import sys
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.envs.registry import forecast, make_environment
from orchestra_jax.evaluation.report import print_summary
from orchestra_jax.money.run import Halted
from orchestra_jax.rollout.event_loop import LoopThread
from orchestra_jax.training.build import make_chat, preflight
from orchestra_jax.training.loggers import base as loggers
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.trainer import Interrupted, Trainer


def run(cfg: RunConfig) -> None:
    """Trains until `cfg.steps`, or continues a run in the same folder, and writes its summary and pictures.

    Raises:
        SystemExit: status 2 after one sentence per thing that is missing; 3 after a budget or the record ended the run;
            130 after Ctrl-C.
    """
    # Rollouts make many small objects and few cycles: Python's default looks for cycles so often that it takes a tenth
    # of a quickstart step.
    gc.set_threshold(20_000, 20, 20)
    try:
        preflight(cfg)
        loggers.chosen(cfg)
        chat = make_chat(cfg)
        environment = make_environment(cfg)
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    directory = Path(cfg.output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    if sentence := forecast(cfg):
        print(sentence, flush=True)
    trainer: Trainer | None = None
    with LoopThread() as runner:
        try:
            trainer = Trainer(cfg, environment, chat, runner)
            summary = trainer.train()
        except ConfigError as error:
            print(error, file=sys.stderr)
            raise SystemExit(2) from None
        except Interrupted as stop:
            print(stop, file=sys.stderr)
            raise SystemExit(130) from None
        except Halted as stop:
            print(stop, file=sys.stderr)
            raise SystemExit(3) from None
        finally:
            runner.run(environment.close())
            if trainer is not None:
                trainer.money.save()  # requests under way have ended: their bill is known now
    (directory / "summary.json").write_text(json.dumps(_finite(summary), indent=2, allow_nan=False) + "\n")
    from orchestra_jax.evaluation.figures import draw  # only now: importing matplotlib takes a second

    draw(summary, read_metrics(directory), directory)
    if cfg.evaluation.questions:
        print_summary(summary, directory=directory)
    else:
        print(f"Nothing was evaluated (evaluation.questions=0). Learning curves and summary.json are in {directory}")


def _finite(node: Any) -> Any:
    """The summary for JSON, which has no infinity: the cost per correct answer is null where nothing was solved."""
    if isinstance(node, dict):
        return {key: _finite(value) for key, value in node.items()}
    return None if isinstance(node, float) and not math.isfinite(node) else node
