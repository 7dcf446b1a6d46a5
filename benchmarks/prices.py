"""Measures whether policies of the quickstart read the menu: other prices, and tools that no training menu had.

python benchmarks/prices.py outputs/quickstart multirun/seeds/seed=1     # a minute each
python benchmarks/prices.py outputs/makers                               # of +experiment=makers: unseen tools, too
python benchmarks/prices.py outputs/quickstart --csv prices.csv          # a row for each menu and wish
python benchmarks/prices.py --smoke                                      # the oracle on two questions
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.config.compose import compose
from orchestra_jax.envs.quickstart import makers, unseen
from orchestra_jax.envs.registry import ENVIRONMENTS

ROOT = Path(__file__).resolve().parents[1]
PRICES = ("usual", "swapped", "close")
BY_MAKERS = "makers"
MODULE = makers.__name__


def measured(policy: str, questions: int) -> Iterator[dict[str, Any]]:
    """Ask a policy under each price list; yield a row for each of them and each wish.

    A row has the accuracy, the worth of the calls, the number of steps whose best tool is another one than at usual
    prices, and in how many of these that tool was called. A policy of +experiment=makers has rows for menus with tools
    of unseen makers, too: the number of questions in which these are best, and in how many of them they were called.

    Args:
        policy: folder of a run, or `baseline:NAME`.
        questions: number of questions, each under four wishes.
    """
    record = Path(policy, "run.json")
    trained = json.loads(record.read_text())["config"]["env"]["name"] if record.is_file() else "quickstart"
    reads = trained.startswith(MODULE)
    asked = f"unseen_prices,{MODULE}:unseen_makers" if reads else "unseen_prices"
    words = ["+benchmark=quickstart_unseen", f"env.name={trained}", "model.tokenizer=environment"]
    words += [f"evaluation.benchmarks=[{asked}]", f"evaluation.swap_questions={questions}"]
    words += ["evaluation.temperature=1", "evaluation.greedy=false"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "experiments" / "evaluate.py"), *words]
        subprocess.run([*command, f"policy='{policy}'", f"output_dir={folder}"], check=True, stdout=subprocess.DEVNULL)
        cfg = compose(*words)
        environment = ENVIRONMENTS.get(trained)(cfg)
        parts = dict(unseen.unseen_prices(environment, cfg))
        parts |= makers.unseen_makers(environment, cfg) if reads else {}
        for part, tasks in parts.items():
            prices, _, wish = part.partition("_")
            (kept,) = Path(folder, "evaluation", "trajectories", "policy").glob(f"*.{part}.t1.jsonl")
            rows = {row["id"]: row for row in map(json.loads, kept.read_text().splitlines())}
            worths, follows = list[float](), list[bool | None]()
            for usual, task in zip(parts[f"usual_{wish}"], tasks, strict=True):
                turns = [turn for turns in rows[task.id]["sequences"] for turn in turns]
                called = [call["name"] for turn in turns for call in turn["calls"]]
                worths.append(unseen.worth(*makers.under_own_names(task, called)))
                if prices == BY_MAKERS:
                    follows.append(makers.used_where_best(task, called))
                else:
                    follows += unseen.followed(usual, task, called)
            yield {
                "policy": policy,
                "prices": prices,
                "wish": wish,
                "accuracy": float(np.mean([row["solved"] for row in rows.values()])),
                "worth": float(np.mean(worths)),
                "changes": sum(each is not None for each in follows),
                "followed": sum(each is True for each in follows),
            }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", help="folders of runs, or baseline:NAME")
    parser.add_argument("--questions", type=int, default=128)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a row for each menu and wish, too")
    parser.add_argument("--smoke", action="store_true", help="the oracle on two questions")
    options = parser.parse_args()
    if options.smoke:
        options.policies, options.questions = ["baseline:preference_oracle"], 2
    kept = []
    for policy in options.policies:
        print(policy)
        kept += (rows := list(measured(policy, options.questions)))
        for prices in (*PRICES, BY_MAKERS):
            if not (some := [row for row in rows if row["prices"] == prices]):
                continue
            told = {name: np.mean([row[name] for row in some]) for name in ("accuracy", "worth")}
            followed, changes = (sum(row[name] for row in some) for name in ("followed", "changes"))
            how = "used" if prices == BY_MAKERS else "followed"
            follows = f"  {how} {followed} of {changes}" if changes else ""
            print(f"  {prices:8}", "  ".join(f"{name} {value:.3f}" for name, value in told.items()) + follows)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(kept[0]))
            writer.writeheader()
            writer.writerows(kept)


if __name__ == "__main__":
    main()
