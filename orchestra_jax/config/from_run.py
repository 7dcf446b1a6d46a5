"""Settings of an evaluation that starts from the record of the run that trained the policy.

The record gives everything that `OWN` does not name, and what the command sets wins. A command that names a world
(`env=`, `+benchmark=`, `+experiment=`) takes nothing from the record.
"""

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from orchestra_jax.config import record
from orchestra_jax.config.choices import EngineName, ReplayMode
from orchestra_jax.config.cli import end, schema
from orchestra_jax.config.compose import of_this_version
from orchestra_jax.config.missing_policy import NOT_OURS
from orchestra_jax.config.parents import run_folder
from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.config.schema import POLICY_FOLDER
from orchestra_jax.io.shipped import CONF

# Stay as the command has them: this machine's, and where the results go.
OWN = (
    *("output_dir", "policy", "mesh", "logger", "checkpoint", "compilation_cache", "synthesis", "replay"),
    *("model.path", "model.random_init", "model.lora"),
    *("evaluation.dry_run", "evaluation.endpoint", "evaluation.judge_sample"),
)
# Groups whose choice changes this section alone; any other choice names a world.
_SECTIONS = {name: name for name in ("tools", "data", "reward", "model", "rollout", "mesh", "algorithm", "logger")}
_SECTIONS |= {"placement": "rollout"}
_OF_THE_RUN = ("rollout.limits", "rollout.history")  # also where another engine is chosen
# Settings that name files, by the last part of their key; any other text of env.options with a / does too.
_FILES = {"path", "eval_path", "preferences_file", "corpus", "index", "experts_file", "descriptions", "tokenizer"}
_FILES |= {"chat_template", "weight_folder", "worlds", "repo", "rows", "original", "references", "test_path"}
_OWN_WORDS = "environment"  # the model.tokenizer of a policy whose words and prompts are those of its world
_STRANGER = (
    "{home} was trained on the words and prompts of its own world (model.tokenizer=environment), which this command "
    "replaces: expect next to nothing. Leave env=, +benchmark= and +experiment= out to ask it what it was trained for."
)


def in_its_folder(words: Sequence[str]) -> list[str]:
    """Return the words of a command line for the policy of a run, with the run's folder as output_dir.

    A name, and a benchmark or experiment with a name of its own, keep the folder that they name.
    """
    given = dict(word.lstrip("+").partition("=")[::2] for word in words)
    if {"-m", "--multirun"} & given.keys():
        return list(words)
    try:
        policy = parsed([f"policy={given.get('policy')}"])[0].value()
        folder = run_of(policy) if isinstance(policy, str) else None
    except (HydraException, ConfigError):  # told when the settings are read
        folder = None
    if folder is None:
        return list(words)
    # The options of the run's world are not among those that Hydra composes.
    found = [f"++{word}" if word.startswith(("env.options.", "tools.experts.")) else word for word in words]
    named = [CONF / group / f"{given[group]}.yaml" for group in ("benchmark", "experiment") if group in given]
    if any(file.is_file() and "\nname:" in file.read_text(encoding="utf-8") for file in named):
        return found
    quoted = os.path.relpath(folder).replace("\\", "\\\\").replace("'", "\\'")
    return found if {"name", "output_dir"} & given.keys() else [*found, f"output_dir='{quoted}'"]


def run_of(policy: str) -> Path | None:
    """Return the folder of the run that left a policy: itself, or one of the two folders above; None: no record.

    Raises:
        ConfigError: the file that is there is no record of a run.
    """
    if policy.startswith(NOT_OURS) or not os.path.isdir(policy):
        return None
    home = run_folder(Path(policy))
    found = record.read(home) if home is not None else None
    return home if found is not None and found.get("kind") == "train" else None


def from_run(config: DictConfig) -> tuple[DictConfig, str]:
    """Return the settings of an evaluation inside a `hydra.main` function, and a line about the record, or "".

    Raises:
        SystemExit: status 2 after one sentence, see `settings`.
    """
    hydra = HydraConfig.get()
    with one_sentence():
        found, home = settings(config, hydra.overrides.task, hydra.runtime.output_dir)
        return found, told(found, hydra.overrides.task, home) if home is not None else ""


def settings(config: DictConfig, given: Sequence[str], output_dir: str) -> tuple[DictConfig, Path | None]:
    """Return the settings of an evaluation, and the run whose record they start from.

    Args:
        given: words of the command line that they are composed from.
        output_dir: folder of the command; the run in it is evaluated if no policy is named.

    Raises:
        ConfigError: the record is none, or none of this version.
    """
    words, policy = parsed(given), config.policy
    if policy is None and config.model.path is None and os.path.isdir(os.path.join(output_dir, POLICY_FOLDER)):
        policy = output_dir
    home = run_of(policy) if isinstance(policy, str) else None
    found = record.read(home) if home is not None else None
    if home is None or found is None:
        return config, None
    try:
        if _names_a_world(words, found["config"]):
            words_of_its_own = found["config"]["model"].get("tokenizer") == _OWN_WORDS
            if words_of_its_own and config.model.tokenizer != _OWN_WORDS:
                print(_STRANGER.format(home=os.path.relpath(home)), flush=True)
            return config, None
        merged = merged_with(config, words, found | {"config": dict(taken_from(home, found["config"], words))})
        merged.policy = policy
    except (OmegaConfBaseException, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{str(home / record.FILE_NAME)!r} was written by another version ({str(error).splitlines()[0]}): name the "
            "world with +benchmark=NAME or env=NAME, then nothing is taken from the record."
        ) from None
    return merged, home


def merged_with(
    config: DictConfig, words: Sequence[Override], found: Mapping[str, Any], staying: Sequence[str] = OWN
) -> DictConfig:
    """Return the settings with those of a record in their place, and those of the command line above them.

    Args:
        staying: settings that stay as they are composed.
    """
    fresh, merged = schema(), copy.deepcopy(config)
    with open_dict(merged):
        merged.name = found["name"]
        for key, value in found["config"].items():
            OmegaConf.update(fresh, key, value, merge=True)
            own = {name: OmegaConf.select(config, name) for name in staying if name.startswith(f"{key}.")}
            OmegaConf.update(merged, key, OmegaConf.select(fresh, key), merge=False)
            for name, inner in own.items():
                OmegaConf.update(merged, name, inner, merge=False)
        for word in words:
            set_again(merged, word)
    return merged


@contextmanager
def one_sentence() -> Iterator[None]:
    """End the process with the sentence of a user's error; raised further, Hydra would put a line of its own above."""
    try:
        yield
    except (ConfigError, OmegaConfBaseException) as error:
        from orchestra_jax.config.errors import explain_error

        end(explain_error(error))


def told(config: DictConfig, given: Sequence[str], home: Path) -> str:
    """Return the line that says what is taken from a run's record, who is paid for it, and what the command sets."""
    env, limits, rollout = config.env, config.rollout.limits, config.rollout
    offer = config.tools.evaluation if config.tools.evaluation.own else config.tools
    models = sorted({model for some in offer.experts.values() for model in some})
    tools = [*offer.names, *models, *config.tools.simulated, *(["MCP servers"] if offer.mcp else [])]
    parts = [
        f"env {env.name}",
        *([] if ":" in env.name else [f"tools {_listed(tools) or 'none'}"]),  # a world of the user's has its own
        f"prices {config.pricing.name}",
        f"{limits.max_turns} turns, {limits.max_calls} calls, {limits.max_length} tokens",
    ]
    if rollout.engine != EngineName.embedded:
        parts.append(f"{rollout.engine} {' '.join(rollout.urls)}".rstrip())
    line = f"As in the run {os.path.relpath(home)}: {'; '.join(parts)}."
    others = (config.tools.judge, env.options.get("user"))
    asked = list(dict.fromkeys([*models, *(name for name in others if name not in (None, "match", "scripted"))]))
    if asked and config.replay.mode != ReplayMode.replay:
        usd, url = config.budget.run_usd, config.tools.server.url
        limit = "no budget.run_usd is set" if usd is None else f"budget.run_usd={usd:g} ends it"
        line += f" It asks {_listed(asked)}{f' at {url}' if url else ''}; {limit}."
    if gone := of_this_version((record.read(home) or {}).get("config", {}))[1]:
        line += f" Another version trained it; left out are settings that this one does not have: {', '.join(gone)}."
    own = [each.key_or_group for each in parsed(given)]
    own = [key for key in own if key not in ("policy", "name", "output_dir", "evaluation.dry_run")]
    return line + (f" The command sets {', '.join(own)}." if own else "")


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - 5} more"] if len(names) > 6 else []
    return ", ".join([*names[:5], *more] if more else names)


def parsed(words: Sequence[str]) -> list[Override]:
    """Return the words of a command line as Hydra reads them."""
    return OverridesParser.create().parse_overrides(list(words))


def _names_a_world(words: Sequence[Override], recorded: Mapping[str, Any]) -> bool:
    """Return whether the command says itself where the policy is evaluated."""
    settings = {key for key, value in schema().items_ex(resolve=False) if not isinstance(value, DictConfig)}
    groups = {each.key_or_group for each in words if "." not in each.key_or_group} - settings
    names = [each.value() for each in words if each.key_or_group == "env.name"]
    return bool(groups - _SECTIONS.keys()) or any(name != recorded["env"]["name"] for name in names)


def taken_from(
    home: Path, recorded: Mapping[str, Any], words: Sequence[Override], staying: Sequence[str] = OWN
) -> Iterator[tuple[str, Any]]:
    """Yield the record's settings but those `staying`; files named from the run's folder of work are found."""
    start, chosen = _started_in(home), {_SECTIONS.get(each.key_or_group) for each in words}
    for key, value in of_this_version(recorded)[0].items():
        if key in chosen:
            for inner in (name.partition(".")[2] for name in _OF_THE_RUN if name.startswith(f"{key}.")):
                yield f"{key}.{inner}", value[inner]
        # A run that only replays has paid nobody, nor will its evaluation.
        elif key not in staying or (key == "replay" and value["mode"] == ReplayMode.replay):
            yield key, _found(value, start, key)


def _started_in(home: Path) -> Path | None:
    """Return the folder that the run was started in, as Hydra noted it; None: it is this one, gone or unknown."""
    try:
        noted = OmegaConf.select(OmegaConf.load(home / ".hydra" / "hydra.yaml"), "hydra.runtime.cwd")
    except (OSError, ValueError, OmegaConfBaseException):
        return None
    return Path(noted) if isinstance(noted, str) and os.path.isdir(noted) and Path(noted) != Path.cwd() else None


def _found(value: Any, start: Path | None, key: str) -> Any:
    """Return a setting with the files in it that lie in `start` as whole paths."""
    if isinstance(value, Mapping):
        return {name: _found(inner, start, f"{key}.{name}") for name, inner in value.items()}
    if isinstance(value, list):
        return [_found(inner, start, key) for inner in value]
    if start is None or not isinstance(value, str) or not value:
        return value
    is_file = key.rpartition(".")[2] in _FILES or ("/" in value and key.startswith(("env.options.", "rollout.server.")))
    return str(start / value) if is_file and os.path.exists(start / value) else value


def set_again(config: Any, word: Override) -> None:
    """Set what a word of the command line set; choices of groups have been left as they were."""
    key = word.key_or_group
    if key in _SECTIONS:
        return
    above, _, name = key.rpartition(".")
    if word.is_delete():
        OmegaConf.select(config, above).pop(name, None)
    else:
        OmegaConf.update(config, key, word.value(), merge=True, force_add=True)
