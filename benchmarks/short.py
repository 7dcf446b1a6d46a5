"""The short form of every benchmark: `--smoke` runs it in seconds; its figures mean nothing."""

import argparse
import sys

# A quickstart whose policy has one layer, in few shapes: those of tests/training/test_trainer.py.
SMALL = (
    "model.family=tests.training.micro:OneLayer", "rollout.slots=8", "rollout.widths=[64]",
    "algorithm.row_widths=[192]", "algorithm.micro_tokens=768",
)  # fmt: skip


def parse(parser: argparse.ArgumentParser, *smoke: str) -> argparse.Namespace:
    """Parse the command line, with `--smoke` standing for the arguments `smoke`; further ones win over these."""
    parser.add_argument("--smoke", action="store_true", help=f"a try of seconds: {' '.join(smoke)}")
    arguments = sys.argv[1:]
    if "--smoke" in arguments:
        arguments = [*smoke, *(each for each in arguments if each != "--smoke")]
    return parser.parse_args(arguments)
