"""Training with rollouts that run ahead, beside synchronous training: seconds per step, and what was learned.

    .venv/bin/python benchmarks/staleness.py
    .venv/bin/python benchmarks/staleness.py --seeds 0 1 2 --tool-seconds 0.5 --json out.json
    .venv/bin/python benchmarks/staleness.py --engine sglang --policy outputs/quickstart_warm/policy

Trains the quickstart from one warm-started policy, for every seed once with each rollout.max_staleness, one run after
the other in processes of their own, with the same overrides (but slots of the embedded engine for all groups that are
under way, N + 1 steps' worth); every other seed in reverse order. Without --policy the warm start is made once
(`experiments/train.py steps=0`, some minutes) and kept in the folder of --folder.

Seconds per step are wall-clock seconds between the ends of two steps, the update of the engine's weights included; the
first steps, which compile, are left out. "waits" is the part in which the learner waited for rollouts. The quickstart's
tools answer at once, so there is little but sampling to hide behind the update: --tool-seconds S makes every call of a
tool sleep S real seconds, as a network would. Rewards know only the menu's simulated seconds and do not change.

Accuracy and utility are those on held-out questions at temperature 1, before and after. Ages are in versions: the mean
over the sampled tokens of a step, averaged over steps, and the largest of all. Mismatch is the mean difference between
the engine's and the learner's log-probs before the update; stale weights and other numerics both make it.

On one core nothing but waiting can be hidden. Compare runs of one table only, on a machine that does nothing else.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from peer import ROOT, run_logged, train_here
from rich.console import Console
from rich.table import Table
from short import SMALL, keep, machine, parse, table, wide_console

from orchestra_jax.envs.quickstart.environment import QuickstartEpisode
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.types import ToolCall, ToolResult

# Nothing but the run itself in the seconds, and no pull to the reference: few steps have to show something.
COMMON = (
    "algorithm.loss.kl_coef=0", "algorithm.optimizer.warmup_steps=2", "algorithm.optimizer.schedule=constant",
    "checkpoint.every=1000000",
    "checkpoint.export=false", "logger.names=[jsonl]", "logger.trajectories=0", "evaluation.greedy=false",
    "evaluation.swap_questions=0",
)  # fmt: skip
WARM = ("steps=0", "evaluation.questions=8", "evaluation.swap_questions=0", "logger.names=[jsonl]")
SLOTS = 256  # of the embedded engine: a step's trajectories


def _train(tool_seconds: float, overrides: Sequence[str]) -> None:
    """What a run's own process does: experiments/train.py, with tools that take their time."""
    step = QuickstartEpisode.step

    async def slow_step(self: QuickstartEpisode, call: ToolCall) -> ToolResult:
        await asyncio.sleep(tool_seconds)
        return await step(self, call)

    if tool_seconds:
        QuickstartEpisode.step = slow_step  # type: ignore[method-assign]
    train_here(overrides)


def _run(folder: Path, overrides: Iterable[str], tool_seconds: float = 0.0) -> None:
    """One training run; its output goes to a log beside its folder.

    Raises:
        RuntimeError: it failed; the message holds the end of its log.
    """
    command = [sys.executable, __file__, "--train", str(tool_seconds), f"output_dir={folder}", *overrides]
    # Large pages as in `make quickstart`.
    environment = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "JAX_PLATFORMS": "cpu"}
    run_logged(command, folder.with_name(f"{folder.name}.log"), environment)


def _warm_policy(folder: Path, overrides: Sequence[str], console: Console) -> Path:
    """The warm-started policy in the folder, made if it is not there; a warm start that was killed goes on."""
    policy = folder / "policy"
    if not (policy / "model.safetensors").is_file():
        with console.status("The warm start takes some minutes ..."):
            _run(folder, [*WARM, *overrides])
    return policy


def _engine_overrides(args: argparse.Namespace, staleness: int) -> list[str]:
    if args.engine == "embedded":
        # In lockstep nothing can run ahead; for the synchronous run too. Slots for all that is under way.
        return ["rollout.lockstep=false", f"rollout.slots={SLOTS * (staleness + 1)}"]
    return ["rollout=quickstart_sglang", f"rollout.server.python={args.python.absolute()}"]


def _measure(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """All runs, ordered by seed, then staleness."""
    folder = args.folder.absolute()
    policy = args.policy.absolute() if args.policy else _warm_policy(folder / "warm", args.overrides, console)
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="runs_", dir=folder))
    console.print(f"Policy: {policy}. Runs and their logs: {work}.", highlight=False, soft_wrap=True)
    results = []
    for number, seed in enumerate(args.seeds):
        for staleness in args.staleness[:: -1 if number % 2 else 1]:
            name = f"seed {seed}, staleness {staleness}"
            with console.status(f"{name}: {args.steps} steps"):
                run = work / f"seed{seed}-staleness{staleness}"
                _run(
                    run,
                    [
                        f"model.path={policy}", f"steps={args.steps}", f"seed={seed}",
                        f"rollout.max_staleness={staleness}", f"evaluation.questions={args.questions}",
                        *COMMON, *_engine_overrides(args, staleness), *args.overrides,
                    ],
                    args.tool_seconds,
                )  # fmt: skip
            found = {"seed": seed, "staleness": staleness, **_read(run, args.skip)}
            console.print(f"{name}: {found['step_s']:.2f} s a step", highlight=False)
            results.append(found)
    return sorted(
        results, key=lambda found: (args.seeds.index(found["seed"]), args.staleness.index(found["staleness"]))
    )


def _read(run: Path, skip: int) -> dict[str, Any]:
    """Figures of one run from its metrics.jsonl and summary.json."""
    rows, summary = read_metrics(run), json.loads((run / "summary.json").read_text())
    ends = [row["seconds"] for row in rows]
    measured = rows[skip:]

    def values(name: str, of: Sequence[Mapping[str, float]] = rows) -> list[float]:
        return [row[name] for row in of if name in row]

    found = {
        "step_s": statistics.median(ends[i] - ends[i - 1] for i in range(skip, len(rows))),
        "waits_s": statistics.median(values("time/rollout", measured)),
        "update_s": statistics.median(
            row["time/score"] + row["time/update"] + row["time/sync"] + row["time/other"] for row in measured
        ),
        "staleness_mean": statistics.mean(values("staleness/mean")),
        "staleness_max": max(values("staleness/max")),
        "groups_restarted": sum(values("groups/restarted")),
        **{f"{name}_{when}": summary[when][name] for name in ("accuracy", "utility") for when in ("before", "after")},
        "rows": rows,
    }
    if mismatch := values("mismatch/mean"):  # not there where no step had a gradient
        found["mismatch_mean"] = statistics.mean(mismatch)
    return found


def _means(results: Sequence[Mapping[str, Any]], staleness: int) -> dict[str, Any]:
    """The figures of one staleness over all seeds."""
    chosen = [found for found in results if found["staleness"] == staleness]
    names = set.intersection(*map(set, chosen)) - {"rows"}
    means = {name: statistics.mean(found[name] for found in chosen) for name in names}
    largest = max(found["staleness_max"] for found in chosen)
    return means | {"seed": "mean", "staleness": staleness, "staleness_max": largest}


def _add_ratios(results: Sequence[dict[str, Any]], first: int) -> None:
    """How many times as long a step takes as in the same seed's run of the first staleness."""
    reference = {found["seed"]: found["step_s"] for found in results if found["staleness"] == first}
    for found in results:
        found["step_ratio"] = found["step_s"] / reference[found["seed"]]


def _table(results: Sequence[Mapping[str, Any]], args: argparse.Namespace) -> Table:
    title = (
        f"{args.steps} steps, {args.engine} engine, {args.tool_seconds:g} s a tool call, medians; the first "
        f"{args.skip} steps are not timed"
    )
    made = table(title, [], [
        "seed", "staleness", "s/step", f"/ s at {args.staleness[0]}", "waits s", "update s", "accuracy", "utility",
        "mean age", "max", "mismatch",
    ])  # fmt: skip
    for i, found in enumerate(results, 1):
        made.add_row(
            str(found["seed"]),
            str(found["staleness"]),
            f"{found['step_s']:.2f}",
            f"{found['step_ratio']:.2f}",
            f"{found['waits_s']:.2f}",
            f"{found['update_s']:.2f}",
            f"{found['accuracy_before']:.3f} to {found['accuracy_after']:.3f}",
            f"{found['utility_before']:.3f} to {found['utility_after']:.3f}",
            f"{found['staleness_mean']:.2f}",
            f"{found['staleness_max']:.0f}",
            f"{found['mismatch_mean']:.1e}" if "mismatch_mean" in found else "-",
            end_section=i % len(args.staleness) == 0,
        )
    return made


def main() -> int:
    if sys.argv[1:2] == ["--train"]:
        _train(float(sys.argv[2]), sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, help="folder of a warm-started quickstart policy (default: made once)")
    parser.add_argument("--steps", type=int, default=60, help="of every run (default 60)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--staleness", nargs="+", type=int, default=[0, 1], help="default 0 1; 0 is synchronous")
    parser.add_argument("--engine", choices=("embedded", "sglang"), default="embedded")
    parser.add_argument("--tool-seconds", type=float, default=0.0, help="that every tool call sleeps (default 0)")
    parser.add_argument("--skip", type=int, default=5, help="first steps that are not timed (default 5)")
    parser.add_argument("--questions", type=int, default=512, help="held-out questions before and after (default 512)")
    parser.add_argument("--overrides", nargs="+", default=[], metavar="KEY=VALUE", help="of train.py, for all runs")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs/staleness", help="of warm start and runs")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-sglang/bin/python", help="SGLang's interpreter")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured here")
    args = parse(
        parser,
        *("--steps", "2", "--skip", "1", "--staleness", "1", "--questions", "4"),
        *("--folder", f"{tempfile.gettempdir()}/staleness_smoke"),
        *(
            "--overrides",
            "warm_start.steps=1",
            "warm_start.demonstrations=64",
            "warm_start.min_copy_accuracy=1",
            *SMALL,
        ),
        *("algorithm.tasks_per_step=2", "algorithm.group_size=4", "warm_start.batch_size=16"),
    )
    if not 1 <= args.skip < args.steps:
        parser.error("--skip must be at least 1 and below --steps.")
    if args.tool_seconds < 0 or args.questions < 1:
        parser.error("--tool-seconds must be at least 0, and --questions at least 1.")
    if any(len(set(found)) < len(found) for found in (args.seeds, args.staleness)):
        parser.error("--seeds and --staleness name one value twice.")
    if args.policy and not (args.policy / "config.json").is_file():
        parser.error(f"{args.policy} holds no policy: give a folder with config.json and model.safetensors.")
    if args.engine == "sglang" and not args.python.exists():
        parser.error(f"{args.python} is missing: make sglang-cpu, or name another interpreter with --python.")
    console = wide_console()
    try:
        results = _measure(args, console)
    except RuntimeError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 1
    if len(args.seeds) > 1:
        results += [_means(results, staleness) for staleness in args.staleness]
    _add_ratios(results, args.staleness[0])
    console.print(_table(results, args))
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    keep(args.json, {**machine(), **asked, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
