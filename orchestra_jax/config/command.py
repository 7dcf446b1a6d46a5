"""Answer `--help`, and read flags, before anything heavy is imported; commands with Hydra's settings start here."""

import sys
from collections.abc import Callable, Sequence
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
        from orchestra_jax.config.help import print_help

        print_help(about, {f"{flag.name} {flag.value}".rstrip(): flag.about for flag in flags})
        return
    words = ["--help" if word == "--help-all" else word for word in words]
    sys.argv[1:] = as_settings(words, flags)
    import hydra  # only now: it takes a second

    from orchestra_jax.config import cli
    from orchestra_jax.io.shipped import CONF

    with cli.user_errors(ends_process=True):
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=config)(main)()


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
