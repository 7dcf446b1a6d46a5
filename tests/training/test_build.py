"""From a configuration to the parts of a run: what is missing is said first, and real questions run."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import jax
import numpy as np
import pytest

from orchestra_jax.config.choices import History
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.quickstart.environment import PAIRED_KINDS
from orchestra_jax.envs.registry import make_environment
from orchestra_jax.models import checkpoint, saved_tokenizer
from orchestra_jax.models.decoder import init_params
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.models.sharding import make_mesh
from orchestra_jax.models.tokenizer import UNKNOWN
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.training.build import make_collector, make_policy, policy_config, preflight
from orchestra_jax.training.loggers.jsonl import read_metrics
from orchestra_jax.training.main import run
from tests.models.trees import drawn_params
from tests.training.test_trainer import config

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = ("+experiment=hle", "env=qa", "mesh=single", "model=tiny", "rollout=embedded", "tools=offline", "data=jsonl")
NO_PASSAGES = (*OFFLINE, "tools.search.corpus=null")


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# --- the quickstart --------------------------------------------------------------------------------------------------


def test_a_preset_that_is_none_is_said_first(tmp_path: Path):
    with pytest.raises(ConfigError, match="Unknown qwen3 preset 'tinny'; choose one of tiny, reader, small"):
        preflight(config(tmp_path, "model.preset=tinny"))


def test_quickstart_parts_fit_together(tmp_path: Path):
    cfg = config(tmp_path, "warm_start.demonstrations=5", "evaluation.questions=7", "evaluation.swap_questions=3")
    environment = make_environment(cfg)
    assert len(environment.demonstrations().tasks) == 5
    assert [task.id for task in environment.held_out(7)] == [f"eval-{i}" for i in range(7)]
    paired = environment.paired_preferences(3)
    assert list(paired) == list(PAIRED_KINDS)
    assert all(len(tasks) == 3 for tasks in paired.values())
    by_question = zip(*paired.values(), strict=True)
    for first, *others in by_question:
        assert all((task.question, task.tools) == (first.question, first.tools) for task in others)
        assert all(task.preference != first.preference for task in others)
    chat = make_chat(cfg)
    model, params = make_policy(cfg, chat)
    assert model.vocab_size == len(chat.tokenizer)
    assert any(model.vocab_size in leaf.shape for leaf in jax.tree.leaves(params))
    asyncio.run(environment.close())


# Without a scan a second layer is drawn, traced and compiled as the first one is.
ONE_LAYER = "model.family=tests.training.micro:OneLayer"


@pytest.mark.parametrize("overrides", [(ONE_LAYER,), (ONE_LAYER, "model.preset=reader"), ("model.scan_layers=true",)])
def test_random_weights_are_the_same_on_a_mesh(tmp_path: Path, overrides: tuple[str, ...]):
    cfg = config(tmp_path, *overrides)
    chat = make_chat(cfg)
    model, alone = make_policy(cfg, chat)
    meshed = make_policy(cfg, chat, make_mesh(fsdp=4, tensor=2))[1]
    assert any(len(leaf.sharding.device_set) == 8 for leaf in jax.tree.leaves(meshed))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8), alone, meshed)
    plain = init_params(model, jax.random.key(cfg.seed))
    copies = [not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(plain), strict=True)]
    assert any(copies) == (cfg.model.preset != "reader")  # a head of its own makes no token of what a head writes


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        (10, r"has \d+ tokens, and the policy in '.+policy' knows 10: set model.tok"),
        (5000, r"has \d+ words .*, and the policy in '.+policy' knows 5000, of another world: set env.name"),
    ],
)
def test_a_policy_of_other_words_than_the_run_is_refused(tmp_path: Path, known: int, sentence: str):
    """Fewer embeddings make all log-probs NaN; with more, every word would be another one."""
    other = Qwen3Config(known, 8, 8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8)
    checkpoint.save(tmp_path / "policy", other, drawn_params(other))
    cfg = config(tmp_path, f"model.path={tmp_path / 'policy'}")
    chat = make_chat(cfg)
    for make in (make_policy, policy_config):
        with pytest.raises(ConfigError, match=sentence):
            make(cfg, chat)


def test_an_added_token_that_the_policy_lacks_is_refused_where_prompts_have_it(tmp_path: Path):
    folder = tmp_path / "policy"
    tokenizer = make_chat(config(tmp_path)).tokenizer
    own = Qwen3Config(len(tokenizer), 8, 8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8)
    checkpoint.save(folder, own, drawn_params(own), tokenizer=tokenizer)
    tokenizer = saved_tokenizer.load(folder)
    tokenizer.add_special_tokens({"pad_token": "<picture>"})
    checkpoint.save(folder, own, drawn_params(own), tokenizer=tokenizer, overwrite=True)
    ids = json.loads((folder / "config.json").read_text())
    assert ids["eos_token_id"] == tokenizer.eos_token_id
    assert "pad_token_id" not in ids  # with it, transformers would refuse the folder
    cfg = config(tmp_path, f"model.path={folder}", f"model.tokenizer={folder}")
    assert policy_config(cfg, make_chat(cfg)).vocab_size == own.vocab_size
    tokenizer.chat_template = "<picture>" + tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    with pytest.raises(ConfigError, match=rf"tokenizer has {len(tokenizer)} tokens, and .* knows {own.vocab_size}"):
        policy_config(cfg, make_chat(cfg))


@pytest.mark.parametrize("seed", [0, 5])
async def test_demonstrations_and_baselines_have_no_unknown_token(tmp_path: Path, seed: int):
    cfg = config(tmp_path, f"env.seed={seed}", "warm_start.demonstrations=150")
    environment, chat = make_environment(cfg), make_chat(cfg)
    collector = make_collector(cfg, environment, chat)
    unknown = chat.tokenizer.convert_tokens_to_ids(UNKNOWN)

    found = environment.demonstrations()
    runs = await collector.play(found.script, found.tasks, found.think, budget=Budget())
    for script in environment.baselines().values():
        runs += await collector.play(script, environment.held_out(80), budget=Budget())
    await environment.close()
    for trajectory in runs:
        assert trajectory.completed, trajectory.reason
        for turn in trajectory.turns:
            assert unknown not in (*turn.prompt_ids, *turn.sampled_ids), turn.text


def test_the_history_of_the_config_is_that_of_the_chat(tmp_path: Path):
    for history in History:
        assert make_chat(config(tmp_path, f"rollout.history={history}")).history is history


def test_training_tasks_and_demonstrations_do_not_overlap(tmp_path: Path):
    cfg = config(tmp_path, "warm_start.demonstrations=50")
    environment = make_environment(cfg)
    stream = environment.train_tasks(16)
    seen = {task.id for _ in range(20) for task in next(stream)}
    assert len(seen) == 320
    assert seen.isdisjoint({task.id for task in environment.demonstrations().tasks})
    assert seen.isdisjoint({task.id for task in environment.held_out(512)})
    asyncio.run(environment.close())


def test_training_stream_is_of_the_seed_and_resumes(tmp_path: Path):
    environments = [make_environment(config(tmp_path, f"seed={seed}")) for seed in (0, 0, 1)]
    first, second, other = (environment.train_tasks(4) for environment in environments)
    assert next(first) == next(second) != next(other)
    saved = json.loads(json.dumps(first.get_state()))
    expected = [next(first) for _ in range(3)]
    second.set_state(saved)
    assert [next(second) for _ in range(3)] == expected


def test_prices_of_the_policy_come_from_the_config(tmp_path: Path):
    cfg = config(tmp_path, "pricing.orchestrator_input=2.0", "pricing.orchestrator_output=8.0")
    environment = make_environment(cfg)
    prices = make_collector(cfg, environment, make_chat(cfg)).settings.prices
    asyncio.run(environment.close())
    cost = prices.cost("orchestrator", prompt_tokens=1_000_000, cached_tokens=0, completion_tokens=500_000)
    assert cost == pytest.approx(2.0 + 4.0)


def test_config_record_survives_json(tmp_path: Path):
    record = asdict(config(tmp_path))
    assert json.loads(json.dumps(record)) == record


# --- what is missing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            (*OFFLINE, "tools.search.corpus=null", "data.path=/nowhere/q.jsonl"),
            "data.path=/nowhere/q.jsonl is not there",
        ),
        (
            ("+experiment=hle", "rollout=embedded", "tools=offline", "data.path={q}"),
            "The policy qwen3-8b has no weights: set model.path=Qwen/Qwen3-8B",
        ),
        (("+experiment=hle", "model=qwen3-0.6b", "data.path={q}"), "model.path=Qwen/Qwen3-0.6B"),
        (
            ("+experiment=hle", "model=tiny", "tools=offline", "data.path={q}", "rollout.urls=[http://127.0.0.1:9]"),
            "No SGLang server answers at http://127.0.0.1:9",
        ),
        (
            ("rollout=quickstart_sglang", "rollout.server.python=/nowhere/python"),
            "rollout.server.python=/nowhere/python is not there",
        ),
        (("+experiment=hle", "model=tiny", "rollout=embedded", "data.path={q}"), "tools.experts need a server"),
        (("model.path=/nowhere/model",), "model.path=/nowhere/model is not there"),
        (("pricing.name=none",), "pricing.name=none is no price list"),
        (("data=gsm8k",), "env.name=quickstart and data.source=gsm8k do not fit: use env=quickstart data=quickstart"),
        (("env=qa", "tools=offline"), "env.name=qa and data.source=quickstart do not fit: use env=quickstart"),
        (
            (*OFFLINE, "tools.search.corpus=null", "data.mixture=[]"),
            "There are no training questions: set data.path=FILE.",
        ),
        (("env.name=quickstrt",), "env.name=quickstrt is no known environment: did you mean quickstart?"),
        (("data.preferences_per_question=16",), "data.preferences_per_question=16 must be at most"),
        (("algorithm.loss.loss=grop",), "algorithm.loss.loss=grop is no known loss: did you mean "),
        (("algorithm.loss.loss=math:squareroot",), "algorithm.loss.loss=math:squareroot: the module math has no "),
        (("algorithm.loss.loss=math:sqrt",), "algorithm.loss.loss=math:sqrt is no Loss: write @Loss above"),
    ],
    ids=[
        "questions",
        "weights",
        "weights of a size",
        "server",
        "server.python",
        "experts",
        "model.path",
        "prices",
        "other data",
        "generated data",
        "no data",
        "environment",
        "preferences",
        "loss",
        "loss of a module",
        "no loss",
    ],
)
def test_what_is_missing_ends_the_run_before_anything_is_made(
    tmp_path: Path, questions: Path, capsys: pytest.CaptureFixture[str], overrides: tuple[str, ...], words: str
):
    here = [text.format(q=questions) for text in overrides]
    with pytest.raises(SystemExit, match=r"^2$"):
        run(config(tmp_path / "run", *here))
    lines = capsys.readouterr().err.splitlines()
    assert any(words in line for line in lines), lines
    assert all(line.endswith(".") for line in lines)
    assert not (tmp_path / "run").exists()


def test_the_command_line_says_one_sentence_and_leaves_the_run_that_is_there(tmp_path: Path, questions: Path):
    folder = tmp_path / "run"
    files = {folder / "run.json": '{"config": {}, "starts": []}', folder / ".hydra" / "overrides.yaml": "- seed=1\n"}
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    overrides = (
        "env=qa", "data=jsonl", "tools=offline", "tools.search.corpus=null", "tools.names=[python]",
        f"env.tokenizer={ROOT / 'conf'}", f"data.path={tmp_path / 'nothing.jsonl'}",
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "experiments/train.py", f"output_dir={folder}", *overrides],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if not line.startswith("[transformers]")]
    assert lines == [f"data.path={tmp_path / 'nothing.jsonl'} is not there: set data.path."]
    assert {path for path in folder.rglob("*") if path.is_file()} == files.keys()
    assert (folder / ".hydra" / "overrides.yaml").read_text() == "- seed=1\n"
    (start,) = json.loads((folder / "run.json").read_text())["starts"]
    assert (start["outcome"], [start["reason"]]) == ("refused", lines)
    assert start["overrides"][1:] == list(overrides)


def test_a_broken_file_of_questions_is_one_sentence(tmp_path: Path):
    path = tmp_path / "broken.jsonl"
    path.write_text('{"question": "What?"\n')
    with pytest.raises(ConfigError, match=r"broken\.jsonl"):
        make_environment(config(tmp_path, *NO_PASSAGES, f"data.path={path}", "data.eval_path=null"))


# --- real questions --------------------------------------------------------------------------------------------------


@pytest.fixture
def real(data_dir: Path, tmp_path: Path) -> list[str]:
    """Overrides that train on eight questions of GSM8K, with the real tokenizer and the real corpus."""
    rows = (data_dir / "qa_sets" / "gsm8k_train.jsonl").read_text().splitlines()[:8]
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return [*OFFLINE, f"data.path={path}", "data.source=gsm8k", "data.eval_path=null", "data.eval_questions=2"]


def test_held_out_questions_are_never_trained_on(real: list[str], tmp_path: Path):
    environment = make_environment(config(tmp_path, *real))
    held_out = {task.question for task in environment.held_out(8)}
    stream = environment.train_tasks(2)
    trained = {task.question for _ in range(6) for task in next(stream)}
    assert len(held_out) == 2
    assert len(trained) == 6
    assert held_out.isdisjoint(trained | {task.question for task in environment.demonstrations().tasks})
    asyncio.run(environment.close())


@pytest.mark.slow  # 151,669 ids: code that is compiled without optimisation, as make test does, takes minutes for them
def test_real_questions_train_one_step(real: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    demonstrations = []
    play = Collector.play

    async def recorded(self, *args, **options):
        demonstrations.extend(found := await play(self, *args, **options))
        return found

    monkeypatch.setattr(Collector, "play", recorded)
    folder = tmp_path / "run"
    sizes = (
        "steps=1", "model.family=tests.training.micro:OneLayer", "warm_start.steps=1", "warm_start.demonstrations=6",
        "warm_start.batch_size=2", "algorithm.tasks_per_step=2", "algorithm.group_size=2", "rollout.slots=4",
        "rollout.limits.max_new_tokens=32", "evaluation.questions=2", "logger.names=[jsonl]",
    )  # fmt: skip
    run(config(folder, *real, *sizes))
    found = json.loads((folder / "summary.json").read_text())
    results = {
        call.name: result
        for demonstration in demonstrations
        for turn in demonstration.turns
        for call, result in zip(turn.calls, turn.results, strict=True)
    }
    assert results.keys() == {"python", "local_search"}
    assert all(result.text and not result.is_error for result in results.values())
    assert found["steps"] == 1
    assert {"accuracy", "cost", "latency"} <= found["after"].keys()
    assert [row["step"] for row in read_metrics(folder)] == [1]
    assert "question" in (folder / "trajectories" / "step-000001.txt").read_text()
