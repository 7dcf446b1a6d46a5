"""The short form of every benchmark: `--smoke` runs it in seconds; its figures mean nothing."""

import argparse
import sys


def parse(parser: argparse.ArgumentParser, *smoke: str) -> argparse.Namespace:
    """Parse the command line, with `--smoke` standing for the arguments `smoke`; further ones win over these."""
    parser.add_argument("--smoke", action="store_true", help=f"a try of seconds: {' '.join(smoke)}")
    arguments = sys.argv[1:]
    if "--smoke" in arguments:
        arguments = [*smoke, *(each for each in arguments if each != "--smoke")]
    return parser.parse_args(arguments)
