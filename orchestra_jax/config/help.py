"""Print the help of a command. It is its script's docstring: one sentence, an empty line, then one example per line."""

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

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


def number(low: float, high: float = math.inf, kind: type = float) -> Callable[[str], Any]:
    """Return the `type` of a flag whose value is a number from `low` to `high`; nan and infinity are none."""
    noun = "a whole number" if kind is int else "a number"

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {noun}, not {text!r}") from None
        if not (low <= value <= high and math.isfinite(value)):
            bounds = f">= {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(f"must be {noun} {bounds}, not {text!r}")
        return value

    return read


class Parser(argparse.ArgumentParser):
    """A parser of arguments whose help begins with what the script does and its examples, and whose errors are plain.

    Args:
        about: the script's docstring; None: the help is argparse's own.
        flags: names of flags that are read elsewhere.
        options: those of `argparse.ArgumentParser`.
    """

    def __init__(self, about: str | None = None, flags: Iterable[str] = (), **options: Any) -> None:
        super().__init__(**options)
        self._about, self._flags = about, tuple(flags)

    def format_help(self) -> str:
        """Return the help."""
        return super().format_help() if self._about is None else f"{_head(self._about)}\n{super().format_help()}"

    def error(self, message: str) -> NoReturn:
        """End with one sentence on standard error, and status 2."""
        self.exit(2, f"{self._plain(message)}\n")

    def _plain(self, said: str) -> str:
        """Return the sentence, with the fix, for what argparse or a script says."""
        if found := re.fullmatch("unrecognized arguments: (.*)", said, re.DOTALL):
            return self._unknown(found[1].split())
        if found := re.fullmatch("the following arguments are required: (.*)", said):
            return f"{found[1].replace(', ', ' and ')} must be given: --help shows how, with examples."
        if found := re.fullmatch(r"argument (\S+): invalid (int|float) value: (.*)", said, re.DOTALL):
            return f"{found[1]} must be a {'whole ' * (found[2] == 'int')}number, not {found[3]}."
        if found := re.fullmatch(r"argument (\S+): (must be .*)", said, re.DOTALL):
            return f"{found[1]} {found[2]}."
        if found := re.fullmatch(r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", said, re.DOTALL):
            known = found[3].replace("'", "")
            return f"{found[1]} cannot be {found[2]}: write {'one of ' * (',' in known)}{known}."
        if found := re.fullmatch(r"argument (\S+): expected (.+) argument(s?)", said):
            return f"{found[1]} needs {found[2]} value{found[3]} behind it."
        if found := re.fullmatch(r"argument (\S+): ignored explicit argument .*", said, re.DOTALL):
            return f"{found[1]} takes no value: write it alone."
        if found := re.fullmatch("ambiguous option: (.*) could match (.*)", said):
            return f"{found[1]} stands for several flags: write one of {found[2]}."
        return f"{said[:1].upper()}{said[1:].rstrip('.')}."

    def _unknown(self, words: list[str]) -> str:
        """Return the sentence for words that nothing takes."""
        word = next((word for word in words if word.startswith("-")), None)
        if word is None:
            return f"{words[0]!r} is a word too many: put quotes around texts, and write flags after everything else."
        name, _, value = word.partition("=")
        if name == "--dry-run" and Path(sys.argv[0]).stem == "train":
            return "There is no flag '--dry-run' here: experiments/plan.py tells what the same settings need and cost."
        key = name.lstrip("-").replace("-", "_")
        if near := get_close_matches(name, [*self._flags, *self._option_string_actions], 1, 0.75):
            return f"There is no flag {name!r}: did you mean {near[0]}?"
        if not {"settings", "overrides"} & {action.dest for action in self._actions}:
            return f"There is no flag {name!r}: --help lists those there are."
        from orchestra_jax.config.messages import keys

        written = f"{key}={value or 'VALUE'}" if key in keys() else "KEY=VALUE"
        return f"There is no flag {name!r}: write settings without dashes, {written}; --help lists the flags."


def _head(about: str | None) -> str:
    """Return the sentence and the examples of a script's docstring, with its name as it was called."""
    sentence, _, examples = (about or "").partition("\n\n")
    script = Path(sys.argv[0]).stem
    if sys.argv[0] not in sys.orig_argv:  # started by `orchestra-jax NAME`
        examples = examples.replace(f"python experiments/{script}.py", f"orchestra-jax {script.replace('_', '-')}")
    lines = "".join(f"  {line}\n" for line in examples.strip().splitlines())
    return f"{sentence.strip()}\n\nExamples:\n{lines}"
