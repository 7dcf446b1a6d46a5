"""Settings of an evaluation that start from the record of the policy's run."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestra_jax.config import from_run
from orchestra_jax.config.checks import load
from orchestra_jax.config.compose import compose, recorded_config
from orchestra_jax.config.record import RunRecord, Start
from orchestra_jax.config.schema import ConfigError, RunConfig
from tests.composed import composed

ROOT = Path(__file__).resolve().parents[2]
WORLD = ("+experiment=database", "name=trained", "seed=5", "evaluation.questions=4", "env.options.worlds=[mine]")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to start from; the run lies in `work/run`, beside the world that it was trained in."""
    (tmp_path / "work" / "mine").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    made(tmp_path, *WORLD)
    return tmp_path


def made(home: Path, *words: str) -> Path:
    """Leave the folder of a run, as one that was started in `work` does."""
    run = home / "work" / "run"
    (run / "policy").mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (run / "policy" / name).write_text("{}")
    (run / "run.json").unlink(missing_ok=True)
    noted = {"hydra.yaml": f"hydra:\n  runtime:\n    cwd: {home}/work\n"}
    with RunRecord(run, compose(*words), "train", Start(files=noted)) as record:
        record.begin()
    return run


def evaluated(*words: str) -> tuple[RunConfig, Path | None]:
    config, run = from_run.settings(composed(*words, name="evaluate"), words, "outputs/quickstart")
    return load(config), run


def line(*words: str) -> str:
    config, run = from_run.settings(composed(*words, name="evaluate"), words, "outputs/quickstart")
    assert run is not None
    return from_run.told(config, words, run)


@pytest.mark.parametrize("policy", ["run", "run/policy", "run/checkpoints/policy-000001"])
def test_world_tools_and_limits_are_those_of_the_run(home: Path, policy: str):
    folder = home / "work" / policy
    folder.mkdir(parents=True, exist_ok=True)
    cfg, run = evaluated(f"policy={folder}", "evaluation.dry_run=true")
    trained = compose(*WORLD)
    assert run == home / "work" / "run"
    assert (cfg.name, cfg.seed, cfg.tools, cfg.rollout) == ("trained", 5, trained.tools, trained.rollout)
    assert (cfg.env.name, cfg.model.tokenizer, cfg.evaluation.questions) == ("database", "environment", 4)
    assert cfg.env.options["worlds"] == [str(home / "work" / "mine")]  # found from anywhere
    assert cfg.evaluation.dry_run
    assert cfg.replay.mode == "replay_or_record"  # the evaluation keeps what it pays for, whatever the run did


def test_what_the_command_sets_wins(home: Path):
    run = home / "work" / "run"
    words = (
        f"policy={run}", "seed=0", "evaluation.questions=512", "rollout=embedded", "tools=offline",
        "++env.options.worlds=[library]", "rollout.limits.max_calls=3", "name=again",
    )  # fmt: skip  # some of these are the defaults
    cfg, _ = evaluated(*words)
    assert (cfg.seed, cfg.evaluation.questions, cfg.name) == (0, 512, "again")
    assert cfg.tools == compose("tools=offline").tools
    assert cfg.env.options["worlds"] == ["library"]
    limits = compose(*WORLD).rollout.limits
    assert (cfg.rollout.slots, cfg.rollout.limits.max_calls) == (32, 3)
    assert cfg.rollout.limits.max_length == limits.max_length == 320  # another engine has the run's limits
    assert "The command sets seed, evaluation.questions, rollout, tools, env.options.worlds, " in line(*words)


@pytest.mark.parametrize("world", ["env=quickstart", "env.name=quickstart", "+benchmark=database", "+experiment=gsm8k"])
def test_a_world_that_the_command_names_is_taken_as_it_stands(home: Path, world: str, capsys):
    words = (f"policy={home / 'work' / 'run'}", world)
    cfg, run = evaluated(*words)
    assert run is None
    assert cfg == load(composed(*words, name="evaluate"))
    # The run's policy has words of its own, as the quickstart's have.
    assert ("was trained on the words and prompts of its own world" in capsys.readouterr().out) == (
        cfg.model.tokenizer != "environment"
    )


@pytest.mark.parametrize("policy", ["checkpoint", "baseline:random", "http://127.0.0.1:9/v1", "Qwen/Qwen3-8B"])
def test_without_a_record_nothing_changes(home: Path, policy: str):
    (home / "empty" / "checkpoint").mkdir()
    (home / "empty" / "checkpoint" / "config.json").write_text("{}")
    config = composed(f"policy={policy}", name="evaluate")
    assert from_run.settings(config, [f"policy={policy}"], "outputs/quickstart") == (config, None)
    assert from_run.in_its_folder([f"policy={policy}", "--limit", "3"]) == [f"policy={policy}", "--limit", "3"]


def test_the_run_of_a_name_is_under_its_own_settings(home: Path):
    cfg, run = from_run.settings(
        composed("name=trained", name="evaluate"), ["name=trained"], str(home / "work" / "run")
    )
    assert (run, cfg.env.name, cfg.policy) == (home / "work" / "run", "database", str(run))


def test_a_record_that_pays_says_whom_and_its_budget_holds(home: Path):
    paid = ("+experiment=hle", "env=qa", "tools.server.url=http://10.0.0.5:8000/v1", "budget.run_usd=20", "model=tiny")
    made(home, *paid, "data.path=q.jsonl", "data.eval_path=q.jsonl", "evaluation.questions=4")
    policy = f"policy={home / 'work' / 'run'}"
    cfg, _ = evaluated(policy)
    assert (cfg.pricing.name, cfg.budget.run_usd) == ("paper_train", 20)
    text = line(policy)
    assert "; prices paper_train; " in text
    assert " more at http://10.0.0.5:8000/v1; budget.run_usd=20 ends it." in text
    assert len(text.splitlines()) == 1
    assert "no budget.run_usd is set" in line(policy, "budget.run_usd=null")
    assert "It asks" not in line(policy, "tools=offline")


def test_a_run_that_only_replays_is_evaluated_without_paying(home: Path):
    (home / "work" / "calls.db").touch()
    made(home, *WORLD, "env.options.user=gpt-5", "replay.mode=replay", "replay.path=calls.db")
    policy = f"policy={home / 'work' / 'run'}"
    cfg, _ = evaluated(policy)
    assert (cfg.replay.mode, cfg.replay.path) == ("replay", str(home / "work" / "calls.db"))
    assert "It asks" not in line(policy)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"env": 3}, "was written by another version"),
        ({"rollout": {"limits": {"max_turns": "many"}}}, "was written by another version"),
    ],
)
def test_a_record_of_another_version_is_one_sentence_with_a_way_out(home: Path, changed: dict, sentence: str):
    file = home / "work" / "run" / "run.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps(found | {"config": found["config"] | changed}))
    with pytest.raises(ConfigError, match=sentence) as refused:
        evaluated(f"policy={file.parent}")
    assert len(str(refused.value).splitlines()) == 1
    assert evaluated(f"policy={file.parent}", "env=database")[1] is None


def test_settings_that_this_version_does_not_have_are_left_out_and_told(home: Path):
    file = home / "work" / "run" / "run.json"
    found = json.loads(file.read_text())
    policy = f"policy={file.parent}"
    before, said = evaluated(policy)[0], line(policy)
    changed = found["config"] | {"gravity": {"g": 9.81}}
    changed["rollout"] = changed["rollout"] | {"spare": 2, "limits": changed["rollout"]["limits"] | {"patience": None}}
    file.write_text(json.dumps(found | {"config": changed}))
    assert evaluated(policy)[0] == before
    gone = "gravity={'g': 9.81}, rollout.spare=2, rollout.limits.patience=None"
    assert line(policy) == (
        f"{said} Another version trained it; left out are settings that this one does not have: {gone}."
    )
    assert recorded_config(changed) == recorded_config(found["config"])


@pytest.mark.parametrize(
    ("words", "added"),
    [
        (("--limit", "3"), True),
        (("+benchmark=quickstart",), True),
        (("+benchmark=gsm8k",), False),
        (("name=again",), False),
        (("output_dir=there",), False),
        (("--multirun", "seed=1,2"), False),
    ],
)
def test_figures_land_in_the_runs_folder_unless_another_is_named(home: Path, words: Sequence[str], added: bool):
    given = [f"policy={home / 'work' / 'run' / 'policy'}", *words]
    found = from_run.in_its_folder(given)
    assert found == [*given, "output_dir='../work/run'"] if added else found == given


def test_an_option_of_the_runs_world_may_be_set_like_any_other(home: Path):
    policy = f"policy={home / 'work' / 'run'}"
    words = from_run.in_its_folder([policy, "env.options.user=gpt-5", "name=x"])
    assert evaluated(*words)[0].env.options["user"] == "gpt-5"


def test_a_world_of_the_users_own_has_its_own_tools_and_not_those_of_a_setting(home: Path):
    run = made(home, "env.name=my_env:RoomEnvironment", "name=rooms")
    assert "env my_env:RoomEnvironment; prices quickstart;" in line(f"policy={run}", "name=x")


def test_the_command_evaluates_where_the_policy_was_trained(home: Path):
    """From another folder: the figures are of its world, and lie beside the policy."""
    run = made(home, "+experiment=database", "name=trained", "evaluation.questions=4")
    command = [sys.executable, str(ROOT / "experiments/evaluate.py"), f"policy={run}", "--dry-run"]
    done = subprocess.run(command, cwd=home / "empty", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "As in the run ../work/run: env database; tools none; prices quickstart; 10 turns, 8 calls, 320 tokens.",
        "Dry run: nothing is paid for outside.",
    ]
    assert not list((home / "empty").iterdir())
    (run / "run.json").write_text("{}")
    done = subprocess.run(command, cwd=home / "empty", capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "is no record of a run" in done.stderr
