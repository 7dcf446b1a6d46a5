"""Evaluate a policy on benchmarks, without training."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from orchestra_jax.config.choices import ReplayMode
from orchestra_jax.config.record import RunRecord, Start, read
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.engines.base import Engine
from orchestra_jax.engines.start import start_engine
from orchestra_jax.envs.base import Baseline, Environment
from orchestra_jax.envs.registry import environment_class, make_environment
from orchestra_jax.evaluation.benchmark_rows import benchmark_rows, cap_rows, interval_lines
from orchestra_jax.evaluation.figures import plain
from orchestra_jax.evaluation.terminal import print_figures
from orchestra_jax.evaluation.turn_caps import draw_turn_caps, widest
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.money.price_book import price_book
from orchestra_jax.money.run_budget import Halted, RunBudget
from orchestra_jax.processes import Processes, joined
from orchestra_jax.rl.setup import device_mesh
from orchestra_jax.rollout.chat import ChatFormat, make_chat
from orchestra_jax.rollout.messages import MessageEngine
from orchestra_jax.tools.base import unreachable
from orchestra_jax.tools.experts.judge import JUDGE_PROMPT
from orchestra_jax.training.build import keep_compiled, make_collector, make_policy, preflight
from orchestra_jax.training.evaluation_progress import ShownCaps, ShownEvaluator
from orchestra_jax.training.forecast import evaluation_forecast, require_benchmarks
from orchestra_jax.training.guard import guarded
from orchestra_jax.training.main import STOPS, device_names, exit_status, working_in
from orchestra_jax.training.policy_weights import engine_params
from orchestra_jax.training.stopping import Interrupted
from orchestra_jax.training.subject import Subject, policy_model, script_of, subject_of
from orchestra_jax.training.summary import write_summary
from orchestra_jax.types import OutOfTime, ReplayMiss

FOLDER = "evaluation"  # of the run's folder


def evaluate(cfg: RunConfig, start: Start | None = None) -> None:
    """Evaluate the policy that `policy` names (`training.subject`); print a table and write summary.json.

    Every trajectory is written as it ends, and after a stop the same command continues from there.

    Args:
        start: command line for run.json in the evaluation's folder; None: this process's.

    Raises:
        SystemExit: see `exit_status`.
    """
    folder = Path(cfg.output_dir) / FOLDER
    with (
        exit_status(),
        joined(cfg.mesh) as processes,
        exit_status(processes, folder=cfg.output_dir, calls=_with_own_calls(cfg, processes).replay.path),
        RunRecord(folder, cfg, "evaluate", start, stops=STOPS, writes=processes.first) as record,
        working_in(folder, processes),
        ExitStack() as parts,
    ):
        _deal_calls(cfg, processes)
        with processes.together():
            subject, chat, environment = _checked(cfg, processes)
            cfg = subject.cfg
            money = RunBudget(cfg.budget, folder, processes)
            limits = widest(cfg.rollout.limits, cfg.evaluation.turn_caps)
            collector = make_collector(replace(cfg, rollout=replace(cfg.rollout, limits=limits)), environment, chat)
            for sentence in (evaluation_forecast(cfg, environment, subject), subject.asked_elsewhere(read(folder))):
                if sentence:
                    print(sentence, flush=True)
            record.begin(parents=subject.parents(), devices=device_names())
        money.share()
        loop = LoopThread()
        parts.enter_context(guarded(folder, loop, cfg.rollout.limits.deadline_s, cfg.checkpoint.grace_s))
        parts.enter_context(loop)
        parts.callback(money.close)
        tools = parts.enter_context(ExitStack())
        tools.callback(lambda: loop.run(environment.close()))
        try:
            with engine_of(subject, environment, folder, processes, loop, chat) as engine:
                kind = ShownCaps if cfg.evaluation.turn_caps else ShownEvaluator
                evaluator = kind(cfg, collector, engine, money.run, folder / "trajectories", processes)
                with evaluator.shown(lambda: money.spent.usd) if processes.first else nullcontext():
                    figures = loop.run(evaluator.evaluate("policy", subject.identity(), policy_model(cfg)))
                if cfg.tools.judge != "match" and processes.first:
                    _write_disagreements(evaluator.disagreements, folder)
                found = {
                    "name": cfg.name,
                    "policy": subject.name,
                    "benchmarks": figures,
                    "judge": None if cfg.tools.judge == "match" else {"model": cfg.tools.judge, "prompt": JUDGE_PROMPT},
                    "baselines": loop.run(evaluator.baselines()),
                }
        except (BudgetExceeded, ReplayMiss) as error:
            raise Halted(
                f"{error} The evaluation ended before its figures were known; the same command goes on from what was "
                "finished."
            ) from None
        except OutOfTime as error:  # nobody tells an evaluation to stop: its servers are gone
            raise ConfigError(
                f"{error} The evaluation ended before its figures were known; with servers that answer the same "
                "command goes on from what was finished."
            ) from None
        except KeyboardInterrupt:  # there is no checkpoint to go on from
            raise Interrupted("Stopped at once; the same command goes on from what was finished.") from None
        tools.close()  # calls whose callers had left are paid for all the same
        found["spent"] = money.summary()
        if processes.first:
            _report(found, folder)


def _report(found: dict[str, Any], folder: Path) -> None:
    rows = [row for name, figures in found["benchmarks"].items() for row in benchmark_rows(name, figures, "bold")]
    rows += [(plain(name), figures, "dim") for name, figures in found["baselines"].items()]
    write_summary(found, folder)
    print_figures(Console(), found["policy"], rows, interval_lines(rows))
    if by_cap := [row for name, figures in found["benchmarks"].items() for row in cap_rows(name, figures)]:
        print_figures(Console(), f"{found['policy']}, by the most turns", by_cap)
        draw_turn_caps(by_cap, folder)
    print(f"summary.json is in {folder}")
    for figures in found["benchmarks"].values():
        if told := (figures.get("greedy") or figures).get("verdict"):
            print(told)


def _write_disagreements(disagreements: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write the answers that judge and exact match differ about, a line of JSON each."""
    lines = "".join(json.dumps(each) + "\n" for each in disagreements)
    (folder / "disagreements.jsonl").write_text(lines, encoding="utf-8")


def _checked(cfg: RunConfig, processes: Processes) -> tuple[Subject, ChatFormat | None, Environment]:
    """Return the policy, its chat format and the environment, after checks that everything they need is there.

    Raises:
        ConfigError: something is missing; one sentence for each thing.
    """
    require_benchmarks(cfg)
    subject = subject_of(_with_own_calls(cfg, processes))
    cfg = subject.cfg
    keep_compiled(cfg)
    preflight(cfg, processes)
    if subject.own:
        return subject, make_chat(cfg), make_environment(cfg)
    asks = subject.url is not None and cfg.replay.mode is not ReplayMode.replay
    if asks and (problems := unreachable(subject.name, subject.url, "policy=")):
        raise ConfigError("\n".join(problems))
    environment = make_environment(cfg)
    if subject.baseline is not None:
        script_of(subject, environment)
    # The policy uses no tokens of ours, but baselines do.
    words = replace(cfg, model=replace(cfg.model, tokenizer="environment"))
    own = environment.baselines() and environment_class(cfg).chat(cfg) is not None
    return subject, make_chat(words) if own else None, environment


def _with_own_calls(cfg: RunConfig, processes: Processes) -> RunConfig:
    """Give each process a file of recorded calls of its own, if several machines would write one."""
    replay = cfg.replay
    if processes.count == processes.beside or replay.mode in (ReplayMode.off, ReplayMode.replay) or not replay.path:
        return cfg
    return replace(cfg, replay=replace(replay, path=f"{replay.path}.{processes.index}"))


def _deal_calls(cfg: RunConfig, processes: Processes) -> None:
    """Give this process the calls that an earlier start with other processes recorded, so that none is paid twice."""
    if cfg.replay.mode is ReplayMode.replay_or_record and cfg.replay.path:
        from orchestra_jax.money.records import deal

        try:
            deal(Path(cfg.replay.path), Path(str(_with_own_calls(cfg, processes).replay.path)), processes)
        except (OSError, ValueError) as error:
            raise ConfigError(str(error)) from error


@contextmanager
def engine_of(
    subject: Subject,
    environment: Environment | None,
    folder: Path,
    processes: Processes,
    loop: LoopThread,
    chat: ChatFormat | None,
) -> Iterator[Engine | MessageEngine | Baseline]:
    """Yield what speaks for the policy, for as long as the block lasts. A baseline needs the environment."""
    cfg = subject.cfg
    if subject.baseline is not None and environment is not None:
        yield script_of(subject, environment)
        return
    if subject.url is not None:
        with processes.together():
            from orchestra_jax.rollout.endpoint import make_endpoint

            endpoint = make_endpoint(cfg, subject.url, price_book(cfg).base, processes)
        try:
            yield endpoint
        finally:
            loop.run(endpoint.close())
        return
    assert chat is not None
    lora, base = None, None
    with processes.together():
        mesh = device_mesh(cfg.mesh)
        model, params = make_policy(cfg, chat, mesh)
        if subject.adapters is not None:
            from orchestra_jax.models.lora import load_peft

            lora, trained = load_peft(subject.adapters, model)
            # On no device: the policy may be on those of all processes.
            base, params = params, jax.tree.map(np.asarray, trained)
    params = engine_params(cfg.rollout, params, base, lora, mesh)
    del base  # its memory is the engine's
    serving = start_engine(
        cfg.rollout,
        model,
        params,
        0,
        tokenizer_size=len(chat.tokenizer),
        directory=folder,
        loop=loop,
        processes=processes,
    )
    del params
    try:
        yield serving.engine
    finally:
        loop.run(serving.close())
