"""What `policy` names, by the files that are there."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.choices import ReplayMode
from orchestra_jax.config.record import RunRecord, read
from orchestra_jax.config.schema import (
    ConfigError,
    EndpointConfig,
    EvaluationConfig,
    ModelConfig,
    ReplayConfig,
    RunConfig,
)
from orchestra_jax.config.tools import ExpertServer, ToolsConfig
from orchestra_jax.training.subject import Subject, policy_model, subject_of


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A checkpoint, a run that exported it, one that exported adapters on it, and one that has not ended."""
    for folder in ("checkpoint", "whole/policy"):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            (tmp_path / folder / name).write_text("{}")
    (tmp_path / "lora" / "policy").mkdir(parents=True)
    adapters = {"base_model_name_or_path": str(tmp_path / "checkpoint")}
    (tmp_path / "lora" / "policy" / "adapter_config.json").write_text(json.dumps(adapters))
    (tmp_path / "lora" / "policy" / "tokenizer.json").write_text("{}")
    for run in ("whole", "begun"):
        (tmp_path / run).mkdir(exist_ok=True)
        with RunRecord(tmp_path / run, replace(RunConfig(), name=run), "train") as record:
            record.begin()
    return tmp_path


def named(policy: Path | str, tokenizer: str | None = None, **endpoint) -> Subject:
    asked = EvaluationConfig(endpoint=EndpointConfig(**endpoint))
    return subject_of(
        replace(RunConfig(), policy=str(policy), model=ModelConfig(tokenizer=tokenizer), evaluation=asked)
    )


@pytest.mark.parametrize(("policy", "path"), [("checkpoint", "checkpoint"), ("whole", "whole/policy")])
def test_a_checkpoint_and_the_export_of_a_run_bring_their_tokenizer(home: Path, policy: str, path: str):
    found = named(home / policy)
    assert (found.name, found.cfg.model.path, found.url, found.adapters) == (
        str(home / path), str(home / path), None, None,
    )  # fmt: skip
    assert found.cfg.model.tokenizer == str(home / path)
    assert named(home / policy, "environment").cfg.model.tokenizer == "environment"
    made_from = found.parents()
    assert [parent.get("name") for parent in made_from] == (["whole"] if policy == "whole" else [None])


@pytest.mark.parametrize("policy", ["lora", "lora/policy"])
def test_adapters_bring_their_base(home: Path, policy: str):
    found = named(home / policy)
    assert (found.cfg.model.path, found.adapters) == (str(home / "checkpoint"), home / "lora" / "policy")
    assert found.cfg.model.tokenizer == str(home / "lora" / "policy")


def test_weights_that_changed_are_another_policy(home: Path):
    before = named(home / "checkpoint").identity()
    assert named(home / "checkpoint").identity() == before
    (home / "checkpoint" / "model.safetensors").write_text("other")
    assert named(home / "checkpoint").identity() != before


def test_an_endpoint_is_its_model_and_price_and_not_how_fast_it_is_asked():
    def identity(**endpoint) -> str:
        asked = {"model": "gpt-5", "input": 1.0, "output": 2.0} | endpoint
        return named("http://127.0.0.1:9/v1", **asked).identity()

    assert identity(concurrency=3, timeout_s=9.0) == identity()
    assert (
        len({identity(), identity(model="o3"), identity(output=3.0), identity(extra={"reasoning_effort": "low"})}) == 4
    )


def test_a_policy_whose_experts_are_asked_in_another_way_is_another_one(tmp_path: Path):
    file = tmp_path / "experts.yaml"

    def identity(fields: dict | None = None, **server) -> str:
        file.write_text(json.dumps({"experts": {"gpt-5": {"base_url": "http://127.0.0.1:9/v1"} | (fields or {})}}))
        tools = ToolsConfig(experts_file=None if fields is None else str(file), server=ExpertServer(**server))
        return replace(named("baseline:expert/gpt-5"), cfg=replace(RunConfig(), tools=tools)).identity()

    assert identity() == identity(url="http://127.0.0.1:9/v1", timeout_s=9.0, retries=1) == "baseline:expert/gpt-5"
    moved = {"base_url": "http://127.0.0.1:8/v1", "timeout_s": 9.0, "concurrency": 3}
    assert identity({}) == identity(moved)
    others = [{}, {"max_tokens": 99}, {"temperature": 0.5}, {"extra": {"reasoning_effort": "low"}}]
    assert len({identity(), identity(max_tokens=9), identity(context_tokens=999), *map(identity, others)}) == 7


def test_recorded_answers_of_the_same_model_at_another_address_are_told(tmp_path: Path):
    """The address is no part of a recorded request, so that a record serves where the server has moved."""

    def begin(url: str, model: str = "gpt-5", mode: str = "replay_or_record") -> str | None:
        found = named(url, model=model, input=1.0, output=2.0)
        found = replace(found, cfg=replace(found.cfg, replay=ReplayConfig(ReplayMode[mode], "calls.db")))
        told = found.asked_elsewhere(read(tmp_path))
        with RunRecord(tmp_path, found.cfg, "evaluate") as record:
            record.begin()
        return told

    assert begin("http://127.0.0.1:9/v1") is None
    assert begin("http://127.0.0.1:9/v1") is None
    assert begin("http://127.0.0.1:8/v1", model="o3") is None
    assert begin("http://127.0.0.1:8/v1", mode="off") is None
    told = begin("http://127.0.0.1:7/v1")
    assert "calls.db may hold answers that gpt-5 gave at http://127.0.0.1:8/v1 and http://127.0.0.1:9/v1:" in told
    assert "for those of http://127.0.0.1:7/v1. With another name=" in told


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("begun", "has exported no policy yet"),
        ("nowhere", "is neither a checkpoint"),
        ("whole/checkpoints", r"is no policy that can be loaded: set policy=\S*whole, the run's folder"),
        ("broken", "does not name the base"),
    ],
)
def test_what_is_no_policy_is_one_sentence(home: Path, policy: str, words: str):
    (home / "broken").mkdir()
    (home / "whole" / "checkpoints").mkdir()
    (home / "broken" / "adapter_config.json").write_text("[]")
    with pytest.raises(ConfigError, match=words) as refused:
        named(home / policy)
    assert len(str(refused.value).splitlines()) == 1


def test_the_name_of_a_model_is_known_by_its_family_or_not_at_all(home: Path, tmp_path: Path):
    def of(path: Path | str | None) -> str | None:
        return policy_model(replace(RunConfig(), model=ModelConfig(path=path and str(path))))

    assert [of("Qwen/Qwen3-8B"), of(home / "checkpoint"), of(home / "whole" / "policy"), of(None)] == [
        "qwen3-8b", None, None, None,
    ]  # fmt: skip
    began = replace(RunConfig(), model=ModelConfig(path="Qwen/Qwen3-0.6B"))
    (tmp_path / "trained").mkdir()
    with RunRecord(tmp_path / "trained", began, "train") as record:
        record.begin()
    assert of(tmp_path / "trained" / "policy") == "qwen3-0.6b"
    asked = EvaluationConfig(endpoint=EndpointConfig(model="openai/gpt-5", price="gpt-5"))
    assert policy_model(replace(RunConfig(), policy="http://127.0.0.1:9/v1", evaluation=asked)) == "gpt-5"
