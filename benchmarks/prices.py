"""Measures whether policies of the quickstart read the menu: their calls where rivals' offers are exchanged.

python benchmarks/prices.py outputs/quickstart multirun/seeds/seed=1     # a minute each
python benchmarks/prices.py --smoke                                      # the oracle on two questions
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from orchestra_jax.config.compose import compose
from orchestra_jax.envs.quickstart import unseen
from orchestra_jax.envs.quickstart.environment import PAIRED_KINDS, QuickstartEnvironment

ROOT = Path(__file__).resolve().parents[1]


def measured(policy: str, questions: int) -> dict[str, dict[str, float]]:
    """Ask a policy under each price list; return accuracy, worth and the share that follows, by price list.

    Args:
        policy: folder of a run, or `baseline:NAME`.
        questions: number of questions, each under four wishes.
    """
    asked = ("+benchmark=quickstart_unseen", "evaluation.benchmarks=[unseen_prices]", "model.tokenizer=environment")
    words = [*asked, f"evaluation.swap_questions={questions}", "evaluation.temperature=1", "evaluation.greedy=false"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "experiments" / "evaluate.py"), *words]
        subprocess.run([*command, f"policy='{policy}'", f"output_dir={folder}"], check=True, stdout=subprocess.DEVNULL)
        cfg = compose(*words)
        parts = unseen.unseen_prices(QuickstartEnvironment(cfg), cfg)
        rows = {}
        for part in parts:
            kept = Path(folder, "evaluation", "trajectories", "policy", f"unseen_prices.{part}.t1.jsonl")
            rows[part] = {row["id"]: row for row in map(json.loads, kept.read_text().splitlines())}
    found = {}
    for prices in ("usual", "swapped", "close"):
        solved, worths, follows = list[bool](), list[float](), list[bool]()
        for wish in PAIRED_KINDS:
            usual, part = parts[f"usual_{wish}"], f"{prices}_{wish}"
            for before, task in zip(usual, parts[part], strict=True):
                row = rows[part][task.id]
                called = [call["name"] for turns in row["sequences"] for turn in turns for call in turn["calls"]]
                solved.append(row["solved"])
                worths.append(unseen.worth(task, called))
                follows += unseen.followed(before, task, called)
        found[prices] = {"accuracy": float(np.mean(solved)), "worth": float(np.mean(worths))}
        if follows:
            found[prices] |= {"followed": float(np.mean(follows)), "changes": float(len(follows))}
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", help="folders of runs, or baseline:NAME")
    parser.add_argument("--questions", type=int, default=128)
    parser.add_argument("--smoke", action="store_true", help="the oracle on two questions")
    options = parser.parse_args()
    if options.smoke:
        options.policies, options.questions = ["baseline:preference_oracle"], 2
    for policy in options.policies:
        print(policy)
        for prices, figures in measured(policy, options.questions).items():
            print(f"  {prices:8}", "  ".join(f"{name} {value:.3g}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
