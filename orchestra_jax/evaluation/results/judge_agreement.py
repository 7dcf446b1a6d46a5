"""Asks the judge of a configuration about a labelled sample, within its budgets and record; writes what came out."""

import json
from pathlib import Path

from orchestra_jax.config.choices import ReplayMode
from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.evaluation.results.labelled import agreement, read_sample, told, verdicts
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.money.budgets import BudgetExceeded
from orchestra_jax.money.price_book import price_book
from orchestra_jax.money.run_budget import Halted, RunBudget
from orchestra_jax.processes.lock import alone_in
from orchestra_jax.tools.experts.judge import JUDGE_PROMPT
from orchestra_jax.tools.experts.run_experts import make_judge
from orchestra_jax.types import ReplayMiss

FILE_NAME = "judge.json"


def measure(cfg: WorldConfig, folder: Path) -> None:
    """Prints how right `tools.judge` is on `evaluation.judge_sample` and writes judge.json into the folder.

    With replay.mode=replay_or_record, as experiments/judge.py has it, every verdict is recorded as it comes: the same
    command asks for none of them again. With evaluation.dry_run it only tells the cost.

    Raises:
        ConfigError: there is no judge, no sample, a bad row, or the judge cannot be asked.
        Halted: the budget or the record ended it.
    """
    if not cfg.evaluation.judge_sample:
        raise ConfigError("There is no sample: give --sample FILE, with rows {question, reference, answer, correct}.")
    sample = read_sample(cfg.evaluation.judge_sample)
    with LoopThread() as loop:
        judge, close = make_judge(cfg)
        try:
            print(_forecast(cfg, len(sample)), flush=True)
            if cfg.evaluation.dry_run:
                return
            folder.mkdir(parents=True, exist_ok=True)
            with alone_in(folder):
                money = RunBudget(cfg.budget, folder)
                try:
                    figures = agreement(sample, loop.run(verdicts(judge, sample, money.run)))
                except (BudgetExceeded, ReplayMiss) as error:
                    kept = cfg.replay.mode is ReplayMode.replay_or_record
                    again = " The same command goes on; no verdict is paid for twice." if kept else ""
                    raise Halted(f"{error}{again}") from None
                finally:
                    money.close()
                about = {"model": cfg.tools.judge, "prompt": JUDGE_PROMPT, "sample": cfg.evaluation.judge_sample}
                text = json.dumps({**about, **figures, "spent": money.summary()}, indent=2)
                (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")
        finally:
            loop.run(close())
    print(f"{told(figures)}\n{FILE_NAME} is in {folder}")


def _forecast(cfg: WorldConfig, count: int) -> str:
    """What the verdicts will cost, in a sentence."""
    if cfg.replay.mode is ReplayMode.replay:
        return f"{count} verdicts of {cfg.tools.judge}, all of them recorded: they cost nothing."
    plan, limit = cfg.plan, cfg.budget.run_usd
    usd = count * price_book(cfg).base.cost(
        cfg.tools.judge, prompt_tokens=plan.call_input, completion_tokens=plan.call_output
    )
    end = "no budget.run_usd is set" if limit is None else f"budget.run_usd={limit:g} ends it"
    return (
        f"{count} verdicts of {cfg.tools.judge} cost about ${usd:.2f} ({plan.call_input} + {plan.call_output} tokens "
        f"each, less what is recorded); {end}."
    )
