"""Commands of the pages, and what a shell would find wrong with each, told without running what takes time."""

import argparse
import fnmatch
import importlib
import os
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from orchestra_jax.config import checks, cli, errors, missing
from orchestra_jax.config.flags import DRY_RUN, LIMIT, PATH, Flag, as_settings
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.io import hub

ROOT = Path(__file__).resolve().parents[2]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
HYDRA = {  # script: what it composes
    "train": "config",
    "plan": "config",
    "evaluate": "evaluate",
    "judge": "evaluate",
    "synthesize": "synthesis",
}  # script: what it composes
SAMPLE = Flag("--sample", "evaluation.judge_sample", "", "FILE")
FLAGS = {"train": (PATH,), "evaluate": (LIMIT, DRY_RUN), "judge": (SAMPLE, DRY_RUN), "synthesize": (DRY_RUN,)}
# Which arguments of the other scripts name files: what must be there, and what they make.
READS = {
    "report": ["runs", "base"], "compare": ["runs"], "view": ["run"], "index": ["passages"],
    "ask": ["policy"], "chat": ["policy"], "serve": ["policy"],
    "describe_tools": ["tasks", "experts"], "records": ["path", "others"],
}  # fmt: skip
MAKES = {
    "zeroeval": ["folder"],
    "compare": ["csv"],
    "report": ["out"],
    "index": ["directory"],
    "describe_tools": ["file"],
    "records": ["path"],
    "labelled_sample": ["file"],
}
# Programs that are not ours; their arguments are not read here.
FOREIGN = {"git", "hf", "inspect", "apt-get", "sglang.launch_server", "venv", "tensorboard", "nvidia-smi", "df", "curl"}


_LEFT = ("outputs", "multirun", "build", ".venv")


@dataclass(frozen=True)
class Command:
    """One command of a page: its words, and the variables that are set for it, or exported before."""

    page: str
    line: int
    words: tuple[str, ...]
    variables: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


@dataclass
class Files:
    """What a reader of a page has: the checkout, what is declared, and what the page's commands made so far."""

    declared: Mapping[str, str]
    made: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)

    def has(self, name: str) -> bool:
        if name.startswith(("http://", "https://")) or hub.is_id(name):
            return True
        if any(name == made or name.startswith(f"{made}/") for made in self.made):
            return True
        found = next((pattern for pattern in self.declared if fnmatch.fnmatch(name, pattern)), None)
        self.used.update([found] if found else [])
        # A newcomer's checkout: what runs and `make` left in this one does not count.
        return found is not None or (not name.startswith(_LEFT) and (ROOT / name).exists())


def commands(text: str, page: str) -> Iterator[Command]:
    """Every command of the page's ```bash blocks, in order; what is exported holds to its end."""
    exported: dict[str, str] = {}
    for block in re.finditer(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        first, lines = text[: block.start()].count("\n") + 2, block[1].splitlines()
        number = 0
        while number < len(lines):
            start, whole = number, lines[number]
            while whole.endswith("\\"):
                number += 1
                whole = whole[:-1] + lines[number]
            number += 1
            for words in _split(whole):
                count = next((i for i, word in enumerate(words) if not _SETS.fullmatch(word)), len(words))
                own = dict(word.split("=", 1) for word in words[:count])
                if words[count:][:1] == ["export"]:
                    exported |= dict(word.split("=", 1) for word in words[count + 1 :])
                yield Command(page, first + start, tuple(words[count:]), exported | own)


_SETS = re.compile(r"[A-Z][A-Z0-9_]*=.*")


def _split(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&;|")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    for token in [*lexer, ";"]:
        if token not in ("&&", ";", "|", "||"):
            words.append(token)
            continue
        if words:
            yield words
        words = []


def problem(command: Command, files: Files) -> str | None:
    """What is wrong with a command, a sentence; None where it would start."""
    with mock.patch.dict(os.environ, command.variables):
        return _problem(command, files)


def _problem(command: Command, files: Files) -> str | None:
    words = [word for word in command.words if word != "..."]
    if words[0] == "srun":
        words = words[next(i for i, word in enumerate(words) if i and not word.startswith("-")) :]
    program, *rest = words
    name = program.removeprefix(".venv/bin/").removeprefix(".venv-sglang/bin/")
    if name in ("export", "cd", "source"):
        return None if name != "source" or files.has(rest[0]) else f"{rest[0]} is not there."
    if name == "make":
        return _make(rest, files)
    if name == "pip":
        extras = re.findall(r"\[(.*?)\]", " ".join(rest))
        return next((f"No extra {x}." for some in extras for x in some.split(",") if x not in EXTRAS), None)
    if name == "orchestra-jax":
        return _script(rest[0].replace("-", "_"), rest[1:], files)
    if name == "sbatch":
        return _slurm([word for word in rest if not word.startswith("--")], files)
    if name in ("python", "python3"):
        return _python(rest, files)
    return None if name in FOREIGN else f"Nobody knows the program {program}."


def _make(words: list[str], files: Files) -> str | None:
    target, *variables = words
    if target not in TARGETS:
        return f"The Makefile has no target {target}."
    if target in ("install", "install-dev"):
        files.made.add(".venv")
    if target == "quickstart":
        given = next((word.removeprefix("RUN=").split() for word in variables if word.startswith("RUN=")), [])
        return _script("train", given, files)
    return None


def _slurm(words: list[str], files: Files) -> str | None:
    script, layout, *overrides = words
    if not (ROOT / script).exists() or f"\n  {layout})" not in (ROOT / script).read_text():
        return f"{script} has no layout {layout}."
    placement = {"shared": "shared_node", "separate": "separate", "nodes": "nodes"}[layout]
    server = "rollout.server.python=.venv-sglang/bin/python"
    return _script("train", [f"+placement={placement}", server, *overrides], files)


def _python(words: list[str], files: Files) -> str | None:
    if words[0] == "-c":
        compile(words[1], "-c", "exec")
        return None
    if words[0] == "-m":
        module, *rest = words[1:]
        if module in FOREIGN:
            return None
        if module == "pytest":
            return None if files.has(rest[-1]) else f"{rest[-1]} is not there."
        try:
            file = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            file = None
        if file is None or file.origin is None:
            return f"There is no module {module}."
        return _parsed(Path(file.origin), rest, files)
    file = ROOT / words[0].removeprefix("PATH/")
    if not file.is_file():
        return f"There is no file {words[0]}."
    return (
        _script(file.stem, words[1:], files) if file.parent.name == "experiments" else _parsed(file, words[1:], files)
    )


def _script(name: str, words: list[str], files: Files) -> str | None:
    if not (ROOT / "experiments" / f"{name}.py").exists():
        return f"There is no script {name}."
    if name not in HYDRA:
        return _parsed(ROOT / "experiments" / f"{name}.py", words, files)
    words = as_settings(words, FLAGS.get(name, ()))
    if name == "evaluate" and any(word.startswith("policy=") for word in words):
        # The policy's run tells the world whose options these are (config.from_run).
        words = [f"++{word}" if word.startswith("env.options.") else word for word in words]
    try:
        asked, unknown = get_args_parser().parse_known_args(words)
        if unknown:
            return f"Hydra takes no {unknown[0]} there."
        for overrides in _jobs(asked.overrides) if asked.multirun else [asked.overrides]:
            cfg = checks.load(hydra.compose(HYDRA[name], overrides))
            if asked.multirun:
                files.made.add(f"multirun/{cfg.name}")
            if found := _inputs(name, cfg, files) if asked.cfg is None else None:
                return found
    except SystemExit:
        return f"Hydra does not take {shlex.join(words)}."
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        return errors.explain_error(error)
    return None


def _jobs(overrides: list[str]) -> Iterator[list[str]]:
    """The overrides of one job for every value of a sweep: not all combinations, but each value once."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    choices = [list(map(str, one.sweep_string_iterator())) if one.is_sweep_override() else None for one in parsed]
    for number in range(max((len(values) for values in choices if values), default=1)):
        yield [
            one.input_line if values is None else f"{one.get_key_element()}={values[min(number, len(values) - 1)]}"
            for one, values in zip(parsed, choices, strict=True)
        ]


def _inputs(script: str, cfg: RunConfig, files: Files) -> str | None:
    """What the run would miss, where its files are those of the reader; afterwards it has made its own."""
    found: list[str] = []
    if script != "plan":  # which reads no file but a config.json
        with mock.patch.object(missing, "is_there", lambda key, path: files.has(path)):
            policy = cfg.policy
            found = missing.missing_inputs(cfg)
        if script == "judge":  # asks the judge alone, of a file of its own
            sample = cfg.evaluation.judge_sample or "no sample"
            found = [one for one in found if one.startswith("tools.experts need")] + (
                [] if files.has(sample) else [sample]
            )
        if policy is not None and not policy.startswith("baseline:"):
            found = [sentence for sentence in found if not sentence.startswith("The policy ")]
            found += [] if files.has(policy) else [f"policy={policy} is not there."]
    files.made.add(cfg.output_dir)
    if cfg.replay.path and cfg.replay.mode in ("record", "replay_or_record"):
        files.made.add(cfg.replay.path)
    return found[0] if found else None


class _Parsed(Exception):  # noqa: N818  what the script was told, not an error
    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked


def _parsed(file: Path, words: list[str], files: Files) -> str | None:
    """Lets a script read its arguments and stops it there."""

    def stopping(parse: Any) -> Any:
        def stop(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> None:
            raise _Parsed(parse(self, args, namespace))

        return stop

    parser = argparse.ArgumentParser
    with (
        mock.patch.object(parser, "parse_args", stopping(parser.parse_args)),
        mock.patch.object(parser, "parse_intermixed_args", stopping(parser.parse_intermixed_args)),
        mock.patch.object(sys, "argv", [str(file), *words]),
        mock.patch.object(sys, "path", [str(file.parent), *sys.path]),  # as for a script, which may have siblings
    ):
        try:
            runpy.run_path(str(file), run_name="__main__")
        except _Parsed as parsed:
            asked = vars(parsed.asked)
        except SystemExit as end:
            return None if end.code == 0 else f"{file.name} does not take {shlex.join(words)}."
        except ImportError as error:
            return f"{file.name} does not import: {error}."
        else:
            return f"{file.name} reads no arguments."

    def named(table: Mapping[str, list[str]]) -> list[str]:
        values = [asked.get(key) for key in table.get(file.stem, [])]
        return [str(one) for value in values if value for one in (value if isinstance(value, list) else [value])]

    missing = [name for name in named(READS) if not files.has(name)]
    files.made.update(name for name in named(MAKES) if name != "-")
    return f"{missing[0]} is not there." if missing else None


@contextmanager
def composing() -> Iterator[None]:
    """Within it, commands of Hydra's scripts can be told about."""
    cli.register()
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield
