"""Makes pages of a run's rollouts that a browser opens: every group of trajectories, side by side, and an index.

python experiments/view.py outputs/quickstart
python experiments/view.py outputs/quickstart --steps 0 --out pages
"""

import argparse
from pathlib import Path

from rich.progress import track

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.training.loggers.pages import pages_of


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder, also of one that still trains")
    parser.add_argument(
        "--steps", type=int, default=20, help="so many, from the first to the last; 0: all (default 20)"
    )
    parser.add_argument("--out", type=Path, help="folder of the pages (default: view in the run's folder)")
    asked = parser.parse_args(arguments)
    try:
        index = pages_of(asked.run, asked.out, asked.steps, lambda steps: track(steps, "pages of steps"))
    except (ConfigError, OSError, ValueError) as error:
        parser.exit(2, f"{error}\n")
    print(f"Open {index.resolve()} in a browser.")


if __name__ == "__main__":
    main()
