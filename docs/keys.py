"""Writes docs/keys.md: every key of the configuration with its type, default, range and meaning, from the schema.

python docs/keys.py            # prints it
python docs/keys.py --write
"""

import ast
import inspect
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import StrEnum
from io import StringIO
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import hydra
from omegaconf import OmegaConf

from orchestra_jax.config import cli
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.io.shipped import CONF

PAGE = Path(__file__).with_name("keys.md")
HEAD = """# Which settings are there?

Every key of the configuration, in the groups of `conf/`. Write `key=value` on the command line, a list as
`'key=[a,b]'`, nothing as `null`. The default is what `experiments/train.py` without arguments takes, the quickstart's;
`+experiment=hle --cfg job` prints those of the paper's run. A mistyped key or a value out of range is answered with one
sentence. This page is made from the schema: `python docs/keys.py --write`.
"""


def main() -> None:
    text = page()
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def page() -> str:
    """The whole page."""
    cli.register()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = OmegaConf.to_container(hydra.compose("config"), resolve=False)
    return "\n".join([HEAD, *_group("", RunConfig, config, {})])


def _group(prefix: str, schema: type, values: Any, first_keys: dict[str, str]) -> Iterator[str]:
    """The table of one dataclass, then those in it. `first_keys` has the key that says each long meaning."""
    types = get_type_hints(schema)
    said = {name: text for each in reversed(schema.__mro__[:-1]) for name, text in meanings(each).items()}
    plain = [entry for entry in fields(schema) if not is_dataclass(types[entry.name])]
    if prefix:
        summary = (inspect.getdoc(schema) or "").partition("\n\n")[0]
        yield f"## {prefix.rstrip('.')}\n\n{' '.join(summary.split())}\n"
    if plain:
        yield "| key | values | default | meaning |\n|---|---|---|---|"
        for entry in plain:
            key, shown, meaning = f"{prefix}{entry.name}", _cell(_shown(values[entry.name])), said.get(entry.name, "")
            first = first_keys.setdefault(meaning, key) if len(meaning) > 60 else key
            meaning = _cell(meaning) if first == key else f"as `{first}`"
            yield f"| `{key}` | {_values(entry, types)} | {shown} | {meaning} |"
        yield ""
    for entry in fields(schema):
        if is_dataclass(types[entry.name]):
            yield from _group(f"{prefix}{entry.name}.", types[entry.name], values[entry.name], first_keys)


def meanings(schema: type) -> dict[str, str]:
    """What the source says of each field: a comment behind it, or its entry under Attributes in the docstring."""
    source = inspect.getsource(schema)
    comments: dict[int, str] = {}
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# ")
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    listed = re.split(r"\n(?=\w)", (inspect.getdoc(schema) or "").partition("Attributes:\n")[2].replace("\n    ", "\n"))
    for entry in listed:
        names, _, text = entry.partition(": ")
        found |= dict.fromkeys(re.split(r",\s+", names.strip()), " ".join(text.split()))
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own = [
                comments[line] for line in range(node.lineno, (node.end_lineno or node.lineno) + 1) if line in comments
            ]
            if own:
                found[node.target.id] = " ".join(own)
    return found


def _values(entry: Any, types: dict[str, Any]) -> str:
    """Type, choices and range of a field, in words."""
    kind = types[entry.name]
    parts = get_args(kind) or (kind,)
    inner = [part for part in parts if part is not NoneType]
    choices = [part for part in inner if isinstance(part, type) and issubclass(part, StrEnum)]
    rule = {**entry.metadata}
    words = " | ".join(f"`{choice}`" for choice in choices[0]) if choices else _type(kind)
    if choices and getattr(kind, "__origin__", None) is list:
        words = f"list of {words}"
    if "low" in rule and rule.get("high") is not None:
        words += f" in [{rule['low']:g}, {rule['high']:g}]"
    elif "low" in rule:
        words += f" ≥ {rule['low']:g}"
    elif "above" in rule:
        words += f" > {rule['above']:g}"
    if choices and NoneType in parts:
        words += " | `null`"
    return _cell(words)


def _type(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return re.sub(r"[\w.]+\.", "", text).replace("NoneType", "null").replace("None", "null")


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "`null`", True: "`true`", False: "`false`"}[value]
    if isinstance(value, list):
        return f"`[{', '.join(_shown(one).strip('`') for one in value)}]`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    main()
