"""Dry runs of an evaluation: what they tell, and what they do not load or do."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.envs.database.environment import DatabaseEnvironment
from orchestra_jax.training.forecast import dry_run_evaluation

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("jax", "transformers", "orbax", "grain", "bm25s", "torch")
OBSERVED = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
script = sys.argv.pop(1) + "/experiments/evaluate.py"
try:
    runpy.run_path(script, run_name="__main__")
finally:
    print("loaded:", *(name for name in {heavy} if name in sys.modules))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["policy={folder}/policy"],  # the quickstart
        ["policy={folder}/policy", "+benchmark=database", "env.options.user=gpt-5", "pricing.name=paper"],
        ["policy=baseline:random", "+benchmark=jsonl", "data.path={folder}/q.jsonl", "tools.search.corpus={folder}/c"],
    ],
)  # fmt: skip
def test_a_dry_run_loads_no_jax_and_reads_neither_weights_nor_passages(tmp_path: Path, words: list[str]):
    policy = tmp_path / "policy"
    policy.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (policy / name).write_bytes(b"\xff is no such file")  # whoever reads it fails
    (tmp_path / "q.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n{"question": "1 + 2?", "answer": "3"}\n')
    (tmp_path / "c").write_bytes(b"\xff is no passage")

    command = [sys.executable, "-c", OBSERVED.format(heavy=HEAVY), str(ROOT), "--dry-run", "--limit", "2"]
    command += [word.format(folder=tmp_path) for word in words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    told, loaded = done.stdout.strip().splitlines()
    assert loaded.split() == ["loaded:"]
    assert told.startswith("2 trajectories of held_out (2) cost" if "+benchmark=database" in words else "Dry run:")
    assert {path.name for path in tmp_path.iterdir()} == {"policy", "q.jsonl", "c"}  # no folder was made


def dry(*words: str) -> RunConfig:
    world = ("+benchmark=database", "policy=baseline:golden", "pricing.name=paper", "evaluation.dry_run=true")
    return compose(*world, "evaluation.limit=3", *words, name="evaluate")


def test_a_modelled_user_is_in_the_estimate_of_every_row_that_talks_to_them(capsys: pytest.CaptureFixture[str]):
    dry_run_evaluation(dry("env.options.user=gpt-5", "plan.call_input=1000", "plan.call_output=100"))
    # golden as the policy and as a row beside it, and doing nothing: 3 tasks each, 10 turns of gpt-5.
    usd = 9 * 10 * (1000 * 1.25 + 100 * 10) / 1e6
    told = capsys.readouterr().out
    assert f"3 trajectories of held_out (3) cost about ${usd:.2f}: the user gpt-5 ${usd:.2f} (9 conversations" in told
    dry_run_evaluation(dry())
    assert capsys.readouterr().out == "Dry run: nothing is paid for outside.\n"


def test_a_user_counts_where_the_policy_does_nothing_and_in_a_part_of_a_mixture(capsys: pytest.CaptureFixture[str]):
    cfg = dry("policy=baseline:do_nothing")
    parts = {"parts": {"database": 1.0}, "database": {"user": "gpt-5"}}
    dry_run_evaluation(replace(cfg, env=replace(cfg.env, name="mixture", options=parts)))
    assert "the user gpt-5 $" in capsys.readouterr().out


def test_neither_key_nor_server_is_needed_for_a_dry_run(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question": "1 + 1?", "answer": "2"}\n{"question": "1 + 2?", "answer": "3"}\n')
    paid = ("+benchmark=jsonl", "tools=paper_eval", "pricing.name=paper", f"data.path={questions}")
    dry_run_evaluation(compose(*paid, "policy=baseline:random", "evaluation.dry_run=true", name="evaluate"))
    assert "2 trajectories of held_out (2) cost about $" in capsys.readouterr().out


def test_a_world_is_closed_after_a_dry_run(monkeypatch: pytest.MonkeyPatch):
    closed = list[int]()

    async def close(self: DatabaseEnvironment) -> None:
        closed.append(1)

    monkeypatch.setattr(DatabaseEnvironment, "close", close)
    dry_run_evaluation(dry())
    assert closed == [1]
