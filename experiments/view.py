"""Make pages of a run's rollouts for a browser: every group of trajectories side by side, and an index; docs/view.md.

python experiments/view.py outputs/quickstart
python experiments/view.py outputs/quickstart --steps 0
python experiments/view.py outputs/quickstart --steps 5 --out pages
python experiments/view.py outputs/quickstart --inspect
"""

from collections.abc import Iterable
from pathlib import Path

from orchestra_jax.config.help import Parser


def main(arguments: list[str] | None = None) -> None:
    """Write the pages, or the logs for Inspect."""
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, help="a run's folder, also of one that still trains")
    parser.add_argument(
        "--steps", type=int, default=20, help="so many, from the first to the last; 0: all (default 20)"
    )
    parser.add_argument("--inspect", action="store_true", help="logs for `inspect view` instead of pages")
    parser.add_argument("--out", type=Path, help="folder (default: view, or inspect, in the run's folder)")
    asked = parser.parse_args(arguments)
    if not asked.run.is_dir():
        parser.exit(2, f"{str(asked.run)!r} is no folder of a run.\n")
    from rich.progress import track  # only now: --help answers at once

    from orchestra_jax.training.loggers.pages import inspect_logs_of, pages_of

    def tracked(steps: list[int]) -> Iterable[int]:
        return track(steps, "steps")

    try:
        if asked.inspect:
            logs = inspect_logs_of(asked.run, asked.out, asked.steps, tracked)
            print(f"{len(logs)} logs; look at them with: inspect view --log-dir {logs[0].parent}")
        else:
            print(f"Open {pages_of(asked.run, asked.out, asked.steps, tracked).resolve()} in a browser.")
    except (ImportError, OSError, ValueError) as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
