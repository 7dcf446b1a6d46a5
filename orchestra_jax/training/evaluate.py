"""A policy on the run's benchmarks, without training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from orchestra_jax import hub
from orchestra_jax.config.record import Record, Start, parent
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.engines.start import first_model, start_engine
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.evaluation.report import benchmark_rows, figures_table, plain
from orchestra_jax.evaluation.runner import Evaluator
from orchestra_jax.models.lora import load_peft
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.money.replay import ReplayMiss
from orchestra_jax.money.run import Halted, RunBudget
from orchestra_jax.processes import Processes, joined
from orchestra_jax.rl.setup import device_mesh
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.rollout.event_loop import LoopThread
from orchestra_jax.training.build import keep_compiled, make_collector, make_policy, preflight
from orchestra_jax.training.run import POLICY_FOLDER, device_names, exit_status, parents, recorded, working_in
from orchestra_jax.training.summary import write_summary
from orchestra_jax.training.weights import engine_params

FOLDER = "evaluation"  # of the run's folder


def evaluate(cfg: RunConfig, start: Start | None = None) -> None:
    """Evaluates model.path, or else the policy that the run of this name exported: a table and a summary.json.

    Every trajectory is written as it ends, and the same command goes on from there after a stop.

    Args:
        start: for the record in the evaluation's folder, run.json; None: this process's command line.

    Raises:
        SystemExit: see `exit_status`.
    """
    with (
        exit_status(),
        joined(cfg.mesh) as processes,
        exit_status(processes, cfg.output_dir),
        recorded(cfg, Path(cfg.output_dir) / FOLDER, "evaluate", start, processes) as record,
        working_in(Path(cfg.output_dir) / FOLDER, processes),
    ):
        try:
            found = _evaluate(cfg, processes, record)
        except (BudgetExceeded, ReplayMiss) as error:
            raise Halted(f"{error} The evaluation ended before its figures were known.") from None
        if processes.first:
            _report(cfg, found)


def _report(cfg: RunConfig, found: dict[str, Any]) -> None:
    rows = [row for name, figures in found["benchmarks"].items() for row in benchmark_rows(name, figures, "bold")]
    rows += [(plain(name), figures, "dim") for name, figures in found["baselines"].items()]
    folder = Path(cfg.output_dir) / FOLDER
    write_summary(found, folder)
    Console().print(figures_table(found["policy"], rows))
    print(f"summary.json is in {folder}")


def _evaluate(cfg: RunConfig, processes: Processes, record: Record) -> dict[str, Any]:
    folder = Path(cfg.output_dir) / FOLDER
    with processes.together():
        cfg, adapters = _policy_of(cfg)
        keep_compiled(cfg)
        preflight(cfg, processes)
        chat, environment = make_chat(cfg), make_environment(cfg)
        money = RunBudget(cfg.budget, folder, processes)
        collector = make_collector(cfg, environment, chat)
        mesh = device_mesh(cfg.mesh)
        model, params = make_policy(cfg, chat, mesh)
        if adapters is not None:
            lora, trained = load_peft(adapters, model)
            trained = jax.tree.map(np.asarray, trained)  # on no device: the policy may be on those of all processes
        made_from = parents(cfg) + ([parent("adapters", adapters)] if adapters is not None else [])
        record.begin(parents=made_from, devices=device_names())
    money.share()
    if adapters is None:
        params = engine_params(cfg, params, None, None, mesh)
    else:
        params = engine_params(cfg, trained, params, lora, mesh)
    with processes.together():
        if processes.first and processes.count > 1:
            first_model(cfg, model, params, folder)
    with LoopThread() as loop:
        with processes.together():
            starting = start_engine(
                cfg, model, params, 0, tokenizer_size=len(chat.tokenizer), directory=folder, processes=processes
            )
            serving = loop.run(starting)
        try:
            trajectories = folder / "trajectories"
            evaluator = Evaluator(
                cfg, environment, collector, serving.engine, money.run, trajectories, processes=processes
            )
            return {
                "name": cfg.name,
                "policy": str(adapters or cfg.model.path),
                "benchmarks": loop.run(evaluator.evaluate("policy", _weights(cfg, adapters))),
                "baselines": loop.run(evaluator.baselines()),
                "spent": money.summary(),
            }
        finally:
            loop.run(serving.close())
            loop.run(environment.close())
            money.close()


def _weights(cfg: RunConfig, adapters: Path | None) -> str:
    """What tells these weights from others: the names, sizes and times of their files."""
    folders = [hub.local(str(cfg.model.path), "model"), *([adapters] if adapters else [])]
    files = [file for folder in folders for file in sorted(folder.glob("*.safetensors"))]
    return repr([(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files])


def _policy_of(cfg: RunConfig) -> tuple[RunConfig, Path | None]:
    """The config with the policy's folder as model.path, and the folder of adapters on top of it, if any.

    Raises:
        ConfigError: there is neither a model.path nor an exported policy, or there are no benchmarks.
    """
    if not (cfg.evaluation.questions and cfg.evaluation.benchmarks):
        raise ConfigError("There is nothing to evaluate on: set evaluation.benchmarks and evaluation.questions.")
    exported = Path(cfg.output_dir) / POLICY_FOLDER
    if (exported / "adapter_config.json").exists() and cfg.model.path is not None and cfg.model.lora.rank:
        return cfg, exported
    if cfg.model.path is None and not exported.exists():
        raise ConfigError(
            f"There is no policy to evaluate: set model.path=FOLDER, or train first ({exported} is not there)."
        )
    return replace(cfg, model=replace(cfg.model, path=cfg.model.path or str(exported))), None
