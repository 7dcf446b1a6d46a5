"""Measures whether policies of the quickstart read the menu: their calls where rivals' offers are exchanged.

python benchmarks/prices.py outputs/quickstart multirun/seeds/seed=1     # a minute each
python benchmarks/prices.py outputs/quickstart --csv prices.csv          # a row for each price list and wish
python benchmarks/prices.py outputs/new_tools --new-tools                # under names that no training has, too
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
from orchestra_jax.envs.quickstart import unseen
from orchestra_jax.envs.quickstart.environment import PAIRED_KINDS
from orchestra_jax.envs.registry import make_environment

ROOT = Path(__file__).resolve().parents[1]
PRICES = ("usual", "swapped", "close")


def measured(policy: str, questions: int, *, new_tools: bool = False) -> Iterator[dict[str, Any]]:
    """Ask a policy under each price list, and with new names at usual prices; yield a row for each and each wish.

    A row has the accuracy, the worth of the calls, the number of steps whose best tool is another one than at usual
    prices, or has another name, and in how many of these that tool was called.

    Args:
        policy: folder of a run, or `baseline:NAME`.
        questions: number of questions, each under four wishes.
        new_tools: show the menus of +experiment=new_tools, and at last some tools under names that no training has.
    """
    asked = ["+benchmark=quickstart_unseen", "evaluation.benchmarks=[unseen_prices]"]
    if new_tools:
        asked = ["+benchmark=new_tools"]
    words = [*asked, "model.tokenizer=environment", f"evaluation.swap_questions={questions}"]
    words += ["evaluation.temperature=1", "evaluation.greedy=false"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "experiments" / "evaluate.py"), *words]
        ran = subprocess.run([*command, f"policy='{policy}'", f"output_dir={folder}"], stdout=subprocess.DEVNULL)
        if ran.returncode:  # it has said why
            raise SystemExit(ran.returncode)
        cfg = compose(*words)
        world = make_environment(cfg)
        parts = {**unseen.unseen_prices(world, cfg), **(unseen.unseen_tools(world, cfg) if new_tools else {})}
        for prices, names in (*((each, "usual") for each in PRICES), *([("usual", "new")] if new_tools else [])):
            for wish in PAIRED_KINDS:
                part = f"{'renamed' if names == 'new' else prices}_{wish}"
                [kept] = Path(folder, "evaluation", "trajectories", "policy").glob(f"*.{part}.t1.jsonl")
                rows = {row["id"]: row for row in map(json.loads, kept.read_text().splitlines())}
                worths, follows = list[float](), list[bool]()
                for usual, task in zip(parts[f"usual_{wish}"], parts[part], strict=True):
                    turns = [turn for turns in rows[task.id]["sequences"] for turn in turns]
                    called = [call["name"] for turn in turns for call in turn["calls"]]
                    worths.append(unseen.worth(task, called))
                    follows += unseen.followed(usual, task, called)
                yield {
                    "policy": policy,
                    "prices": prices,
                    "names": names,
                    "wish": wish,
                    "accuracy": float(np.mean([row["solved"] for row in rows.values()])),
                    "worth": float(np.mean(worths)),
                    "changes": len(follows),
                    "followed": sum(follows),
                }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", help="folders of runs, or baseline:NAME")
    parser.add_argument("--questions", type=int, default=128)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the rows of each policy, too")
    parser.add_argument(
        "--new-tools",
        action="store_true",
        help="ask policies of +experiment=new_tools, with names of tools that no training has, too",
    )
    parser.add_argument("--smoke", action="store_true", help="the oracle on two questions")
    options = parser.parse_args()
    if options.smoke:
        options.policies, options.questions, options.new_tools = ["baseline:preference_oracle"], 2, True
    kept = []
    for policy in options.policies:
        print(policy)
        kept += (rows := list(measured(policy, options.questions, new_tools=options.new_tools)))
        for prices, names in dict.fromkeys((row["prices"], row["names"]) for row in rows):
            some = [row for row in rows if (row["prices"], row["names"]) == (prices, names)]
            told = {name: np.mean([row[name] for row in some]) for name in ("accuracy", "worth")}
            followed, changes = (sum(row[name] for row in some) for name in ("followed", "changes"))
            follows = f"  followed {followed} of {changes}" if changes else ""
            print(
                f"  {'new names' if names == 'new' else prices:9}",
                "  ".join(f"{name} {value:.3f}" for name, value in told.items()) + follows,
            )
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(kept[0]))
            writer.writeheader()
            writer.writerows(kept)


if __name__ == "__main__":
    main()
