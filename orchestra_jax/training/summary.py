"""Write summary.json and the pictures of a finished run, and print its table."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestra_jax.evaluation.benchmarks import HELD_OUT, PREFERENCE_SWAP
from orchestra_jax.evaluation.terminal import print_summary
from orchestra_jax.io.whole import write_whole
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.trainer import Trainer

FILE_NAME = "summary.json"


def summary(trainer: Trainer) -> dict[str, Any]:
    """Return the summary, as `evaluation.terminal` has it and without `spent`, of a run whose last step is done."""
    cfg, notes, seconds = trainer.cfg, trainer.state.notes, trainer.seconds()

    def by_phase(benchmark: str) -> dict[str, Any]:
        return {phase: notes[phase].get(benchmark, {}) for phase in ("before", "after")}

    others = sorted({*notes["before"], *notes["after"]} - {HELD_OUT, PREFERENCE_SWAP})
    return {
        "name": cfg.name,
        "seed": cfg.seed,
        "steps": trainer.state.step,
        "seconds": seconds,
        "parts": parts(trainer, seconds),
        "copy_accuracy": notes.get("copy_accuracy"),
        "enumerate_calls": cfg.algorithm.enumerate_calls,
        "preference_swap": by_phase(PREFERENCE_SWAP),
        "baselines": trainer.loop.run(trainer.evaluator.baselines()),
        **by_phase(HELD_OUT),
        **({"benchmarks": {name: by_phase(name) for name in others}} if others else {}),
    }


def parts(trainer: Trainer, whole: float) -> dict[str, float]:
    """Return the seconds of each part of the run, which add up to its `whole` seconds."""
    rows, found = read_metrics(trainer.directory), dict(trainer.state.notes.get("seconds") or {})
    if rows and found:
        found |= {name: sum(row[f"time/{name[:-1]}"] for row in rows) for name in ("rollouts", "updates")}
        found["other"] = rows[-1]["seconds"] - sum(found.values())
        found["evaluation after"] = whole - rows[-1]["seconds"]
    return found


def write_summary(found: Mapping[str, Any], directory: Path) -> None:
    """Write summary.json, so that a killed process leaves the new or the old file whole."""
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / FILE_NAME, json.dumps(_finite(found), indent=2, allow_nan=False) + "\n")


def report(found: Mapping[str, Any], directory: Path) -> None:
    """Write summary.json and the pictures, and print the table if something was evaluated."""
    from orchestra_jax.evaluation.pictures import draw  # only now: importing matplotlib takes a second
    from orchestra_jax.evaluation.run_page import write_page

    write_summary(found, directory)
    draw(found, rows := read_metrics(directory), directory)
    write_page(found, directory, rows)
    if found.get("after") or found.get("benchmarks"):
        print_summary(found, directory)
    else:
        why = "evaluation.questions=0, or no evaluation.benchmarks"
        print(f"Nothing was evaluated ({why}). Learning curves and summary.json are in {directory}")


def _finite(node: Any) -> Any:
    """Return the summary without infinities, which JSON lacks: a cost per correct answer of none solved is null."""
    if isinstance(node, Mapping):
        return {key: _finite(value) for key, value in node.items()}
    return None if isinstance(node, float) and not math.isfinite(node) else node
