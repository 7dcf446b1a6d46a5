"""Put the data of the paper's run into a folder, from copies or the hub, and check it; docs/data.md.

python experiments/prepare.py paper data --dry-run
python experiments/prepare.py paper data --from /disk/downloads
python experiments/prepare.py paper data --from /disk/downloads --only general_thought hle --limit 1000
python experiments/prepare.py paper data --only general_thought --pass-rate 0.1 0.9
python experiments/prepare.py paper data --only retrieval_index --index eval --embedder-url http://127.0.0.1:30000/v1
"""

from pathlib import Path

from orchestra_jax.config.help import Parser


def main() -> None:
    """Prepare what the arguments name; exit status 1 if a part is missing, 2 if the command is wrong."""
    parser = Parser(__doc__)
    parser.add_argument("what", choices=["paper"], help="the data of +experiment=hle and frames")
    parser.add_argument("folder", type=Path, help="where it is put: what ORCHESTRA_DATA names for the runs")
    parser.add_argument("--from", dest="given", type=Path, help="a folder of copies, by part or repository name")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="some parts (default: all)")
    parser.add_argument("--limit", type=int, help="at most so many rows of a part, for a try")
    parser.add_argument("--pass-rate", type=float, nargs=2, metavar=("LOW", "HIGH"), help="keep questions within")
    parser.add_argument("--passed", type=Path, help="a run's trajectories that tell the pass rates")
    parser.add_argument("--index", help="the pair of files, where the source has several")
    parser.add_argument("--embedder-url", help="check the index with this server of its embedding model")
    parser.add_argument("--dry-run", action="store_true", help="only tell sources, sizes and licences")
    asked = parser.parse_args()
    from orchestra_jax.preparation import paper  # only now: --help answers at once
    from orchestra_jax.preparation.made import Wanted

    unknown = [name for name in asked.only if name not in paper.NAMES]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; known are {', '.join(paper.NAMES)}")
    if asked.passed is not None and asked.pass_rate is None:
        parser.error("--passed tells pass rates: say with --pass-rate LOW HIGH which ones to keep")
    if asked.given is not None and not asked.given.is_dir():
        parser.error(f"--from {asked.given} is no folder")
    parts = [part for part in paper.PARTS if part.name in (asked.only or paper.NAMES)]
    bounds = tuple(asked.pass_rate) if asked.pass_rate else None
    wanted = Wanted(asked.limit, bounds, asked.passed, asked.index, asked.embedder_url)
    for line in paper.overview(parts, asked.given, asked.folder):
        print(line, flush=True)
    if asked.dry_run:
        return
    problems = paper.prepare(parts, asked.folder, asked.given, wanted)
    if problems:
        parser.exit(1, f"{len(problems)} of {len(parts)} parts are missing; the same command goes on with them.\n")
    print(f"All is there: export ORCHESTRA_DATA={asked.folder.resolve()}")


if __name__ == "__main__":
    main()
