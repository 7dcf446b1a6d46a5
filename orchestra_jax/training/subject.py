"""What is evaluated: a checkpoint, the policy that a run exported, a model behind an endpoint, or a baseline."""

from dataclasses import dataclass, replace
from pathlib import Path

from orchestra_jax.config import record
from orchestra_jax.config.checks import POLICY_FOLDER as POLICY_FOLDER
from orchestra_jax.config.checks import missing_policy, no_policy
from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.evaluation.calls import model_family
from orchestra_jax.io import hub

BASELINE = "baseline:"  # before the name of a script
_ADAPTERS = "adapter_config.json"
_GENERATIONS = 9  # of runs that went on from each other's export


@dataclass(frozen=True)
class Subject:
    """The policy of an evaluation.

    Attributes:
        name: for reports.
        cfg: the config with what this policy needs.
        url: of the endpoint; None: cfg.model.path is sampled by our engines.
        adapters: folder of those on top of cfg.model.path, None without.
        baseline: name of a script (`envs.baselines`), for which no model speaks.
    """

    name: str
    cfg: RunConfig
    url: str | None = None
    adapters: Path | None = None
    baseline: str | None = None

    @property
    def own(self) -> bool:
        """Whether weights of ours are sampled by our engines."""
        return self.url is None and self.baseline is None

    def identity(self) -> str:
        """What tells it from others, also from one that was at the same place before."""
        if self.baseline is not None:
            return self.name
        if self.url is not None:
            asked, price = self.cfg.evaluation.endpoint, self.cfg.pricing
            costs = price.orchestrator_input, price.orchestrator_cached_input, price.orchestrator_output
            return repr((self.url, asked.model, asked.max_tokens_field, asked.extra, costs))
        folders = [hub.local(str(self.cfg.model.path), "model"), *([self.adapters] if self.adapters else [])]
        files = [file for folder in folders for file in sorted(folder.glob("*.safetensors"))]
        return repr([(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files])

    def parents(self) -> list[dict[str, object]]:
        """What it is made from, for the record of the evaluation."""
        if self.baseline is not None:
            return []
        if self.url is not None:
            return [{"setting": "policy", "path": self.url, "model": self.cfg.evaluation.endpoint.model}]
        made = [record.parent("model.path", hub.local(str(self.cfg.model.path), "model"))]
        return made + ([record.parent("adapters", self.adapters)] if self.adapters is not None else [])


def subject_of(cfg: RunConfig) -> Subject:
    """What `policy` names: an address, a baseline, a folder, an id of the hub; else model.path or the run's export.

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
    raise ConfigError(no_policy(cfg.policy))


def policy_model(cfg: RunConfig) -> str | None:
    """The name of the policy's own model: of an endpoint its own, of a checkpoint its folder's or id's.

    The export of a run is of the model that the run began with. None: no model of conf/models.yaml is of its family, so
    a folder may be called anything.
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
    """The config where no weights, tokenizer or engine of ours take part."""
    model = replace(cfg.model, path=None, random_init=True, tokenizer=None)
    return replace(cfg, model=model, rollout=replace(cfg.rollout, engine=EngineName.embedded))


def _own(cfg: RunConfig) -> Subject:
    """model.path, or what the run of this name exported."""
    exported = Path(cfg.output_dir) / POLICY_FOLDER
    if (exported / _ADAPTERS).exists() and cfg.model.path is not None and cfg.model.lora.rank:
        return Subject(str(exported), cfg, adapters=exported)
    if problem := missing_policy(cfg):
        raise ConfigError(problem)
    path = cfg.model.path or str(exported)
    return Subject(path, replace(cfg, model=replace(cfg.model, path=path)))


def _checkpoint(cfg: RunConfig, path: str) -> Subject:
    """A checkpoint brings its own tokenizer, unless the environment's words are asked for."""
    own = cfg.model.tokenizer != "environment" and (hub.is_id(path) or (Path(path) / "tokenizer.json").is_file())
    tokenizer = path if own else cfg.model.tokenizer
    return Subject(path, replace(cfg, model=replace(cfg.model, path=path, tokenizer=tokenizer)))


def _adapted(cfg: RunConfig, folder: Path) -> Subject:
    """Adapters on the base that their file names."""
    from orchestra_jax.models.lora import adapter_base

    try:
        base = adapter_base(folder)
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from error
    on_base = _checkpoint(cfg, base).cfg
    if on_base.model.tokenizer != "environment" and (folder / "tokenizer.json").is_file():
        on_base = replace(on_base, model=replace(on_base.model, tokenizer=str(folder)))
    return Subject(str(folder), on_base, adapters=folder)
