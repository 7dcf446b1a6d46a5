"""Measures what a quickstart costs in CPU-seconds, beside that of an older commit, one after the other.

python benchmarks/quickstart.py                 # this checkout alone
python benchmarks/quickstart.py --old 1250446   # the older commit first, in a worktree of its own
python benchmarks/quickstart.py --smoke         # one step
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHORT = (
    "steps=1", "warm_start.steps=1", "warm_start.demonstrations=64", "warm_start.min_copy_accuracy=0",
    "algorithm.tasks_per_step=4", "algorithm.group_size=2", "evaluation.questions=2", "evaluation.swap_questions=1",
)  # fmt: skip


def speed() -> float:
    """Return the seconds that Python takes to add five million numbers here."""
    began, total = time.perf_counter(), 0
    for number in range(5_000_000):
        total += number
    return time.perf_counter() - began


def measured(root: Path, words: tuple[str, ...]) -> dict[str, float]:
    """Run the quickstart of a checkout with an empty compilation cache; return CPU-seconds and figures."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "experiments/train.py", f"output_dir={folder}/run"]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        own = {"PYTHONPATH": str(root), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "JAX_PLATFORMS": "cpu"}
        words = (f"compilation_cache={folder}/compiled", *words)
        subprocess.run([*command, *words], cwd=root, env={**os.environ, **own}, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = json.loads(Path(folder, "run", "summary.json").read_text())["after"]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "CPU-seconds": cpu,
        "seconds": time.monotonic() - began,
        "accuracy": found["accuracy"],
        "utility": found["utility"],
        "calls": found["calls"],
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", metavar="COMMIT", help="measure this commit too")
    parser.add_argument("--smoke", action="store_true", help="one step")
    options = parser.parse_args()
    words = SHORT if options.smoke else ()
    print(f"Python adds five million numbers in {speed():.2f} s.")
    with tempfile.TemporaryDirectory() as folder:
        roots = {"here": ROOT}
        if options.old:
            roots = {options.old: Path(folder, "old"), **roots}
            subprocess.run(
                ["git", "worktree", "add", "--detach", str(roots[options.old]), options.old], cwd=ROOT, check=True
            )
        try:
            for name, root in roots.items():
                figures = measured(root, words)
                print(f"{name:10}", "  ".join(f"{label} {value:.3g}" for label, value in figures.items()), flush=True)
        finally:
            if options.old:
                command = ["git", "worktree", "remove", "--force", str(roots[options.old])]
                subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
