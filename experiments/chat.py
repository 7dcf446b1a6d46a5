"""Talk to a trained orchestrator, line by line; docs/serve.md.

python experiments/chat.py outputs/quickstart
python experiments/chat.py outputs/gsm8k --wish cheap --max-usd 0.05
"""

from orchestra_jax.config.help import Parser, number


def main(arguments: list[str] | None = None) -> None:
    """Read questions until the end of the input, and answer each."""
    parser = Parser(__doc__)
    parser.add_argument("policy", help="folder of a run or checkpoint, hub id, address, or baseline:NAME")
    parser.add_argument(
        "settings", nargs="*", default=[], metavar="KEY=VALUE", help="settings of docs/keys.md; they win"
    )
    parser.add_argument("--wish", help="cheap, fast, best, or a sentence (default: nothing is said)")
    parser.add_argument("--max-usd", type=number(0), help="most dollars of each answer")
    parser.add_argument("--max-seconds", type=number(0), help="seconds after which an answer is given up")
    asked = parser.parse_intermixed_args(arguments)
    from orchestra_jax.serving.terminal import chat  # only now: --help answers at once

    limits = {"wish": asked.wish, "max_usd": asked.max_usd, "max_seconds": asked.max_seconds}
    parser.exit(chat(asked.policy, asked.settings, limits))


if __name__ == "__main__":
    main()
