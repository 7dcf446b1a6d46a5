"""run.json: the first start writes it, every later one adds to it, and what is refused changes nothing else."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra_jax.config import record
from orchestra_jax.config.parents import parent
from orchestra_jax.config.record import RunRecord, Start, note, read
from orchestra_jax.config.schema import ConfigError, RewardConfig, RunConfig

CFG = RunConfig(name="seed1", seed=1)


def start(folder: Path, cfg: RunConfig = CFG, *overrides: str, **begin) -> None:
    files = {"overrides.yaml": "".join(f"- {override}\n" for override in overrides)}
    with RunRecord(folder, cfg, "train", Start(("train.py", *overrides), overrides, files)) as found:
        found.begin(**begin)


def test_the_first_start_says_what_was_run_with_what_and_where(tmp_path: Path):
    policy = tmp_path / "base" / "policy"
    policy.mkdir(parents=True)
    start(policy.parent, replace(CFG, name="base"))
    start(tmp_path, CFG, "seed=1", "name=a b", parents=[parent("model.path", policy)], devices=["cpu", "cpu"])
    found = read(tmp_path)
    assert (found["name"], found["kind"], found["config"]["reward"]["compute"]) == ("seed1", "train", 1.0)
    (made_from,) = found["parents"]
    assert (made_from["setting"], made_from["run"], made_from["name"]) == ("model.path", str(policy.parent), "base")
    (only,) = found["starts"]
    assert (only["command"], only["overrides"]) == ("train.py seed=1 'name=a b'", ["seed=1", "name=a b"])
    assert only["machine"]["devices"] == {"cpu": 2}
    assert {"python", "orchestra-jax", "jax", "jaxlib", "orbax-checkpoint"} <= only["versions"].keys()
    assert only["date"] <= only["ended"]
    assert (only["outcome"], only["from"]) == ("done", None)
    assert (tmp_path / ".hydra" / "overrides.yaml").read_text() == "- seed=1\n- name=a b\n"


@pytest.mark.skipif(not shutil.which("git"), reason="there is no git")
def test_the_commit_is_that_of_the_checkout_and_says_whether_files_changed(tmp_path: Path, monkeypatch):
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    (tmp_path / "package").mkdir()
    file = tmp_path / "package" / "__init__.py"
    file.write_text("")
    monkeypatch.setattr("orchestra_jax.__file__", str(file))
    start(tmp_path)  # outside of any checkout
    git("init", "-q")
    git("add", "package")
    git("commit", "-q", "-m", "first")
    start(tmp_path)
    file.write_text("changed = True\n")
    start(tmp_path)
    head = git("rev-parse", "HEAD").strip()
    found = read(tmp_path)
    assert [(s["commit"], s["dirty"]) for s in found["starts"]] == [(None, None), (head, False), (head, True)]


def test_later_starts_add_to_it_and_say_from_where(tmp_path: Path):
    start(tmp_path)
    first = read(tmp_path)
    stopped = RunRecord(tmp_path, replace(CFG, steps=9), "train")
    stopped.begin(origin="policy-000004")
    stopped.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    killed = RunRecord(tmp_path, CFG, "train")
    killed.begin(origin="policy-000006")  # and never ends
    now = read(tmp_path)
    assert now | {"starts": now["starts"][:1]} == first
    assert [(s["from"], s["outcome"]) for s in now["starts"][1:]] == [
        ("policy-000004", "stopped"), ("policy-000006", None),
    ]  # fmt: skip
    assert now["starts"][1]["changed"] == {"steps": 9}


def test_a_refused_start_is_added_and_changes_nothing_else(tmp_path: Path):
    start(tmp_path, CFG, "seed=1")
    first = read(tmp_path)
    other = Start(("train.py", "seed=2"), ("seed=2",), {"overrides.yaml": "- seed=2\n"})
    with pytest.raises(ConfigError), RunRecord(tmp_path, replace(CFG, seed=2), "train", other):
        raise ConfigError("This folder holds another run.")
    now = read(tmp_path)
    assert now | {"starts": now["starts"][:1]} == first
    assert {key: now["starts"][1][key] for key in ("outcome", "reason", "overrides")} == {
        "outcome": "refused", "reason": "This folder holds another run.", "overrides": ["seed=2"],
    }  # fmt: skip
    assert (tmp_path / ".hydra" / "overrides.yaml").read_text() == "- seed=1\n"


def test_a_start_that_is_refused_where_nothing_is_leaves_nothing(tmp_path: Path):
    with pytest.raises(ConfigError), RunRecord(tmp_path / "run", CFG, "train"):
        raise ConfigError("There is no such file.")
    assert list(tmp_path.iterdir()) == []
    with RunRecord(tmp_path, CFG, "train", writes=False) as second_process:
        second_process.begin()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", '{"starts": []}', '{"config": {}, "starts": [1]}', "{"])
def test_what_is_no_record_is_said_and_left(tmp_path: Path, text: str):
    (tmp_path / "run.json").write_text(text)
    with (
        pytest.raises(ConfigError, match=r"run.json' is no record of a run"),
        RunRecord(tmp_path, CFG, "train") as found,
    ):
        found.begin()
    assert (tmp_path / "run.json").read_text() == text


def test_without_hydra_it_is_the_command_line_of_the_process(tmp_path: Path):
    with RunRecord(tmp_path, replace(CFG, reward=RewardConfig(compute=0.5)), "evaluate") as found:
        found.begin()
    kept = json.loads((tmp_path / record.FILE_NAME).read_text())
    assert sys.argv[0].split("/")[-1] in kept["starts"][0]["command"]
    assert not (tmp_path / ".hydra").exists()


def test_what_is_noted_while_a_start_is_made_is_in_its_entry_alone(tmp_path: Path):
    note("mcp", {"lost": {}})  # nothing is started
    with RunRecord(tmp_path, CFG, "train") as record:
        note("mcp", {"maps": {"version": "1.0"}})
        record.begin()
    start(tmp_path)
    found = read(tmp_path)
    assert [entry.get("mcp") for entry in found["starts"]] == [{"maps": {"version": "1.0"}}, None]


@pytest.mark.parametrize("left", [True, False])
def test_a_folder_that_is_removed_while_the_run_works_is_one_sentence(tmp_path: Path, left: bool):
    folder = tmp_path / "run"

    def work(error: Exception | None = None) -> None:
        folder.mkdir(exist_ok=True)
        with RunRecord(folder, CFG, "train") as found:
            found.begin()
            shutil.rmtree(folder)
            if left:
                folder.mkdir()  # as by a file that was written later
            if error is not None:
                raise error

    with pytest.raises(ConfigError, match="was removed or emptied while the run was at work in it"):
        work()
    with pytest.raises(ZeroDivisionError):  # what ended the run is told all the same
        work(ZeroDivisionError())
    assert list(tmp_path.rglob("*.json")) == []
