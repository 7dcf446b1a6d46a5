"""Every experiment composes and is valid; what a user mistypes ends in one sentence."""

import functools
import json
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, asdict, replace
from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestra_jax.config import cli, errors
from orchestra_jax.config.algorithm import AdvantageConfig, LossConfig, OptimizerConfig
from orchestra_jax.config.begun import resume_conflicts
from orchestra_jax.config.checks import load, problems
from orchestra_jax.config.choices import QuestionFormat
from orchestra_jax.config.messages import keys, unknown_key
from orchestra_jax.config.missing import missing_inputs
from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.config.schema import ConfigError, MeshConfig, RunConfig, SourceConfig
from orchestra_jax.data.sources import FORMATS
from tests.composed import composed

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
GROUPS = ("model", "mesh", "algorithm", "reward", "rollout", "env", "tools", "data", "logger")
CHOICES = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in GROUPS}
OFFLINE = [
    "+experiment=hle", "model=tiny", "rollout=embedded", "tools=offline", "data=jsonl", "data.path=questions.jsonl",
]  # fmt: skip


def compose(overrides: Sequence[str] = ()) -> RunConfig:
    return load(composed(*overrides))


def explained(overrides: Sequence[str]) -> str:
    with pytest.raises((ConfigError, HydraException, OmegaConfBaseException)) as caught:
        compose(overrides)
    message = errors.explain_error(caught.value)
    assert "\n" not in message
    return message


@functools.cache
def experiment(name: str) -> DictConfig:
    return composed(f"+experiment={name}")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_and_is_valid(name: str) -> None:
    assert load(experiment(name)).name == name


@pytest.mark.parametrize("number", range(max(map(len, CHOICES.values()))))
def test_every_choice_composes(number: int) -> None:
    """Each configuration takes the next choice of every group; a world and its questions come in pairs."""
    chosen = {group: names[number] for group, names in CHOICES.items() if number < len(names)}
    if world := chosen.pop("env", None):
        compose([f"env={world}", "data=quickstart" if world == "quickstart" else "data=jsonl"])
    if data := chosen.pop("data", None):
        compose(["env=quickstart" if data == "quickstart" else "env=qa", f"data={data}"])
    compose(["env=qa", "data=jsonl", *(f"{group}={name}" for group, name in chosen.items())])


def test_quickstart_is_the_default() -> None:
    config = compose()
    assert config == compose(["+experiment=quickstart"])
    assert config.algorithm.tasks_per_step * config.algorithm.group_size == 256
    assert config.algorithm.loss.kl_coef > config.algorithm.loss.kl_coef * config.algorithm.kl_final
    assert config.algorithm.optimizer.name == "muon"
    assert (config.algorithm.loss.loss, config.algorithm.loss.aggregation, config.algorithm.advantage.invalid) == (
        "grpo",
        "token",
        "zero_reward",
    )
    rollout = config.rollout
    assert (config.reward.tool_feature, rollout.slots, rollout.limits.max_new_tokens) == ("share", 256, 32)
    assert rollout.limits.max_calls == 5
    assert config.output_dir == "outputs/quickstart"
    assert missing_inputs(config) == []


def test_hle_is_the_papers_run() -> None:
    config = compose(["+experiment=hle"])
    algorithm, rollout = config.algorithm, config.rollout
    assert (config.model.preset, algorithm.tasks_per_step, algorithm.group_size) == ("qwen3-8b", 16, 8)
    corrected = {"token_form": True, "importance": "tis", "mask_geometric_low": 0.99, "mask_geometric_high": 1.01}
    assert algorithm.loss == LossConfig(
        "sequence", clip_low=0.2, clip_high=0.28, dual_clip=10.0, kl_coef=0.0, kl="k2", **corrected
    )
    assert compose(["+experiment=hle", "algorithm.loss.kl_coef=1e-4"]).algorithm.loss.kl_coef == 1e-4  # the script's
    assert algorithm.advantage == AdvantageConfig(min_std=0.1, clip=3.0, invalid="drop")
    assert algorithm.optimizer == OptimizerConfig(1e-6, warmup_steps=5, b2=0.999)
    assert (algorithm.refill, config.budget.run_usd) == (3, 2000)
    assert (config.reward.tool_feature, rollout.engine) == ("count", "sglang")
    assert rollout.limits == RolloutLimits(50, 50, max_length=32000, max_new_tokens=8000, deadline_s=3600.0)
    assert [source.source for source in config.data.training()] == ["general_thought"]
    assert config.data.evaluation() == SourceConfig("hle", "cais/hle")
    assert config.evaluation.temperature == 0.0
    assert any("model.path" in sentence for sentence in missing_inputs(config))


def test_hle_on_a_small_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRA_DATA", str(tmp_path))
    config = compose(OFFLINE)
    assert config.data.training() == [SourceConfig("jsonl", "questions.jsonl")]
    assert config.data.evaluation() is None  # held out of data.path
    assert (config.rollout.engine, config.tools.names) == ("embedded", ["python", "local_search"])
    assert config.model.tokenizer == f"{tmp_path}/qwen3-tokenizer"
    sentences = missing_inputs(config)
    assert [sentence.partition("=")[0] for sentence in sentences] == [
        "tools.search.corpus",
        "model.tokenizer",
        "data.path",
    ]


def test_the_pretrained_policy_goes_with_any_experiment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMOLLM2", str(tmp_path / "none"))
    config = compose(["+experiment=gsm8k", "model=smollm2"])
    assert (config.model.tokenizer, config.model.random_init) == (None, False)
    assert f"model.path={tmp_path}/none is not there: set model.path, or make it with `make smollm2`." in (
        missing_inputs(config)
    )
    monkeypatch.setenv("SMOLLM2", str(tmp_path))
    assert not [s for s in missing_inputs(compose(["model=smollm2"])) if s.startswith("model.")]


def test_loaded_config_is_frozen_and_typed() -> None:
    config = compose(["steps=3", "output_dir=elsewhere"])
    assert (type(config), config.steps, config.output_dir) == (RunConfig, 3, "elsewhere")
    with pytest.raises(FrozenInstanceError):
        config.steps = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        (
            "reward.outcom=1",
            ["Unknown key 'reward.outcom'", "did you mean reward.outcome?", "reward has: outcome, compute"],
        ),
        ("+reward.outcom=1", ["Unknown key 'reward.outcom'", "did you mean reward.outcome?"]),
        # What there was once is an unknown key like any other.
        ("rollout.spare_groups=1", ["Unknown key 'rollout.spare_groups'", "rollout has: engine, urls, server"]),
        ("rewrd=paper", ["Unknown key 'rewrd'", "did you mean reward?"]),
        ("learning_rate=1", ["did you mean algorithm.optimizer.learning_rate or warm_start.optimizer.learning_rate?"]),
        ("seed.x=1", ["Unknown key 'seed.x': did you mean seed?"]),
        ("reward=papr", ["Unknown choice 'reward=papr'", "did you mean reward=paper?", "outcome, paper"]),
        ("+experiment=hel", ["did you mean +experiment=hle?"]),
        ("experiment=hle", ["write +experiment=NAME"]),
        ("pricing=paper", ["write pricing.name=NAME"]),
        ("steps=abc", ["steps=abc must be a whole number: change it."]),
        ("hydra.run.dri=x", ["hydra.run.dri"]),
        ("name=${nothing}", ["nothing"]),
        ("reward.outcome=2", ["reward.outcome=2.0 must be within [0, 1]"]),
        ("algorithm.group_size=1", ["algorithm.group_size=1 must be at least 2"]),
        ("rollout.temperature=0", ["rollout.temperature=0.0 must be above 0"]),
        ("rollout.limits.max_new_tokens=192", ["rollout.limits.max_length=192"]),
        ("algorithm.minibatches=3", ["must divide the 256 samples"]),
        ("data.preferences_per_question=3", ["data.preferences_per_question=3 must divide algorithm.tasks_per_step="]),
        ("algorithm.loss=grpo", ["algorithm.loss.NAME=VALUE", "grpo"]),
        ("algorithm.loss.kl=k4", ["algorithm.loss.kl=k4 is unknown: use one of k1, k2, k3."]),
        ("algorithm.optimizer.name=muo", ["algorithm.optimizer.name=muo is unknown: use muon, or one of adamw, muon."]),
        ("algorithm.loss.importance_floor=3", ["importance range is [3.0, 2.0]"]),
        ("model.lora.targets=[q,w]", ["model.lora.targets[1]=w is unknown: use one of q, k"]),
        ("mesh.data=0", ["must have sizes >= 1"]),
        ("name=../../x", ["name=../../x leaves outputs/: set output_dir=FOLDER instead."]),
        ("name=/x", ["name=/x leaves outputs/"]),
        ("path=log.csv", ["Unknown key 'path': did you mean env.options.path or data.path or"]),
    ],
)
def test_a_mistake_is_one_sentence_with_the_fix(override: str, parts: list[str]) -> None:
    message = explained([override])
    assert all(part in message for part in parts), message


def test_a_group_that_is_chosen_twice_is_told_in_our_words() -> None:
    said = explained(["+benchmark=quickstart", "+benchmark=hle"])
    assert said == "'benchmark' is chosen more than once, last as 'hle': leave one +benchmark=NAME."


@pytest.mark.parametrize(
    ("override", "secret"),
    [
        ("rollout.urls=[http://ann:Canary1@host:8000]", "Canary1"),
        ("+env.options.url=https://Canary1@host/v1", "Canary1"),
        ("tools.mcp=['npx server --api-key=Canary1']", "Canary1"),
        ("tools.mcp=[{server: 'npx server --hf_token Canary1', name: a}]", "Canary1"),
        ("tools.mcp=['server -key Canary1']", "Canary1"),
        ("+env.options.note=sk-proj-Canary1aaaaaaaaaaaaaaaa", "Canary1"),
    ],
)
def test_a_secret_is_refused_before_it_is_written_anywhere(override: str, secret: str) -> None:
    message = explained([override])
    assert "holds a password or a key" in message
    assert "environment variable" in message
    assert secret not in message


@pytest.mark.parametrize(
    "override",
    [
        "tools.mcp=['server --max-tokens=5 --token-limit 9 --key-file=/a']",
        "model.path=user@host/x",
        "name=task-key-sk-1",
    ],
)
def test_what_only_looks_like_a_secret_is_none(override: str) -> None:
    assert compose([override])


def test_two_free_axes_and_a_server_without_address() -> None:
    config = compose()
    free = replace(config, mesh=replace(config.mesh, data=-1, fsdp=-1))
    bare = replace(config, rollout=replace(config.rollout, engine="sglang", urls=[]))
    assert "at most one -1" in problems(free)[0]
    assert "rollout.urls" in problems(bare)[0]
    with pytest.raises(ConfigError, match=r"mesh\.\*"):
        compose(["mesh.data=-1", "mesh.fsdp=-1"])


def placement(name: str) -> DictConfig:
    """Return the settings of a placement's file, and of those that it is based on."""
    own = OmegaConf.load(CONF / "placement" / f"{name}.yaml")
    return OmegaConf.merge(*map(placement, own.pop("defaults", [])), own)


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "placement").glob("*.yaml")))
def test_every_placement_goes_with_every_experiment(name: str) -> None:
    nodes = ["rollout.urls=[http://b:30000]", "rollout.weight_folder=/w"]
    servers = nodes if name == "nodes" else ["rollout.server.python=python"]
    found = {
        each: load(OmegaConf.merge(experiment(each), placement(name), OmegaConf.from_dotlist(servers)))
        for each in EXPERIMENTS
    }
    for config in found.values():
        assert (config.rollout.engine, config.rollout.server.share_gpus) == ("sglang", name.startswith("shared"))
        assert config.mesh == MeshConfig(1, -1, 1)
    assert compose(["+experiment=hle", f"+placement={name}", *servers]) == found["hle"]
    # Without its server it says what it lacks.
    assert "rollout.urls=[http://HOST:PORT]" in explained([f"+placement={name}"])


def test_servers_on_other_hosts_need_a_folder_that_they_see() -> None:
    far = ["rollout=sglang", "rollout.urls=[http://127.0.0.1:30000,http://b:30000]"]
    message = explained(far)
    assert "http://b:30000 cannot read this host's shared memory" in message
    assert "set rollout.weight_folder=FOLDER" in message
    assert compose([*far, "rollout.weight_folder=/w"]).rollout.urls[1] == "http://b:30000"


def test_fp8_servers_need_a_correction() -> None:
    servers = ["+experiment=hle", "rollout.server.python=python", "rollout.server.flags=[--quantization,fp8]"]
    assert compose(servers).algorithm.loss.importance == "tis"
    message = explained([*servers, "algorithm.loss.importance=none"])
    assert "fp8, whose log-probs are not the learner's: set algorithm.loss.importance=tis" in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_staleness": 1}, "so no rollouts can run ahead: set rollout.max_staleness=0, go on with groups"),
        ({"urls": ["http://127.0.0.1:1"]}, "needs servers that the run starts itself: set rollout.urls=[]"),
        ({"engine": "embedded"}, "is for servers, but rollout.engine=embedded: set rollout.engine=sglang"),
    ],
)
def test_what_does_not_go_with_shared_gpus_is_one_sentence(changes: dict, words: str) -> None:
    config = compose(["+placement=shared", "rollout.server.python=python"])
    assert problems(config) == []
    (sentence,) = problems(replace(config, rollout=replace(config.rollout, **{"lockstep": False} | changes)))
    assert words in sentence
    assert sentence.startswith("rollout.server.share_gpus")
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_staleness": 0}, "set rollout.max_staleness=1 or more"),
        ({"oversample": 17}, "make it at most algorithm.tasks_per_step=16"),
    ],
)
def test_groups_go_on_between_updates_on_shared_gpus(changes: dict, words: str) -> None:
    keys = ["rollout.oversample=4", "rollout.max_staleness=1"]
    config = compose(["+experiment=hle", "+placement=shared", "rollout.server.python=python", *keys])
    (sentence,) = problems(replace(config, rollout=replace(config.rollout, **changes)))
    assert words in sentence
    assert sentence.startswith("rollout.oversample=")
    assert sentence.endswith(".")


def test_what_is_printed_shows_the_placement() -> None:
    for name, line in {"shared": "share_gpus: true", "separate": "- - 4", "nodes": "weight_folder: null"}.items():
        assert line in OmegaConf.to_yaml(composed("+experiment=hle", f"+placement={name}"))  # what --cfg job prints


def test_a_mixtures_entries_are_checked() -> None:
    assert compose(["+experiment=hle", "data.mixture.0.weight=3"]).data.mixture[0].weight == 3.0
    message = explained(["+experiment=hle", "data.mixture.0.source=hel"])
    assert "data.mixture[0].source=hel is unknown: use hle" in message


def test_a_format_that_nothing_reads_is_refused() -> None:
    for key in ("data.source", "data.mixture.0.source"):
        assert "source=toolscale is unknown: use one of auto," in explained(["+experiment=hle", f"{key}=toolscale"])
    for kind in QuestionFormat:
        assert kind in (*FORMATS, "auto", "quickstart")


@pytest.mark.parametrize("data", [["data.path=q.jsonl"], []])
def test_what_names_no_questions_to_evaluate_on_is_not_replaced_by_training_questions(data: list[str]) -> None:
    stop = [s for s in missing_inputs(compose(["+experiment=hle", "data.eval_path=null", *data])) if "eval" in s]
    assert stop == [
        "The questions of data.eval_source=hle are not named: set data.eval_path=FILE, or data.eval_source=auto to "
        "evaluate on data.eval_questions of the training questions, which are held out."
    ]
    for fix in ("data.eval_source=auto", "evaluation.questions=0"):
        found = missing_inputs(compose(["+experiment=hle", "data.eval_path=null", *data, fix]))
        assert not any("eval_source" in sentence for sentence in found)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("loss: grpo", "grpo stands where a group of settings is: write algorithm.loss.NAME=VALUE."),
        ("loss: {kl: k4}", "algorithm.loss.kl=k4 is unknown: use one of k1, k2, k3."),
        ("epochs: x", "algorithm.epochs=x must be a whole number: change it."),
    ],
)
def test_a_wrong_value_in_a_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    folder = tmp_path / "algorithm"
    folder.mkdir()
    (folder / "mine.yaml").write_text(text)
    with pytest.raises(HydraException) as caught:
        compose([f"hydra.searchpath=[{tmp_path}]", "algorithm=mine"])
    assert errors.explain_error(caught.value) == f"In 'algorithm/mine': {sentence}"


def test_choices_are_plain_words_in_what_is_printed() -> None:
    config = compose(["algorithm.loss.aggregation=null"])
    assert json.loads(json.dumps(asdict(config)))["algorithm"]["optimizer"]["name"] == "muon"
    assert resume_conflicts(json.loads(json.dumps(asdict(config))), config) == []
    assert f"{config.algorithm.loss.kl} {config.algorithm.loss.aggregation}" == "k2 None"


def test_a_misspelt_key_finds_its_neighbour() -> None:
    assert [key for key in keys() if key not in unknown_key(f"{key}_")] == []


def test_resume_conflicts() -> None:
    config = compose()
    saved = asdict(config)
    assert resume_conflicts(saved, replace(config, steps=999, output_dir="x")) == []
    assert resume_conflicts(saved, compose(["checkpoint.every=1"])) == []
    assert resume_conflicts(saved, compose(["rollout.server.gpus=[[1]]", "rollout.server.ready_s=9"])) == []
    assert resume_conflicts(saved, compose(["rollout.weight_folder=/other/disk", "rollout.slots=9"])) == []
    assert resume_conflicts(saved, compose(["seed=1", "reward.outcome=0.5"])) == [
        "reward.outcome: 1.0 -> 0.5",
        "seed: 0 -> 1",
    ]


def test_a_sweep_of_too_many_keys_says_how_to_name_its_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"), cli.user_errors():
        (tmp_path / ("a" * 300)).mkdir()
    assert "hydra.sweep.subdir" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError), cli.user_errors():
        (tmp_path / "missing" / "folder").mkdir()


def test_passages_are_asked_for_where_something_searches_them() -> None:
    nowhere = [*OFFLINE, "tools.search.corpus=/nowhere.json"]
    for names, asked in (("[python,local_search]", True), ("[python]", False)):
        found = missing_inputs(compose([*nowhere, f"tools.names={names}"]))
        assert any(sentence.startswith("tools.search.corpus=/nowhere.json") for sentence in found) == asked
