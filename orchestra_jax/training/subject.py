"""The subject of an evaluation: a checkpoint, a run's exported policy, a model behind an endpoint, or a baseline."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestra_jax.config import record
from orchestra_jax.config.checks import flat
from orchestra_jax.config.choices import EngineName, ReplayMode
from orchestra_jax.config.from_run import run_of
from orchestra_jax.config.missing_policy import missing_policy, no_policy
from orchestra_jax.config.parents import parent
from orchestra_jax.config.schema import POLICY_FOLDER, ConfigError, RunConfig
from orchestra_jax.envs.base import Baseline, Environment
from orchestra_jax.envs.baselines import baseline
from orchestra_jax.evaluation.benchmarks import chosen_tasks, in_parts
from orchestra_jax.evaluation.model_family import model_family
from orchestra_jax.io import hub

BASELINE = "baseline:"  # prefix of a script's name
_ADAPTERS = "adapter_config.json"
_GENERATIONS = 9  # most runs that each started from the export of the one before


@dataclass(frozen=True)
class Subject:
    """The policy of an evaluation.

    Attributes:
        name: name in reports.
        cfg: config with the settings that this policy needs.
        url: address of the endpoint; None: our engines sample cfg.model.path.
        adapters: folder of the adapters on top of cfg.model.path, or None.
        baseline: name of a script (`envs.baselines`) that plays instead of a model, or None.
    """

    name: str
    cfg: RunConfig
    url: str | None = None
    adapters: Path | None = None
    baseline: str | None = None

    @property
    def own(self) -> bool:
        """True if our own engines sample the policy."""
        return self.url is None and self.baseline is None

    def identity(self) -> str:
        """Return a text that differs for every other policy, also for an earlier one in the same place.

        It differs too where experts are asked in another way: with other settings they answer something else.
        """
        return f"{self._policy()}{self._experts() or ''}"

    def _policy(self) -> str:
        if self.baseline is not None:
            return self.name
        if self.url is not None:
            asked, price = self.cfg.evaluation.endpoint, self.cfg.pricing
            costs = price.orchestrator_input, price.orchestrator_cached_input, price.orchestrator_output
            return repr((self.url, asked.model, asked.max_tokens_field, asked.extra, costs))
        folders = [hub.local(str(self.cfg.model.path), "model"), *([self.adapters] if self.adapters else [])]
        files = [file for folder in folders for file in sorted(folder.glob("*.safetensors"))]
        return repr([(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files])

    def _experts(self) -> dict[str, object]:
        """Return the settings of experts that are given and that decide what they answer."""
        tools = self.cfg.tools.opened
        limits = {"max_tokens": tools.server.max_tokens, "context_tokens": tools.server.context_tokens}
        given: dict[str, object] = {key: value for key, value in limits.items() if value is not None}
        if tools.experts_file:
            from orchestra_jax.tools.experts.expert import read_experts

            for one in read_experts(tools.experts_file):
                given[one.name] = one.model, one.temperature, one.max_tokens, one.context_tokens, dict(one.extra)
        return given

    def parents(self) -> list[dict[str, object]]:
        """Return what the policy is made from, for the record of the evaluation."""
        if self.baseline is not None:
            return []
        if self.url is not None:
            return [{"setting": "policy", "path": self.url, "model": self.cfg.evaluation.endpoint.model}]
        made = [parent("model.path", hub.local(str(self.cfg.model.path), "model"))]
        return made + ([parent("adapters", self.adapters)] if self.adapters is not None else [])

    def asked_elsewhere(self, before: Mapping[str, Any] | None) -> str | None:
        """Return a sentence on recorded answers of the same model at another address, which may stand for the policy's.

        Args:
            before: record of the earlier evaluations in the folder, None where there is none.
        """
        replay, model = self.cfg.replay, self.cfg.evaluation.endpoint.model
        if before is None or self.url is None or replay.mode is not ReplayMode.replay_or_record:
            return None
        first = dict(flat(before["config"]))
        starts = [first | start.get("changed", {}) for start in before["starts"]]
        asked = {str(start.get("policy")) for start in starts if start.get("evaluation.endpoint.model") == model}
        if not (others := " and ".join(sorted(url for url in asked - {self.url} if url.startswith("http")))):
            return None
        return (
            f"{replay.path} may hold answers that {model} gave at {others}: where a request is the same, they stand "
            f"for those of {self.url}. With another name= that server is asked itself."
        )


def subject_of(cfg: RunConfig) -> Subject:
    """Return what `policy` names (address, baseline, folder, hub id); else model.path or the run's export.

    Raises:
        ConfigError: there is no such policy.
    """
    if cfg.policy is None:
        return _own(cfg)
    if cfg.policy.startswith(("http://", "https://")):
        from orchestra_jax.rollout.endpoint import asked_model, endpoint_pricing

        model = asked_model(cfg, cfg.policy)
        return Subject(f"{model} at {cfg.policy}", replace(_no_model(cfg), pricing=endpoint_pricing(cfg)), cfg.policy)
    if cfg.policy.startswith(BASELINE):
        return Subject(cfg.policy, _no_model(cfg), baseline=cfg.policy.removeprefix(BASELINE))
    folder = Path(cfg.policy)
    exported = folder if (folder / _ADAPTERS).is_file() else folder / POLICY_FOLDER
    if (exported / _ADAPTERS).is_file():
        return _adapted(cfg, exported)
    if (exported / "config.json").is_file():
        return _checkpoint(cfg, str(exported))
    if (folder / record.FILE_NAME).is_file():
        raise ConfigError(f"The run in policy={folder} has exported no policy yet: let it end, or name a checkpoint.")
    if (folder / "config.json").is_file() or hub.is_id(cfg.policy):
        return _checkpoint(cfg, cfg.policy)
    if (home := run_of(cfg.policy)) is not None:  # its checkpoints, from which only the training goes on
        raise ConfigError(f"policy={cfg.policy} is no policy that can be loaded: set policy={home}, the run's folder.")
    raise ConfigError(no_policy(cfg.policy))


def script_of(subject: Subject, environment: Environment) -> Baseline:
    """Return the script that `policy` names; raise ConfigError if there is none."""
    found, limits = chosen_tasks(environment, subject.cfg), subject.cfg.rollout.limits
    tasks = [task for name, some in found.items() for part in in_parts(name, some).values() for task in part]
    # The answer is a turn of its own.
    return baseline(environment, str(subject.baseline), tasks, min(limits.max_calls, limits.max_turns - 1))


def policy_model(cfg: RunConfig) -> str | None:
    """Return the name of the policy's model: an endpoint's model, or a checkpoint's folder or id.

    A run's export counts as the model that the run began with. None if no model of conf/models.yaml is of its family: a
    folder may have any name.
    """
    if cfg.policy is not None and cfg.policy.startswith(("http://", "https://")):
        return cfg.evaluation.endpoint.price or cfg.evaluation.endpoint.model
    path = cfg.model.path
    for _ in range(_GENERATIONS):
        if path is None:
            return None
        run = record.read(Path(path).parent) if Path(path).name == POLICY_FOLDER else None
        if run is None:
            break
        path = run["config"].get("model", {}).get("path")
    name = Path(str(path)).name.lower()
    from orchestra_jax.tools.experts.cards import model_cards

    return name if model_family(name) in {model_family(model) for model in model_cards()} else None


def _no_model(cfg: RunConfig) -> RunConfig:
    """Return the config without weights, tokenizer or engine of ours."""
    model = replace(cfg.model, path=None, random_init=True, tokenizer=None)
    return replace(cfg, model=model, rollout=replace(cfg.rollout, engine=EngineName.embedded))


def _own(cfg: RunConfig) -> Subject:
    """Return model.path, or what the run of this name exported."""
    exported = Path(cfg.output_dir) / POLICY_FOLDER
    if (exported / _ADAPTERS).exists() and cfg.model.path is not None and cfg.model.lora.rank:
        return Subject(str(exported), cfg, adapters=exported)
    if problem := missing_policy(cfg):
        raise ConfigError(problem)
    path = cfg.model.path or str(exported)
    return Subject(path, replace(cfg, model=replace(cfg.model, path=path)))


def _checkpoint(cfg: RunConfig, path: str) -> Subject:
    """Return a checkpoint with its own tokenizer, unless the environment's words are asked for."""
    own = cfg.model.tokenizer != "environment" and (hub.is_id(path) or (Path(path) / "tokenizer.json").is_file())
    tokenizer = path if own else cfg.model.tokenizer
    return Subject(path, replace(cfg, model=replace(cfg.model, path=path, tokenizer=tokenizer)))


def _adapted(cfg: RunConfig, folder: Path) -> Subject:
    """Return adapters on the base that their file names."""
    from orchestra_jax.models.lora import adapter_base

    try:
        base = adapter_base(folder)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    on_base = _checkpoint(cfg, base).cfg
    if on_base.model.tokenizer != "environment" and (folder / "tokenizer.json").is_file():
        on_base = replace(on_base, model=replace(on_base.model, tokenizer=str(folder)))
    return Subject(str(folder), on_base, adapters=folder)
