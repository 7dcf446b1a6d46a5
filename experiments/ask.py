"""Ask a trained orchestrator a question; its calls, seconds and dollars follow the answer; docs/serve.md.

python experiments/ask.py outputs/quickstart "What is 7 * 8 + 3?"
python experiments/ask.py outputs/quickstart "What is 7 * 8 + 3?" --wish "keep the cost low" --max-usd 0.02
python experiments/ask.py outputs/recorded - --wish cheap < question.txt
python experiments/ask.py outputs/gsm8k "How many days have seven weeks?" budget.run_usd=5
"""

import sys

from orchestra_jax.config.help import Parser, number


def main(arguments: list[str] | None = None) -> None:
    """Print the answer on standard output, and what it took on standard error."""
    parser = Parser(__doc__)
    parser.add_argument("policy", help="folder of a run or checkpoint, hub id, address, or baseline:NAME")
    parser.add_argument("question", help="the question; - reads it from standard input")
    parser.add_argument(
        "settings", nargs="*", default=[], metavar="KEY=VALUE", help="settings of docs/keys.md; they win"
    )
    parser.add_argument("--wish", help="cheap, fast, best, or a sentence (default: nothing is said)")
    parser.add_argument("--max-usd", type=number(0), help="most dollars of the answer")
    parser.add_argument("--max-seconds", type=number(0), help="seconds after which it ends without an answer")
    asked = parser.parse_intermixed_args(arguments)
    from orchestra_jax.serving.terminal import ask  # only now: --help answers at once

    question = sys.stdin.read() if asked.question == "-" else asked.question
    limits = {"wish": asked.wish, "max_usd": asked.max_usd, "max_seconds": asked.max_seconds}
    parser.exit(ask(asked.policy, asked.settings, question, limits))


if __name__ == "__main__":
    main()
