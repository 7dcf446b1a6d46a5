"""Try experts on sampled tasks and have another model describe each; docs/descriptions.md.

python experiments/describe_tools.py train.jsonl menu.json --experts experts.yaml --writer gpt-5 qwen3-32b --dry-run
python experiments/describe_tools.py train.jsonl menu.json --experts experts.yaml --writer gpt-5 --max-usd 2
python experiments/describe_tools.py train.jsonl menu.json --experts experts.yaml --writer gpt-5 --only qwen3-32b
"""

import argparse
import asyncio
from pathlib import Path

from orchestra_jax.config.help import Parser, number
from orchestra_jax.io.shipped import CONF
from orchestra_jax.money import budgets, price_files


async def run(options: argparse.Namespace) -> bool:
    """Tell what it will cost and do it; return whether every expert got its description."""
    from rich.progress import Progress

    from orchestra_jax.data.sources import load_tasks  # only now: --help answers at once
    from orchestra_jax.tools.experts import describing, descriptions, expert

    experts = expert.read_experts(options.experts)
    job = describing.DescriptionJob(
        experts=experts,
        subjects=options.only or [one.name for one in experts],
        writers=options.writer,
        examples=descriptions.sample(load_tasks(options.tasks), options.count, options.seed),
        prices=price_files.load(options.prices),
        calls=options.file.with_suffix(".calls.db"),
    )
    for row in await describing.forecast(job):
        print(f"{row.name:24} {row.calls:6.0f} calls  ${row.usd:9.4f} expected  ${row.worst_usd:9.4f} at most")
    if options.dry_run:
        return True
    with Progress() as bars:
        bar, budget = bars.add_task("calls", total=None), budgets.Budget(budgets.Limits(usd=options.max_usd))
        done = await describing.describe(job, options.file, budget, lambda n, m: bars.update(bar, completed=n, total=m))
    print("".join(f"No description of {name}: {problem}\n" for name, problem in done.problems.items()), end="")
    print(f"{len(done.descriptions)} descriptions in {options.file}; ${budget.spent.usd:.4f} spent")
    return not done.problems


def main(arguments: list[str] | None = None) -> None:
    """Describe the experts that the arguments name."""
    parser = Parser(__doc__)
    parser.add_argument("tasks", help="questions with answers, in any format of data.sources; none of an evaluation")
    parser.add_argument("file", type=Path, help="the descriptions, .json; the calls are recorded beside it")
    parser.add_argument("--experts", required=True, help="YAML file of experts")
    parser.add_argument("--writer", required=True, nargs="+", help="who writes: the first that is not the subject")
    parser.add_argument("--only", nargs="+", help="experts to describe (default: all)")
    parser.add_argument("--prices", default=str(CONF / "pricing/paper_train.yaml"), help="the price list in force")
    parser.add_argument("--count", type=number(1, kind=int), default=10, help="tasks, families in turns (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the tasks")
    parser.add_argument("--max-usd", type=number(0), default=1.0, help="stop before more is spent (default 1)")
    parser.add_argument("--dry-run", action="store_true", help="only tell what it will cost")
    asked = parser.parse_args(arguments)
    from orchestra_jax.types import ReplayMiss  # only now: as above

    try:
        if asked.file.is_dir():
            raise ValueError(f"{str(asked.file)!r} is a folder: name the file of descriptions in it.")
        parser.exit(0 if asyncio.run(run(asked)) else 1)
    except (OSError, ValueError, ImportError, LookupError, ReplayMiss) as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
