"""Compare evaluations: tables with intervals, tools, policies question by question, the paper's rows beside them.

python experiments/report.py outputs/hle-evaluation outputs/gpt-5
python experiments/report.py outputs/seed0 outputs/seed1 --out outputs/report
python experiments/report.py outputs/seen outputs/tools outputs/prices
python experiments/report.py outputs/trained --base outputs/qwen3-8b
"""

from pathlib import Path

from orchestra_jax.config.help import Parser


def main(arguments: list[str] | None = None) -> None:
    """Write the report."""
    parser = Parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of evaluations, or of runs that were evaluated")
    parser.add_argument("--out", type=Path, default=Path("outputs/report"), help="folder (default: outputs/report)")
    parser.add_argument("--base", type=Path, help="the base policy's folder, for scores of preferences (Eq. 5-6)")
    asked = parser.parse_args(arguments)
    from orchestra_jax.evaluation.results.report import write_report  # only now: --help answers at once

    try:
        *_, page = write_report(asked.runs, asked.out, asked.base)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{error}\n")
    print(f"report.md and report.csv are in {page.parent}; open {page.resolve()} in a browser.")


if __name__ == "__main__":
    main()
