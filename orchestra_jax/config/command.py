"""Answer `--help`, and read flags, before anything heavy is imported; every command of experiments/ starts here.

A script's docstring is its help: one sentence on what it does, an empty line, then one example per line.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Flag(NamedTuple):
    """A flag that stands for a setting, such as `--limit 20` for `evaluation.limit=20`.

    Attributes:
        name: the flag, such as "--limit".
        setting: the key that it sets.
        about: what the help says of it.
        value: placeholder of its value; "" for a flag that sets true.
    """

    name: str
    setting: str
    about: str
    value: str = ""


LIMIT = Flag("--limit", "evaluation.limit", "only the first N tasks of each benchmark", "N")
DRY_RUN = Flag("--dry-run", "evaluation.dry_run", "only tell what it will cost: make nothing, ask nobody")
_OF_HYDRA = (
    ("KEY=VALUE", "any setting, such as seed=1; +GROUP=NAME adds a file of conf/GROUP, such as +experiment=hle"),
    ("--cfg job", "print all settings of this command, and stop"),
    ("--multirun", "one run for each combination of the values in KEY=A,B"),
    ("--help", "print this"),
    ("--help-all", "print every group and setting; docs/keys.md tells what each means"),
)


def run(main: Callable[[Any], None], about: str | None, config: str = "config", flags: Sequence[Flag] = ()) -> None:
    """Run a script whose settings Hydra composes, or print its help.

    Args:
        main: takes the composed config.
        about: the script's docstring.
        config: what is composed: a file of conf/.
        flags: settings that have a flag of their own.
    """
    words = sys.argv[1:]
    if {"-h", "--help"} & set(words):
        print(_head(about))
        print("Flags:")
        for name, text in (*((f"{flag.name} {flag.value}".rstrip(), flag.about) for flag in flags), *_OF_HYDRA):
            print(f"  {name:14}{text}")
        return
    words = ["--help" if word == "--help-all" else word for word in words]
    sys.argv[1:] = as_settings(words, flags)
    import hydra  # only now: it takes a second

    from orchestra_jax.config import cli
    from orchestra_jax.io.shipped import CONF

    cli.run(hydra.main(version_base="1.3", config_path=str(CONF), config_name=config)(main), ends_process=True)


def as_settings(words: Sequence[str], flags: Sequence[Flag]) -> list[str]:
    """Return the words of a command line with each flag written as a setting; its value follows, or stands after =."""
    known, found, rest = {flag.name: flag for flag in flags}, list[str](), list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if (flag := known.get(name)) is None:
            found.append(word)
        elif not flag.value:
            found.append(f"{flag.setting}=true")
        else:
            found.append(f"{flag.setting}={value if equals or not rest else rest.pop(0)}")
    return found


class Parser(argparse.ArgumentParser):
    """A parser of arguments whose help begins with what the script does and its examples."""

    def __init__(self, about: str | None) -> None:
        super().__init__()
        self._about = about

    def format_help(self) -> str:
        return f"{_head(self._about)}\n{super().format_help()}"


def _head(about: str | None) -> str:
    """Return the sentence and the examples of a script's docstring, with its name as it was called."""
    sentence, _, examples = (about or "").partition("\n\n")
    script = Path(sys.argv[0]).stem
    if sys.argv[0] not in sys.orig_argv:  # started by `orchestra-jax NAME`
        examples = examples.replace(f"python experiments/{script}.py", f"orchestra-jax {script.replace('_', '-')}")
    lines = "".join(f"  {line}\n" for line in examples.strip().splitlines())
    return f"{sentence.strip()}\n\nExamples:\n{lines}"
