"""The sentences for mistyped keys and choices, and for what Hydra and OmegaConf say of them."""

import re
import traceback
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from types import UnionType
from typing import Any, get_args, get_origin

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError
from yaml import MarkedYAMLError

from orchestra_jax.config.ranges import NOUNS, shown, unknown_choice
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.io.foreign_yaml import yaml_problem
from orchestra_jax.io.shipped import CONF


def keys(schema: type = RunConfig, prefix: str = "") -> dict[str, type | None]:
    """Return every dotted key of the schema, with its dataclass for those that have keys below them."""
    found: dict[str, type | None] = {}
    for entry in fields(schema):
        node = entry.type if isinstance(entry.type, type) and is_dataclass(entry.type) else None
        found[prefix + entry.name] = node
        if node is not None:
            found |= keys(node, f"{prefix}{entry.name}.")
    return found


def unknown_key(key: str) -> str:
    """Return one sentence that names the neighbours of a key that the schema does not have."""
    key, known = shown(key), keys()
    parent = key.rpartition(".")[0]
    while parent and known.get(parent) is None:
        parent = parent.rpartition(".")[0]
    start = f"{parent}." if parent else ""
    siblings = [name for name in known if name.startswith(start) and "." not in name[len(start) :]]
    near = get_close_matches(key, siblings, n=2, cutoff=0.75 if "." in key else 0.6)
    leaf = key.rpartition(".")[2]
    recorded = ["env.options.path"] if key == "path" else []  # what train.py and plan.py call so
    near = (
        near
        or [*recorded, *sorted(name for name in known if name.rpartition(".")[2] == leaf)][:4]
        or get_close_matches(key, known, n=1)
    )
    hint = f": did you mean {' or '.join(near)}? " if near else ". "
    owner = f"{parent} has" if parent else "The top level has"
    return f"Unknown key '{key}'{hint}{owner}: {', '.join(name[len(start) :] for name in siblings)}."


def explain(error: BaseException) -> str:
    """Return the sentence for an error that Hydra or OmegaConf raised."""
    if isinstance(error, RecursionError):
        return "A setting has too many brackets within brackets to be read."
    if isinstance(error, OverflowError) and (found := re.search(r"full_key: (\S+)", str(error))):
        return f"{found[1]} is a number that 32 bits do not hold: change it."
    if isinstance(error, UnicodeDecodeError):  # Hydra does not say where
        known = [frame.f_locals.get("config_path") for frame, _ in traceback.walk_tb(error.__traceback__)]
        return _one_line(f"In '{next(filter(None, reversed(known)), 'a file')}': {error}.")
    if type(error) is ValueError and (given := _override(error)):  # Hydra does not say of which setting
        key = given.partition("=")[0].lstrip("+")
        plus = "" if key in keys() else "+"
        if "Config group" in str(error):
            return f"{shown(given)!r} names no file of a config group: write {plus}{shown(key)}=NAME."
        return unknown_key(key)
    if isinstance(error, TypeError):  # Hydra's own code takes the value for another kind
        return _one_line(f"A setting has a kind of value that its place does not take ({error}): write KEY=VALUE.")
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        return _one_line(f"In {error.problem_mark.name!r}: {yaml_problem(error)}.")
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for cause in chain:
        if isinstance(cause, OverrideParseException):
            return (
                f"{shown(cause.override)!r} is no setting: write KEY=VALUE, close every bracket and quote, and put "
                "quotes around a value that has some of its own."
            )
        if isinstance(cause, ConfigAttributeError | ConfigKeyError):
            key = str(cause.full_key)
            owner, _, name = key.rpartition(".")
            if (get_origin(kind := _kind(owner)) or kind) in (dict, Any):
                return f"{owner} has no entry {shown(name)!r} yet: write +{shown(key)}=VALUE to give it one."
            return unknown_key(key) if key.partition(".")[0] != "hydra" else _one_line(f"{chain[0]} {cause}")
        if isinstance(cause, MissingConfigException) and cause.options is not None and cause.missing_cfg_file:
            return _unknown_file(str(cause.missing_cfg_file), list(cause.options))
    whole = "\n".join(str(cause) for cause in chain)
    if found := re.match(r"In '.*': Could not load '(\w.*/.+)'\.", whole):
        group = found[1].rpartition("/")[0]
        if options := sorted(path.stem for path in (CONF / group).glob("*.yaml")):
            return _unknown_file(found[1], options)
    if told := _interpolation(str(error)):
        return told
    file = re.match(r"In '(.+)': (?:ValidationError|Config(?:Key|Attribute)Error)", whole)
    where = f"In '{file[1]}': " if file else ""
    group = file[1].partition("/")[0] if file else ""
    if group and group not in keys() and re.search(rf"^\s*full_key: {re.escape(group)}$", whole, re.MULTILINE):
        return f"{where}there are no settings {group}.*: begin the file with '# @package _global_'."
    if found := re.search(r"Invalid value '(.*)', expected one of \[(.*)\]\s+full_key: (\S+)", whole):
        return where + unknown_choice(found[3], found[1], found[2].split(", "))
    if found := re.search(r"\w+ is not a subclass of (\w+)\. value: (.*)\s", whole):  # a file's error has no key
        groups = [key for key, node in keys().items() if node is not None and node.__name__ == found[1]]
        return f"{where}{shown(found[2])} stands where a group of settings is: write {' or '.join(groups)}.NAME=VALUE."
    if file and (found := re.search(r"^\s*full_key: (\S+)", whole, re.MULTILINE)) and "ValidationError" not in file[0]:
        return where + unknown_key(found[1])  # Hydra keeps only the text of the cause
    if found := re.match(r"Could not override '([^'@]+)'\.\s+No match in the defaults list", whole):
        if f"{found[1]}.name" in keys():
            return f"'{found[1]}' is no choice of a config group: write {found[1]}.name=NAME."
        return f"'{found[1]}' has no default to replace: write +{found[1]}=NAME."
    if found := re.match(r"Multiple values for ([^.\s]+)\. To override a value use 'override [^:]+: (.*)'", whole):
        return f"'{found[1]}' is chosen more than once, last as {shown(found[2])!r}: leave one +{found[1]}=NAME."
    if told := _wrong_kind(whole):
        return where + told
    return _one_line(" ".join(str(cause) for cause in chain))


def _override(error: BaseException) -> str:
    """Return the word of the command line that Hydra was at, "" if there is none."""
    words = [frame.f_locals.get("override") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((str(word.input_line) for word in reversed(words) if hasattr(word, "input_line")), "")


def _interpolation(said: str) -> str:
    """Return the sentence for a ${...} that leads nowhere, "" for another error."""
    if found := re.match(r"Interpolation key '(.+)' not found", said):
        return f"A setting refers to another with ${{...}}. {unknown_key(found[1])}"
    if found := re.search(r"Environment variable '(.+)' not found", said):
        return f"The environment variable {shown(found[1])}, which a setting refers to, is not set: set it."
    if found := re.match(r"Unsupported interpolation type (.+)", said):
        name = shown(found[1])
        return f"${{{name}:...}} in a setting is of no known kind: write ${{KEY}}, or ${{oc.env:VARIABLE}}."
    return ""


def _wrong_kind(said: str) -> str:
    """Return the sentence for a value of another kind than its setting has, "" for another error."""
    key = re.search(r"^\s*full_key: (\S+)", said, re.MULTILINE)
    wanted = None if key is None else _noun(key[1])
    if key is None or wanted is None:
        return ""
    override = re.match(r"Error merging override [+]*([^=\n]+)=(.*)", said)
    if override and override[1].startswith(f"{key[1]}."):
        return unknown_key(override[1])
    inner = re.search(r"^Value '(.*)' of type |^While dereferencing interpolation '(.*)': ", said, re.MULTILINE)
    if override and override[1] == key[1]:
        value = override[2]
    elif inner:
        value = inner[2] if inner[1] is None else inner[1]
    else:
        return ""
    fix = f"write {key[1]}=[{shown(value)}]" if wanted == NOUNS[list] and value[:1] not in "[{" else "change it"
    return f"{key[1]}={shown(value)} must be {wanted}: {fix}."


def _kind(key: str) -> Any:
    """Return the type of a setting, or of an entry of one; None: the schema has none."""
    kind: Any = RunConfig
    for part in re.findall(r"[^.\[\]]+", key):
        if is_dataclass(kind):
            kind = {entry.name: entry.type for entry in fields(kind)}.get(part)
        else:  # a list's or map's values
            kind = kind if kind is Any else next(reversed(get_args(kind)), None)
        if isinstance(kind, UnionType):
            kind = next(each for each in get_args(kind) if each is not type(None))
    return kind


def _noun(key: str) -> str | None:
    """Return what a setting has to be, in words; None: the schema has no such key, or settings below it."""
    kind = _kind(key)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(each.value for each in kind)}"
    return NOUNS.get(get_origin(kind) or kind)


def _unknown_file(path: str, options: list[str]) -> str:
    """Return the sentence for a choice that is no file of its config group."""
    group, _, choice = (shown(part) for part in path.rpartition("/"))
    near = get_close_matches(choice, options, n=2)
    # A group without a default (experiment) is added, not replaced.
    plus = "" if group in keys() or group.startswith("hydra/") else "+"
    hint = f": did you mean {' or '.join(f'{plus}{group}={name}' for name in near)}? " if near else ". "
    return f"Unknown choice '{group}={choice}'{hint}{group} has: {', '.join(options)}."


def _one_line(message: str) -> str:
    """Return Hydra's and OmegaConf's text without the lines that are of use to programmers only."""
    lines = [line.strip() for line in message.splitlines()]
    kept = (line for line in lines if line and not line.startswith(("full_key:", "object_type", "reference_type")))
    return " ".join(shown(word) for line in kept for word in line.split())
