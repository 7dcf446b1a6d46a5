"""The command line of every script: help at once, flags, and mistakes that are found before JAX is imported."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.missing import missing_inputs
from orchestra_jax.config.missing_policy import missing_to_evaluate
from orchestra_jax.io.shipped import EXPERIMENTS

SCRIPTS = sorted(file.stem for file in EXPERIMENTS.glob("*.py"))
HYDRA = ("train", "evaluate", "judge", "plan", "synthesize")
# Runs a command, and tells on standard error whether it imported JAX.
OBSERVED = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    status = end.code or 0
else:
    status = 0
print(f"jax={'jax' in sys.modules} hydra={'hydra' in sys.modules}", file=sys.stderr)
sys.exit(status)
"""


def start(name: str, *arguments: str, cwd: Path | None = None) -> tuple[int, str, list[str], str]:
    """Return the status of a command, its output, its sentences, and what it imported."""
    command = [sys.executable, "-c", OBSERVED, str(EXPERIMENTS / f"{name}.py"), *arguments]
    environment = os.environ | {"PYTHONPATH": str(EXPERIMENTS.parent)}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)
    *sentences, told = done.stderr.splitlines()
    return done.returncode, done.stdout, sentences, told


# Imports once what every command with settings needs, and runs each line's command in a fork.
FORKING = """
import json, os, sys
import orchestra_jax.config.cli, orchestra_jax.config.missing, hydra._internal.utils
for line in sys.stdin:
    folder, code, arguments = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        sys.argv = ["-c", *arguments]
        try:
            exec(code, {"__name__": "__main__"})
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code)
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def forking() -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": str(EXPERIMENTS.parent), "HF_HUB_OFFLINE": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FORKING], env=environment, text=True, **pipes) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_is_one_sentence_then_examples_then_flags_and_comes_at_once(name: str):
    status, printed, _, told = start(name, "--help")
    first, blank, heading, *lines = printed.splitlines()
    assert (status, first[0].isupper(), first[-1], blank, heading) == (0, True, ".", "", "Examples:"), printed
    assert any(line.startswith(f"  python experiments/{name}.py") for line in lines)
    flags = "Flags:" if name in HYDRA else "usage: "
    assert 1 <= next(number for number, line in enumerate(lines) if line.startswith(flags)) <= 8
    assert len(lines) < 40
    assert told == "jax=False hydra=False"


@pytest.mark.parametrize(("name", "flags"), {
    "evaluate": ["--limit N", "--dry-run"], "judge": ["--sample FILE", "--dry-run"], "synthesize": ["--dry-run"],
    "train": ["--multirun", "--help-all"], "plan": ["path FILE"],
}.items())  # fmt: skip
def test_help_names_every_flag(name: str, flags: list[str]):
    printed = start(name, "-h")[1].partition("Flags:")[2]
    assert all(f"\n  {flag} " in printed for flag in flags)


def test_help_all_names_every_group_of_settings():
    status, printed, _, _ = start("train", "--help-all")
    assert status == 0
    assert all(f"\n{group}:" in printed for group in ("algorithm", "reward", "rollout", "tools", "warm_start"))


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("train", ["model.path=/nowhere"], "model.path=/nowhere is not there: set model.path."),
        ("train", ["+experiment=gsm8k", "data.path=/nowhere.jsonl", "model.random_init=true"], "data.path=/nowhere"),
        ("evaluate", ["policy=/nowhere"], "policy=/nowhere is neither a checkpoint (config.json"),
        ("evaluate", ["name=nobody"], "There is no policy to evaluate: set policy=FOLDER"),
        (
            "evaluate",
            ["policy=baseline:preference_oracle", "tools.experts_file=/x.yaml"],
            "tools.experts_file=/x.yaml is not",
        ),
        ("evaluate", ["+benchmark=database", "policy=baseline:golden", "env.options.worlds=[/nowhere]"], ""),
        ("synthesize", ["tools.experts_file=/x.yaml"], "tools.experts_file=/x.yaml is not there: set tools."),
        ("judge", ["--sample", "/x.jsonl"], "evaluation.judge_sample=/x.jsonl is not there: set evaluation."),
        ("judge", [], "There is no sample: give --sample FILE"),
        ("ask", ["/nowhere", "How?"], "policy=/nowhere is neither a checkpoint (config.json"),
        ("ask", ["no/such", "How?"], "policy=no/such: there is no such folder, and the model no/such is neither"),
        ("evaluate", ["policy=no/such"], "policy=no/such: there is no such folder, and the model no/such is neither"),
        ("serve", ["/nowhere", "--port", "0"], "policy=/nowhere is neither a checkpoint (config.json"),
        ("served", ["/nowhere", "keys"], "There is no '/nowhere/serving/served.db': name the output_dir of a server"),
        ("push", ["/nowhere", "a/b"], "'/nowhere' has no folder policy: name the folder of a run that has ended."),
        ("report", ["/nowhere"], "'/nowhere' has no evaluation: make one with experiments/evaluate.py."),
        (
            "train",
            ["+experiment=my_logs", "path=log.csv"],
            "The column 'cost' of log.csv is empty or missing for 19 of",
        ),
        ("train", ["output_dir=file/run"], "The folder 'file/run' cannot be written (Not a directory): set output_dir"),
        ("train", ["output_dir=/proc/run"], "The folder '/proc/run' cannot be written (No such file or directory)"),
        ("evaluate", ["output_dir=file"], "The folder 'file' cannot be written (File exists): set output_dir to one"),
    ],
)
def test_a_wrong_path_is_found_before_jax_is_imported(
    tmp_path: Path, forking: subprocess.Popen[str], name: str, arguments: list[str], sentence: str
):
    (tmp_path / "file").write_text("")
    rows = [
        f"How much is {n} + 1?,{model},{n + 1},1,{cost}" for n in range(20) for model, cost in (("a", 1), ("b", ""))
    ]
    rows[1] += "0.2"
    (tmp_path / "log.csv").write_text("\n".join(["question,model,output,correct,cost", *rows]) + "\n")
    command = [str(EXPERIMENTS / f"{name}.py"), *arguments]
    print(json.dumps([str(tmp_path), OBSERVED, command]), file=forking.stdin, flush=True)
    status = int(forking.stdout.readline())
    *sentences, told = (tmp_path / "err").read_text().splitlines()
    assert (status, (tmp_path / "out").read_text()) == (2, ""), sentences
    assert any(each.startswith(sentence) for each in sentences)  # without ORCHESTRA_DATA its corpus is missed too
    assert len(sentences) <= 4
    assert told.startswith("jax=False") or "env" in "".join(arguments)  # whose module may need JAX


def test_a_refused_start_is_in_the_record_of_its_folder(tmp_path: Path):
    (tmp_path / "run.json").write_text('{"config": {}, "starts": []}')
    assert start("train", f"output_dir={tmp_path}", "model.path=/nowhere")[0] == 2
    assert '"outcome": "refused"' in (tmp_path / "run.json").read_text()


@pytest.mark.parametrize(("override", "found"), {
    "rollout.server.python=/nowhere/python": ["rollout.server.python=/nowhere/python is not there"],
    "replay.path=/nowhere.db": ["replay.path=/nowhere.db is not there"],
    "data.eval_path=/nowhere.jsonl": ["data.eval_path=/nowhere.jsonl is not there"],
}.items())  # fmt: skip
def test_missing_files_of_a_run(override: str, found: list[str]):
    words = ["rollout.engine=sglang", "rollout.lockstep=false"] if "server" in override else ["replay.mode=replay"]
    words += ["replay.path=README.md"] if "data" in override else []
    lacking = missing_inputs(compose(*words, override))
    assert [sentence.partition(":")[0] for sentence in lacking] == found


@pytest.mark.parametrize("policy", ["http://127.0.0.1:1/v1", "baseline:oracle", "owner/name"])
def test_an_evaluation_needs_no_weights_of_the_configs_model(policy: str):
    words = (f"policy={policy}", "model.path=/nowhere", "model.tokenizer=/nowhere")
    assert missing_to_evaluate(compose(*words, name="evaluate")) == []


@pytest.mark.parametrize(("line", "sentence"), {
    "train --dry-run": "There is no flag '--dry-run' here: experiments/plan.py tells what the same settings need "
    "and cost.",
    "train --seed=1": "There is no flag '--seed': write settings without dashes, seed=1; --help lists the flags.",
    "train --rate 1": "There is no flag '--rate': write settings without dashes, KEY=VALUE; --help lists the flags.",
    "train seed=1 -m steps=2": "'steps=2' is a word too many: put quotes around texts, and write flags after "
    "everything else.",
    "train --cfg all-of-it": "--cfg/-c cannot be 'all-of-it': write one of job, hydra, all.",
    "evaluate --limt 3": "There is no flag '--limt': did you mean --limit?",
    "ask": "policy and question must be given: --help shows how, with examples.",
    "ask p q --name=x": "There is no flag '--name': write settings without dashes, name=x; --help lists the flags.",
    "ask p q --max 3": "--max stands for several flags: write one of --max-usd, --max-seconds.",
    "ask p q --max-usd much": "--max-usd must be a number, not 'much'.",
    "serve p --port x": "--port must be a whole number, not 'x'.",
    "served f judge --usd 1": "--max-usd must be given: --help shows how, with examples.",
    "served f keys --all": "There is no flag '--all': --help lists those there are.",
    "index a b --dim": "--dim needs one value behind it.",
    "index a b": "--kind flat needs --url, an embedding server's base; --kind bm25 needs none.",
    "prepare papers data": "what cannot be 'papers': write paper.",
    "prepare paper data --dry-run=1": "--dry-run takes no value: write it alone.",
    "ask p q --max-usd -1": "--max-usd must be a number >= 0, not '-1'.",
    "chat p --max-seconds nan": "--max-seconds must be a number >= 0, not 'nan'.",
    "describe_tools t f --experts e --writer w --count -1": "--count must be a whole number >= 1, not '-1'.",
    "describe_tools t f --experts e --writer w --max-usd inf": "--max-usd must be a number >= 0, not 'inf'.",
    "describe_tools t . --experts e --writer w": "'.' is a folder: name the file of descriptions in it.",
    "prepare paper data --max-usd=-5": "--max-usd must be a number >= 0, not '-5'.",
    "prepare paper data --pass-rate .1 2": "--pass-rate must be a number from 0 to 1, not '2'.",
    "prepare paper data --pass-rate .9 .1": "--pass-rate LOW HIGH keeps nothing where LOW is above HIGH: swap them.",
    "prepare paper data --pass-rate 1": "--pass-rate needs 2 values behind it.",
}.items())  # fmt: skip
def test_a_wrong_flag_is_one_sentence_with_the_fix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, sentence: str
):
    name, *words = line.split()
    file = str(EXPERIMENTS / f"{name}.py")
    monkeypatch.setattr("sys.argv", [file, *words])
    with pytest.raises(SystemExit, match=r"^2$"):
        runpy.run_path(file, run_name="__main__")
    assert capsys.readouterr() == ("", f"{sentence}\n")
