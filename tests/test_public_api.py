"""`import orchestra_jax as oj`: what is public, that it is loaded when used, and that every example holds."""

import doctest
import importlib
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import orchestra_jax as oj
from benchmarks.short import SMALL
from orchestra_jax.config.record import RunRecord
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.money.budgets import Limits
from orchestra_jax.types import Status, Task, ToolCall, ToolResult

NAMES = ("Orchestrator", "advantages", "compose", "group_arrays", "load_run", "losses", "play", "rewards", "tool")


def test_the_import_starts_nothing_and_each_name_is_there():
    script = f"""
import sys
import orchestra_jax as oj
assert not {{"jax", "hydra", "numpy", "transformers"}} & set(sys.modules), sorted(sys.modules)
assert {NAMES} == tuple(oj.__all__) and set(oj.__all__) <= set(dir(oj))
assert "jax" not in sys.modules
assert oj.compose("seed=3").seed == 3 and "jax" not in sys.modules
for name in oj.__all__:
    assert getattr(oj, name) is getattr(oj, name)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_what_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        oj.nothing  # noqa: B018


@pytest.mark.parametrize("name", ["orchestra_jax", *NAMES])
def test_every_example_holds(name: str, capsys: pytest.CaptureFixture[str]):
    subject = oj if name == "orchestra_jax" else getattr(oj, name)
    home = importlib.import_module(getattr(subject, "__module__", None) or subject.__name__)
    finder = doctest.DocTestFinder(recurse=False, exclude_empty=True)
    examples = finder.find(subject, name, module=home, globs=vars(home).copy())
    assert [len(each.examples) > 0 for each in examples] == [True], f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert runner.run(examples[0]).failed == 0, capsys.readouterr().out


def test_a_script_plays_the_task_it_is_given():
    cfg = oj.compose()
    environment = make_environment(cfg)
    task = environment.held_out(3)[2]

    def script(task: Task, results: list[ToolResult]) -> ToolCall | str:
        return "done" if results else ToolCall("no_such_tool", {})

    found = oj.play(environment, script, task)
    assert (found.task, found.answer, found.solved, found.refused) == (task, "done", False, 1)
    assert found.status is Status.COMPLETED
    spoken = oj.play(cfg, "preference_oracle", task)  # a baseline of the environment speaks in its tokens
    assert (spoken.solved, spoken.turns[0].sampled_ids != ()) == (True, True)


@pytest.mark.parametrize("policy", ["preference_oracl", "baseline:nobody"])
def test_a_policy_that_is_not_there_is_one_sentence(policy: str):
    with pytest.raises(ConfigError, match="there is none; here are") as caught:
        oj.play(oj.compose(), policy)
    assert "\n" not in str(caught.value)


def test_a_wrong_kind_of_argument_is_one_sentence():
    cfg = oj.compose()
    with pytest.raises(TypeError, match=r"^compose takes words of a command line, .* not \['seed=1'\]\.$"):
        oj.compose(["seed=1"])
    with pytest.raises(TypeError, match=r"^play takes a config .* or an open environment first, not 'quickstart'"):
        oj.play("quickstart", "do_nothing")
    with pytest.raises(TypeError, match=r"^The task must be a Task, such as environment.held_out\(1\)\[0\], not 'How"):
        oj.play(cfg, "do_nothing", "How much?")
    with pytest.raises(TypeError, match=r"^The script must return a ToolCall or the answer as a text, not 42"):
        oj.play(cfg, lambda task, results: 42)


def test_a_folder_without_a_run_is_one_sentence(tmp_path: Path):
    (tmp_path / "log.csv").write_text("")
    for path in (tmp_path, tmp_path / "log.csv", tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match="holds no run"):
            oj.load_run(path)


def test_a_run_is_opened_before_and_after_its_end(tmp_path: Path):
    cfg = replace(oj.compose("seed=5"), output_dir="made/elsewhere")
    with RunRecord(tmp_path, cfg, "train") as record:
        record.begin()
    run = oj.load_run(tmp_path)
    assert (run.config.seed, run.config.output_dir, run.summary, run.metrics, run.policy) == (
        5, str(tmp_path), {}, [], None,
    )  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps({"name": "quickstart"}))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    (tmp_path / "policy").mkdir()
    run = oj.load_run(str(tmp_path))
    assert (run.summary["name"], run.metrics[0]["reward"], run.policy) == ("quickstart", 0.5, tmp_path / "policy")
    assert run.record["config"] == json.loads(json.dumps(asdict(cfg)))


def test_a_trained_policy_plays(tmp_path: Path):
    import jax

    from orchestra_jax.models import checkpoint
    from orchestra_jax.rollout.chat import make_chat
    from orchestra_jax.training.build import make_policy

    cfg = oj.compose(*SMALL)
    chat = make_chat(cfg)
    with jax.default_device(jax.devices("cpu")[0]):
        model, params = make_policy(cfg, chat)
    checkpoint.save(tmp_path / "policy", model, params, tokenizer=chat.tokenizer)
    found = oj.play(cfg, tmp_path)
    assert found.turns[0].sampled_ids
    assert len(found.turns[0].logprobs) == len(found.turns[0].sampled_ids)


def test_the_budget_of_the_config_holds(monkeypatch: pytest.MonkeyPatch):
    budgets, reset = [], QuickstartEnvironment.reset

    def watched(self, task, budget):
        budgets.append(budget)
        return reset(self, task, budget)

    monkeypatch.setattr(QuickstartEnvironment, "reset", watched)
    oj.play(oj.compose("budget.run_usd=0.5", "budget.run_calls=2"), "do_nothing")
    (own,) = {id(each): each for each in budgets}.values()
    while own.parent is not None:
        own = own.parent
    assert own.limits == Limits(usd=0.5, calls=2)
