"""Show runs side by side: the settings in which they differ, and their figures; docs/compare.md.

python experiments/compare.py outputs/seed0 outputs/seed1
python experiments/compare.py outputs/seed0 outputs/seed1 --all
python experiments/compare.py 'multirun/quickstart/*'
python experiments/compare.py 'multirun/quickstart/*' --csv runs.csv
python experiments/compare.py outputs/quickstart --csv -
"""

from orchestra_jax.config.help import Parser

_DETAILS = ".tool_shares.", ".intervals."


def main(arguments: list[str] | None = None) -> None:
    """Print the table, or write the CSV."""
    parser = Parser(__doc__)
    parser.add_argument("runs", nargs="+", help="folders of runs, or patterns of such")
    parser.add_argument("--csv", metavar="FILE", help="write a row for each run; - for standard output")
    parser.add_argument("--all", action="store_true", help="show shares of single tools and intervals too")
    asked = parser.parse_args(arguments)
    from rich.console import Console  # only now: --help answers at once
    from rich.table import Table

    from orchestra_jax.evaluation.runs import load, over_seeds

    try:
        runs = load(*asked.runs)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{error}\n")
    if asked.csv:
        try:
            text = runs.to_csv(None if asked.csv == "-" else asked.csv)
        except OSError as error:
            parser.exit(2, f"{asked.csv!r} cannot be written ({error.strerror}): name another file as --csv.\n")
        print(text if asked.csv == "-" else f"{len(runs)} runs in {asked.csv}", end="" if asked.csv == "-" else "\n")
        return
    table = Table(box=None, header_style="bold")
    table.add_column("", overflow="fold")
    for row in runs:
        table.add_column(str(row["run"]), justify="right", overflow="fold")
    shown = [name for name in runs.columns[1:] if asked.all or not any(part in name for part in _DETAILS)]
    for column in shown:
        table.add_row(column, *(_shown(row.get(column)) for row in runs))
    console = Console(markup=False)
    console.print(table)
    for title, figures in over_seeds(runs):
        table = Table("", "mean", "from", "to", title=f"\n{title}", title_justify="left", box=None)
        for column in filter(figures.get, shown):
            table.add_row(column, *map(_shown, figures[column]))
        console.print(table)


def _shown(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
