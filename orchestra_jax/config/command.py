"""Answer `--help` before anything heavy is imported; commands with Hydra's settings start here."""

import gc
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestra_jax.config.flags import Flag


def run(main: Callable[[Any], None], about: str | None, config: str = "config", flags: "Sequence[Flag]" = ()) -> None:
    """Run a script whose settings Hydra composes, or print its help.

    Args:
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
    if any(word.startswith("-") for word in words) or flags:
        from orchestra_jax.config.flags import checked_settings

        words = checked_settings(words, flags)
    sys.argv[1:] = words
    gc.set_threshold(20_000, 20, 20)  # imports and rollouts make few cycles: looking for them took a fifth of the time
    import hydra  # only now: it takes a second

    from orchestra_jax.config import cli
    from orchestra_jax.io.shipped import CONF

    with cli.user_errors(ends_process=True):
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=config)(main)()
