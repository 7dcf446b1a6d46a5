"""One training run from its configuration: checks, parts, training, report."""

import json
import math
import sys
from pathlib import Path
from typing import Any

from orchestra_jax.config import ConfigError, RunConfig
from orchestra_jax.evaluation.report import draw, print_summary
from orchestra_jax.training.build import make_chat, make_world, preflight
from orchestra_jax.training.loop import LoopThread
from orchestra_jax.training.metrics import read_metrics
from orchestra_jax.training.trainer import Interrupted, Trainer


def run(cfg: RunConfig) -> None:
    """Trains until `cfg.steps`, or continues a run in the same folder, and writes its summary and pictures.

    Raises:
        SystemExit: status 2 after one sentence per thing that is missing; 130 after Ctrl-C.
    """
    try:
        preflight(cfg)
        chat = make_chat(cfg)
        world = make_world(cfg)
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    directory = Path(cfg.output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with LoopThread() as runner:
        try:
            summary = Trainer(cfg, world, chat, runner).train()
        except ConfigError as error:
            print(error, file=sys.stderr)
            raise SystemExit(2) from None
        except Interrupted as stop:
            print(stop, file=sys.stderr)
            raise SystemExit(130) from None
        finally:
            runner.run(world.environment.close())
    (directory / "summary.json").write_text(json.dumps(_finite(summary), indent=2, allow_nan=False) + "\n")
    draw(summary, read_metrics(directory), directory)
    print_summary(summary, directory=directory)


def _finite(node: Any) -> Any:
    """The summary for JSON, which has no infinity: the cost per correct answer is null where nothing was solved."""
    if isinstance(node, dict):
        return {key: _finite(value) for key, value in node.items()}
    return None if isinstance(node, float) and not math.isfinite(node) else node
