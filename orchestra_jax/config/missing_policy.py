"""Tell what commands other than train need and do not have: a policy to evaluate, files of experts or a judge."""

from dataclasses import replace
from pathlib import Path

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.missing import is_there, missing_inputs
from orchestra_jax.config.ranges import shown
from orchestra_jax.config.schema import POLICY_FOLDER, WorldConfig
from orchestra_jax.io import hub

NOT_OURS = ("http://", "https://", "baseline:")  # a policy that begins so is sampled by no engine of ours


def missing_to_evaluate(config: WorldConfig) -> list[str]:
    """Return one sentence for each thing that experiments/evaluate.py needs and that is not there."""
    if problem := missing_policy(config):
        return [problem]
    # The policy is there, and brings its tokenizer; a model behind an address has no engine of ours.
    words = "environment" if config.policy else config.model.tokenizer
    ours = config.policy is None or not config.policy.startswith(NOT_OURS)
    engine = config.rollout.engine if ours else EngineName.embedded
    path = config.model.path if config.policy is None else None
    model = replace(config.model, path=path, tokenizer=words, random_init=True)
    return missing_inputs(replace(config, model=model, rollout=replace(config.rollout, engine=engine)))


def not_on_hub(policy: str | None) -> list[str]:
    """Ask the hub for a policy that is named by an id; return a list with the sentence if it cannot be had."""
    if policy is None or policy.startswith(NOT_OURS) or not hub.is_id(policy):
        return []
    problem = hub.problem("policy", policy, "model", hub.SMALL)
    return [] if problem is None else [problem]


def missing_to_ask(config: WorldConfig, sample: str | None = None) -> list[str]:
    """Return one sentence for each file that experts or a judge are asked with, and that is not there.

    Args:
        sample: the value of evaluation.judge_sample, where it is needed.
    """
    tools = config.tools
    asked = [
        ("tools.experts_file", tools.experts_file),
        ("tools.descriptions", tools.descriptions),
        ("evaluation.judge_sample", sample),
    ]
    return [f"{key}={shown(path)} is not there: set {key}." for key, path in asked if path and not is_there(key, path)]


def missing_policy(config: WorldConfig) -> str | None:
    """Return the sentence for a policy to evaluate that is not there, or None if it is."""
    if config.policy is None:
        exported = Path(config.output_dir) / POLICY_FOLDER
        if config.model.path is not None or exported.exists():
            return None
        return (
            "There is no policy to evaluate: set policy=FOLDER or policy=http://HOST:PORT/v1, or train first "
            f"({exported} is not there)."
        )
    if config.policy.startswith(NOT_OURS) or is_there("model.", config.policy):
        return None
    return no_policy(config.policy)


def no_policy(named: str) -> str:
    """Return the sentence for a `policy` that names none."""
    return (
        f"policy={shown(named)} is neither a checkpoint (config.json, *.safetensors), a run's folder, an id on "
        "the hub nor an address: set policy=FOLDER, policy=http://HOST:PORT/v1 or policy=baseline:NAME."
    )
