"""Hand a trained policy on: write its model card and upload both to the Hugging Face hub; docs/serve.md.

python experiments/push.py outputs/quickstart my-team/quickstart --dry-run
python experiments/push.py outputs/quickstart my-team/quickstart --licence apache-2.0
python experiments/push.py outputs/gsm8k-lora my-team/gsm8k --merge --private
"""

from pathlib import Path

from orchestra_jax.config.help import Parser


def main(arguments: list[str] | None = None) -> None:
    """Push the policy of a run."""
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, help="folder of a run that has ended")
    parser.add_argument("name", metavar="ORG/NAME", help="repository on the hub, which is made if it is not there")
    parser.add_argument("--licence", help="of the policy, as the hub writes it, such as apache-2.0")
    parser.add_argument("--merge", action="store_true", help="push adapters of LoRA as one model with their base")
    parser.add_argument("--private", action="store_true", help="make the repository one that others do not see")
    parser.add_argument("--dry-run", action="store_true", help="write the card, list the files, and upload nothing")
    asked = parser.parse_args(arguments)
    from orchestra_jax.serving.pushing import push  # only now: --help answers at once

    options = {"merge": asked.merge, "dry_run": asked.dry_run, "private": asked.private}
    parser.exit(push(asked.run, asked.name, asked.licence, **options))


if __name__ == "__main__":
    main()
