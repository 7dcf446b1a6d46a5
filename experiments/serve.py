"""Serve a trained orchestrator as a model of the OpenAI API; docs/serve.md.

python experiments/serve.py outputs/quickstart --port 8200 --max-usd 0.05
python experiments/serve.py outputs/gsm8k budget.run_usd=20 rollout.slots=64
python experiments/serve.py outputs/quickstart --follow outputs/served --canary 0.1
ORCHESTRA_API_KEY=... python experiments/serve.py outputs/quickstart --host 0.0.0.0
"""

import os

from orchestra_jax.config.help import Parser


def main(arguments: list[str] | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    parser = Parser(__doc__)
    parser.add_argument("policy", help="folder of a run or checkpoint, hub id, address, or baseline:NAME")
    parser.add_argument(
        "settings", nargs="*", default=[], metavar="KEY=VALUE", help="settings of docs/keys.md; they win"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; others than this need a key")
    parser.add_argument("--port", type=int, default=8100, help="port (default 8100); 0: a free one")
    parser.add_argument("--max-usd", type=float, help="most dollars of one answer (default: no limit)")
    parser.add_argument("--max-seconds", type=float, help="most seconds of one answer (default: those of the run)")
    parser.add_argument(
        "--database",
        default=os.environ.get("ORCHESTRA_DATABASE"),
        help="postgresql://USER:PASSWORD@HOST/NAME (default: ORCHESTRA_DATABASE, else a file in the run's folder)",
    )
    parser.add_argument("--keys", metavar="FILE", help="YAML list of keys with their limits; docs/serve.md")
    parser.add_argument("--keep-days", type=float, default=30, help="how long words and tokens are kept (default 30)")
    parser.add_argument("--follow", metavar="FOLDER", help="run or checkpoint whose newer policy is taken up")
    parser.add_argument(
        "--canary", type=float, metavar="SHARE", help="share of the conversations that it answers (default: all)"
    )
    asked = parser.parse_intermixed_args(arguments)
    from orchestra_jax.serving.running import serve  # only now: --help answers at once

    limits = {"max_usd": asked.max_usd, "max_seconds": asked.max_seconds, "keep_days": asked.keep_days}
    followed = {"follow": asked.follow, "canary": asked.canary, "keys": asked.keys}
    parser.exit(serve(asked.policy, asked.settings, asked.host, asked.port, limits, asked.database, **followed))


if __name__ == "__main__":
    main()
