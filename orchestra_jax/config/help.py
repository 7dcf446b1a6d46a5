"""Print the help of a command. It is its script's docstring: one sentence, an empty line, then one example per line."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

_OF_HYDRA = (
    ("KEY=VALUE", "any setting, such as seed=1; +GROUP=NAME adds a file of conf/GROUP, such as +experiment=hle"),
    ("--cfg job", "print all settings of this command, and stop"),
    ("--multirun", "one run for each combination of the values in KEY=A,B"),
    ("--help", "print this"),
    ("--help-all", "print every group and setting; docs/keys.md tells what each means"),
)


def print_help(about: str | None, flags: Mapping[str, str]) -> None:
    """Print the help of a script whose settings Hydra composes.

    Args:
        about: the script's docstring.
        flags: what the help says of each flag of the script.
    """
    print(_head(about))
    print("Flags:")
    for name, text in (*flags.items(), *_OF_HYDRA):
        print(f"  {name:14}{text}")


class Parser(argparse.ArgumentParser):
    """A parser of arguments whose help begins with what the script does and its examples."""

    def __init__(self, about: str | None) -> None:
        super().__init__()
        self._about = about

    def format_help(self) -> str:
        """Return the help."""
        return f"{_head(self._about)}\n{super().format_help()}"


def _head(about: str | None) -> str:
    """Return the sentence and the examples of a script's docstring, with its name as it was called."""
    sentence, _, examples = (about or "").partition("\n\n")
    script = Path(sys.argv[0]).stem
    if sys.argv[0] not in sys.orig_argv:  # started by `orchestra-jax NAME`
        examples = examples.replace(f"python experiments/{script}.py", f"orchestra-jax {script.replace('_', '-')}")
    lines = "".join(f"  {line}\n" for line in examples.strip().splitlines())
    return f"{sentence.strip()}\n\nExamples:\n{lines}"
