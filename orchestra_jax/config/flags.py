"""Flags of commands that stand for settings, such as `--limit 20`."""

import re
from collections.abc import Sequence
from typing import NamedTuple


class Flag(NamedTuple):
    """A flag that stands for a setting, such as `--limit 20` for `evaluation.limit=20`.

    Attributes:
        name: the flag, such as "--limit".
        setting: the key that it sets.
        about: what the help says of it.
        value: placeholder of its value; "" for a flag that sets true.
        quoted: whether Hydra takes any value as a text, such as the name of a file.
    """

    name: str
    setting: str
    about: str
    value: str = ""
    quoted: bool = False


LIMIT = Flag("--limit", "evaluation.limit", "only the first N tasks of each benchmark", "N")
DRY_RUN = Flag("--dry-run", "evaluation.dry_run", "only tell what it will cost: make nothing, ask nobody")

PATH = Flag("path", "env.options.path", "the table of recorded answers: path=FILE", "FILE", quoted=True)


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
            value = value if equals or not rest else rest.pop(0)
            found.append(f"{flag.setting}={_quoted(value) if flag.quoted else value}")
    return found


def checked_settings(words: Sequence[str], flags: Sequence[Flag]) -> list[str]:
    """Return the same words of a command's own line.

    Raises:
        SystemExit: status 2, after a sentence: a flag is none of these, nor of Hydra's.
    """
    found = as_settings(words, flags)
    if any(word.startswith("-") for word in found):
        from hydra._internal.utils import get_args_parser

        from orchestra_jax.config.help import Parser

        names = [flag.name for flag in flags]
        Parser(flags=names, parents=[get_args_parser()], add_help=False).parse_args(found)
    return found


def _quoted(value: str) -> str:
    """Return a value in the quotes of Hydra's grammar, unless it has some."""
    if value[:1] in ("'", '"') or value in ("", "null"):
        return value
    # Backslashes count before a quote alone.
    return "'" + re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value) + "'"
