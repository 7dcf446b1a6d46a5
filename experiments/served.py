"""Keys and requests of a server, in its database; docs/serve.md.

python experiments/served.py outputs/quickstart add-key anna --usd-per-day 5 --per-minute 60
python experiments/served.py outputs/quickstart keys
python experiments/served.py outputs/quickstart end-key anna
python experiments/served.py outputs/quickstart report --hours 24
python experiments/served.py outputs/gsm8k judge --max-usd 1 tools.judge=gpt-5-mini
python experiments/served.py outputs/quickstart write log.jsonl
python experiments/served.py --database postgresql://orchestra@db.example/orchestra - keys
"""

import os

from orchestra_jax.config.help import Parser


def main(arguments: list[str] | None = None) -> None:
    """Do one of the commands."""
    parser = Parser(__doc__)
    parser.add_argument("folder", help="output_dir of the server, the run's folder by default; - with --database")
    parser.add_argument(
        "--database",
        default=os.environ.get("ORCHESTRA_DATABASE"),
        help="address of the database (default: ORCHESTRA_DATABASE, else the file in the folder)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    added = commands.add_parser("add-key", help="make a key and print it, once")
    added.add_argument("name", help="who has it")
    added.add_argument("--usd-per-day", type=float, help="dollars from midnight to midnight UTC (default: no limit)")
    added.add_argument("--per-minute", type=int, help="requests of any minute (default: no limit)")
    commands.add_parser("end-key", help="refuse a key from now on").add_argument("name", help="who has it")
    commands.add_parser("keys", help="list keys, limits, and what today's budget holds")
    shown = commands.add_parser("report", help="compare the policies that answered: right answers, dollars, seconds")
    shown.add_argument("--hours", type=float, help="count requests of so many hours (default: all)")
    judged = commands.add_parser("judge", help="have a judge say of answers without feedback whether they are right")
    judged.add_argument("--max-usd", type=float, required=True, help="most dollars of judges, earlier starts included")
    judged.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="tools.judge=MODEL, and where it is served")
    written = commands.add_parser("write", help="write what was asked and judged, for training: a line of JSON each")
    written.add_argument("file", help="file to write; - is standard output")
    written.add_argument("--all", action="store_true", help="also requests whose right answer nobody has said")
    asked = parser.parse_args(arguments)
    from orchestra_jax.serving.served import run  # only now: --help answers at once

    parser.exit(run(asked))


if __name__ == "__main__":
    main()
