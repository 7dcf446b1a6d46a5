"""YAML files from outside."""

import re
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from orchestra_jax.io.untrusted import Unreadable


def read_yaml(file: Path) -> Any:
    """Return the plain value of a YAML file, interpolations resolved; raise Unreadable if it has none."""
    try:
        return OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    except OSError as error:
        raise Unreadable(f"it cannot be read: {error.strerror}") from None
    except YAMLError as error:
        raise Unreadable(yaml_problem(error)) from None
    except (OmegaConfBaseException, ValueError, RecursionError) as error:
        raise Unreadable(f"it cannot be read: {' '.join(str(error).split())}") from None


def yaml_problem(error: YAMLError) -> str:
    """Return a clause with the line at which a text is no YAML, and why."""
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None or not error.problem:
        return f"it cannot be read: {' '.join(str(error).split())}"
    why = " ".join(error.problem.split())
    if r"'\t'" in why:
        why = "it has a tab, where YAML takes spaces only"
    elif found := re.fullmatch("found duplicate key (.+)", why):
        why = f"the key {found[1]} is there for the second time"
    elif "<stream end>" in why:
        why = f"the file ends too early ({why})"
    elif why == "mapping values are not allowed here":
        why = "a second colon: put quotes around a text that has one"
    return f"line {error.problem_mark.line + 1} is no YAML: {why}"
