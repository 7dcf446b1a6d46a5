"""Put the data of the paper's run into a folder, from copies or the hub, and check it; docs/data.md.

python experiments/prepare.py paper data --dry-run
python experiments/prepare.py paper data --from /disk/downloads
python experiments/prepare.py paper data --from /disk/downloads --only general_thought hle --limit 1000
python experiments/prepare.py paper data --only general_thought --pass-rate 0.1 0.9
python experiments/prepare.py paper data --only descriptions preferences --experts experts.yaml --max-usd 30
python experiments/prepare.py paper data --only retrieval_index --index eval --embedder-url http://127.0.0.1:30000/v1
"""

from pathlib import Path

from orchestra_jax.config.help import Parser, number


def main() -> None:
    """Prepare what the arguments name; exit status 1 if a part is missing, 2 if the command is wrong."""
    parser = Parser(__doc__)
    parser.add_argument("what", choices=["paper"], help="the data of +experiment=hle and frames")
    parser.add_argument("folder", type=Path, help="where it is put: what ORCHESTRA_DATA names for the runs")
    parser.add_argument("--from", dest="given", type=Path, help="a folder of copies, by part or repository name")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="some parts (default: all)")
    parser.add_argument("--limit", type=int, help="at most so many rows of a part or requests of preferences")
    parser.add_argument("--pass-rate", type=number(0, 1), nargs=2, metavar=("LOW", "HIGH"), help="keep those within")
    parser.add_argument("--passed", type=Path, help="a run's trajectories that tell the pass rates")
    parser.add_argument("--index", help="the pair of files, where the source has several")
    parser.add_argument("--embedder-url", help="check the index with this server of its embedding model")
    parser.add_argument("--experts", type=Path, help="YAML of models: they write preferences and descriptions too")
    parser.add_argument("--writer", default="gpt-5", help="of them: writes (default gpt-5)")
    parser.add_argument("--checker", default="gpt-5-mini", help="of them: reads preferences, describes the writer")
    parser.add_argument(
        "--max-usd", type=number(0), default=10.0, help="most dollars of models that write (default 10)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only tell sources, sizes, licences and dollars")
    asked = parser.parse_args()
    from orchestra_jax.preparation import paper, written  # only now: --help answers at once
    from orchestra_jax.preparation.made import Wanted

    names = (*paper.NAMES, *written.NAMES)
    unknown = [name for name in asked.only if name not in names]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; known are {', '.join(names)}")
    by_default = written.NAMES if asked.experts else ()
    by_models = tuple(name for name in written.NAMES if name in (asked.only or by_default))
    if by_models and asked.experts is None:
        parser.error("preferences and descriptions are written by models: name them with --experts FILE")
    if asked.passed is not None and asked.pass_rate is None:
        parser.error("--passed tells pass rates: say with --pass-rate LOW HIGH which ones to keep")
    if asked.limit is not None and asked.limit < 1:
        parser.error(f"--limit {asked.limit} must be at least 1")
    if asked.pass_rate and asked.pass_rate[0] > asked.pass_rate[1]:
        parser.error("--pass-rate LOW HIGH keeps nothing where LOW is above HIGH: swap them")
    if asked.given is not None and not asked.given.is_dir():
        parser.error(f"--from {asked.given} is no folder")
    parts = [part for part in paper.PARTS if part.name in (asked.only or paper.NAMES)]
    rates = asked.pass_rate and tuple(asked.pass_rate)
    wanted = Wanted(asked.limit, rates, asked.passed, asked.index, asked.embedder_url)
    for line in paper.overview(parts, asked.given, asked.folder):
        print(line, flush=True)
    problems = [] if asked.dry_run else paper.prepare(parts, asked.folder, asked.given, wanted)
    if by_models:
        requests = min(asked.limit or written.REQUESTS, written.REQUESTS)
        models = written.Writing(asked.experts, asked.writer, asked.checker, asked.max_usd, requests)
        problems += written.write(by_models, asked.folder, models, asked.dry_run)
    if problems:
        missing = "".join(f"Missing: {problem}\n" for problem in problems)
        parser.exit(1, f"{missing}The same command goes on with what is missing.\n")
    if not asked.dry_run:
        print(f"All is there: export ORCHESTRA_DATA={asked.folder.resolve()}")


if __name__ == "__main__":
    main()
