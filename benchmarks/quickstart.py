"""Measures what a quickstart costs in CPU-seconds, part by part, beside that of an older commit.

python benchmarks/quickstart.py                            # this checkout alone, the whole run
python benchmarks/quickstart.py --steps 10                 # 10 policy steps, 100 of the warm start, 64 questions
python benchmarks/quickstart.py --steps 10 --old 1250446   # an older commit too, in turns, by its own Makefile
python benchmarks/quickstart.py --smoke                    # one step

An older commit is checked out into a worktree for the time, and runs with the packages of this environment.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SMOKE = (
    "steps=1", "warm_start.steps=1", "warm_start.demonstrations=64", "warm_start.min_copy_accuracy=1",
    "warm_start.batch_size=16", "algorithm.tasks_per_step=2", "algorithm.group_size=4", "evaluation.questions=2",
    "evaluation.swap_questions=1",
)  # fmt: skip  # shapes of tests/training/test_trainer.py
# What a run prints as a part of it begins; where the policy steps begin it prints nothing.
SAID = {"warm start": "Making ", "evaluation before": "(before) ...", "evaluation after, pictures": "(after) ..."}
PARTS = ("start", "warm start", "evaluation before", "policy steps", "evaluation after, pictures")


def short(steps: int) -> tuple[str, ...]:
    """Return the settings of a run of so many policy steps, with ten steps of the warm start for each.

    The warm start ends before its last step only where every copy is right.
    """
    warm = (f"warm_start.steps={10 * steps}", f"warm_start.check_every={10 * steps}", "warm_start.min_copy_accuracy=1")
    return (f"steps={steps}", *warm, "evaluation.questions=64", "evaluation.swap_questions=16")


def speed() -> float:
    """Return the seconds that Python takes to add five million numbers here."""
    began, total = time.perf_counter(), 0
    for number in range(5_000_000):
        total += number
    return time.perf_counter() - began


def make_command(root: Path, words: Sequence[str]) -> str:
    """Return the line of the shell with which `make quickstart` of a checkout starts the run, by this Python."""
    options = [f"PY={sys.executable}", f"RUN={shlex.join(words)}"]
    # A make around this one would have it say where it is.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    told = subprocess.run(
        ["make", "--dry-run", "quickstart", *options],
        cwd=root,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return told.stdout.splitlines()[-1]  # those before it install the package


def cpu_seconds(session: int) -> float:
    """Return the CPU-seconds so far of the processes of a session, with their children that have ended."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()  # after the name, of any bytes
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(root: Path, words: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Run the quickstart of a checkout with an empty compilation cache; return CPU-seconds by part, and figures."""
    with tempfile.TemporaryDirectory() as name:
        folder, log, began = Path(name), Path(name, "log"), time.time()
        line = make_command(root, [f"output_dir={folder}/run", f"compilation_cache={folder}/compiled", *words])
        own = {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as out:
            run = subprocess.Popen(
                line, shell=True, cwd=root, env=os.environ | own, stdout=out, stderr=out, start_new_session=True
            )
        clock, begins = [(began, 0.0)], {"start": began}  # CPU-seconds by the time of day; when a part began
        ended = (0, 0, None)
        try:
            while not (ended := os.wait4(run.pid, os.WNOHANG))[0]:
                time.sleep(0.2)
                clock.append((time.time(), cpu_seconds(run.pid)))
                said = log.read_text(errors="replace")
                begins |= {part: clock[-1][0] for part, words in SAID.items() if words in said and part not in begins}
        finally:
            if not ended[0]:  # Ctrl-C: a session of its own does not hear it
                os.killpg(run.pid, signal.SIGTERM)
                run.wait()
        if ended[1]:
            raise SystemExit(f"{line}\nended with status {os.waitstatus_to_exitcode(ended[1])}:\n{log.read_text()}")
        kept = (folder / "run" / "evaluation" / "trajectories" / "before").iterdir()
        begins["policy steps"] = max(file.stat().st_mtime for file in kept)
        found = json.loads((folder / "run" / "summary.json").read_text())["after"]
    total = ended[2].ru_utime + ended[2].ru_stime
    edges = [*np.interp([begins[part] for part in PARTS], *zip(*clock, strict=True)), total]
    figures = {"seconds": time.time() - began} | {name: found[name] for name in ("accuracy", "utility", "calls")}
    return dict(zip(PARTS, np.diff(edges), strict=True)) | {"all": total}, figures


@contextmanager
def checked_out(commit: str | None) -> Iterator[dict[str, Path]]:
    """Yield the checkouts by name: an older commit's, which lasts as long as the block, and this one."""
    if commit is None:
        yield {"here": ROOT}
        return
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder, "old")
        command = ["git", "worktree", "add", "--quiet", "--detach", str(old), commit]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            raise SystemExit(f"--old {commit}: name a commit of this checkout (git log --oneline).")
        try:
            yield {commit: old, "here": ROOT}
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(old)], cwd=ROOT, check=True)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", metavar="COMMIT", help="measure this commit too")
    parser.add_argument("--steps", type=int, metavar="N", help="N policy steps and 10 N of the warm start")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="measure each N times, in turns")
    parser.add_argument("--smoke", action="store_true", help="one step")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the run and the worktree go, too
    from short import SMALL  # the script beside this one, for one that runs as a script

    words = (*SMOKE, *SMALL) if options.smoke else short(options.steps) if options.steps else ()
    print(f"Python adds five million numbers in {speed():.2f} s. Settings: {' '.join(words) or 'as they are'}.")
    with checked_out(options.old) as roots:
        costs: dict[str, list[dict[str, float]]] = {name: [] for name in roots}
        for _ in range(options.rounds):
            for name, root in roots.items():
                cost, figures = measured(root, words)
                costs[name].append(cost)
                told = "  ".join(f"{label} {value:.3g}" for label, value in figures.items())
                print(f"{name}: CPU-seconds {cost['all']:.0f}  {told}", flush=True)
    print(f"\n{'CPU-seconds':28}{''.join(f'{name:>12}' for name in costs)}{'  new ÷ old' if options.old else ''}")
    for part in (*PARTS, "all"):
        means = [float(np.mean([cost[part] for cost in found])) for found in costs.values()]
        ratio = f"{means[-1] / means[0]:11.2f}" if options.old else ""
        print(f"{part:28}{''.join(f'{mean:12.1f}' for mean in means)}{ratio}")


if __name__ == "__main__":
    main()
