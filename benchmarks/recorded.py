"""The figures of the recorded answers: every model alone, bounds, and policies by hand.

ORCHESTRA_DATA=... python benchmarks/recorded.py [--path FOLDER] [--test] [--seed 0]
ORCHESTRA_DATA=... python benchmarks/recorded.py --against RUN

The second form compares the policy of a finished evaluation with rivals at its cost: its own models dealt out at
random, the best mix of single models, and guarded nearest neighbours.
"""

import argparse
import itertools
import os
import sys
from pathlib import Path

from against import report
from figures import by_family, figures
from short import parse

from orchestra_jax.envs.recorded.readers import read_recording
from orchestra_jax.money import price_files
from orchestra_jax.money.price_files import PRICES

MINI, SONNET = "gpt-4o-mini-2024-07-18", "claude-3-5-sonnet-20241022"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default=os.path.join(os.environ.get("ORCHESTRA_DATA", "data"), "recorded/zeroeval"))
    parser.add_argument("--prices", default="recorded", help="a list of conf/pricing")
    parser.add_argument("--test", action="store_true", help="the test split alone, the best chosen on the training one")
    parser.add_argument("--seed", type=int, default=0, help="of the split")
    parser.add_argument("--executed", type=float, default=0.97, help="share of CRUX that running the code answers")
    parser.add_argument(
        "--among", nargs="+", default=(), metavar="MODEL", help="also every rule that asks one of these for each kind"
    )
    parser.add_argument(
        "--against", type=Path, metavar="RUN", help="a run's folder with an evaluation; all else is its own"
    )
    parser.add_argument("--benchmark", default="held_out", help="of the run, in the names of its files of trajectories")
    given = parse(parser)
    if given.against is not None:
        try:
            for text in report(given.against, given.benchmark):
                print(text, flush=True)
        except (OSError, ValueError) as error:
            sys.exit(str(error))
        return
    whole, prices = read_recording(given.path), price_files.load(PRICES / f"{given.prices}.yaml")
    ids = whole.split(given.seed)
    some, basis = (whole.of(ids["test"]), whole.of(ids["train"])) if given.test else (whole, None)
    table = figures(some, prices, basis)
    if {MINI, SONNET} <= set(some.models):
        one = {asked.family: MINI for asked in some.questions.values()}
        table["hand: mini, code run"] = by_family(some, prices, one, given.executed, "crux")
        two = {**one, "math-l5": SONNET}
        table["hand: mini, code run, sonnet for MATH"] = by_family(some, prices, two, given.executed, "crux")
    if unknown := sorted(set(given.among) - set(some.models)):
        sys.exit(f"--among names {unknown[0]}; the table has {', '.join(some.models)}.")
    kinds = sorted({asked.family for asked in some.questions.values()} - {"crux"})
    for models in itertools.product(given.among, repeat=len(kinds)):
        rule = dict(zip(kinds, models, strict=True))
        name = "; ".join(f"{model} for {kind}" for kind, model in rule.items())
        table[f"code run; {name}"] = by_family(some, prices, rule, given.executed, "crux")
    print(f"{len(some.questions)} questions, {len(some.models)} models, prices {prices.id}")
    for name, figure in sorted(table.items(), key=lambda pair: -pair[1].accuracy):
        print(f"{name:45} {100 * figure.accuracy:6.2f} %  {figure.cents:8.4f} cents")


if __name__ == "__main__":
    main()
