"""Worlds as folders: the shipped ones are what their makers write, and a broken one is told in a sentence."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.data import shipped_worlds as make
from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.database import golden
from orchestra_jax.envs.database.environment import SHIPPED, open_worlds
from orchestra_jax.envs.database.folder import BadWorld, Exchange, load, save_tasks
from orchestra_jax.envs.database.workers import pool
from orchestra_jax.envs.database.workers.pool import WorkerLimits
from tests.isolation import available

NAMES = sorted(make.WORLDS)
ISOLATION = "auto" if available() else "none"


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_world_is_what_its_maker_writes(name: str, tmp_path: Path) -> None:
    for file in ("tools.py", "policy.md"):
        shutil.copy(SHIPPED / name / file, tmp_path)
    make.write(name, tmp_path)
    for file in SHIPPED.joinpath(name).iterdir():
        if file.is_file():
            assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file


@pytest.mark.parametrize("name", NAMES)
def test_every_task_of_a_shipped_world_can_be_used_and_nothing_has_to_be_guessed(name: str) -> None:
    found = load(SHIPPED / name, trusted=True)
    usable, reasons = golden.solutions(found.world, [task.goal for task in found.tasks])
    assert not reasons
    assert {task.split for task in found.tasks} == {"train", "eval"}
    assert all(make.told(found.world, task) for task in found.tasks)
    asked = [tuple(turn.user for turn in task.turns) for task in found.tasks]
    assert len(set(asked)) == len(asked) == len(usable) >= 100  # what is held out was never trained on
    assert set(found.world.kinds.values()) == {"read", "write", "generic"}


def test_tasks_come_back_as_they_were_saved(tmp_path: Path) -> None:
    whole = shutil.copytree(SHIPPED / "shop", tmp_path / "shop")
    before = load(whole, trusted=True)
    save_tasks(whole, before.tasks)
    assert load(whole, trusted=True).tasks == before.tasks
    words = "One\u2028two\u2029three\x85four\x0bfive\x1csix\r\nseven"  # each ends a line of a text
    odd = replace(before.tasks[0], turns=(Exchange(words),), situation=words)
    save_tasks(whole, [odd, *before.tasks[1:]])
    assert load(whole, trusted=True).tasks == [odd, *before.tasks[1:]]
    file = whole / "tasks.jsonl"
    file.write_text(file.read_text().replace("\n", "\n\n", 1) + "\n")  # by hand
    assert load(whole, trusted=True).tasks == [odd, *before.tasks[1:]]
    assert before.tasks[0].told == "\n".join(turn.user for turn in before.tasks[0].turns)


def _json(change: Callable[[dict], None], file: str) -> Callable[[Path], None]:
    def broken(folder: Path) -> None:
        value = json.loads((folder / file).read_text())
        change(value)
        (folder / file).write_text(json.dumps(value))

    return broken


def _text(text: str, file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).write_text(text) and None


def _orders(schema: dict) -> Callable[[Path], None]:
    return _json(lambda known: known["tables"].update(orders=schema), "schema.json")


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lambda folder: (folder / "schema.json").unlink(), "schema.json is not there"),
        (_text("{", "database.json"), "database.json is no JSON"),
        (_text("[]", "world.json"), "world.json must hold a JSON object"),
        (_json(lambda head: head.update(format=2), "world.json"), "has the format 2, and 1 is read here"),
        (_json(lambda head: head.update(now="today"), "world.json"), "world.json: Invalid isoformat"),
        (_json(lambda head: head.pop("about"), "world.json"), "needs 'about' as a text"),
        (_json(lambda tables: tables.update(orders=[]), "database.json"), "must map ids to entries"),
        (_json(lambda tables: tables.update(more={}), "database.json"), "'more' is in only one of"),
        (
            _json(lambda tables: tables["orders"]["O10"].update(state=3), "database.json"),
            "orders O10, state: 3 is not of type 'string'",
        ),
        (
            _json(lambda tables: tables["orders"]["O10"].update(product="G99"), "database.json"),
            "orders O10: product names 'G99', which is not in products",
        ),
        (_json(lambda tables: tables["orders"]["O10"].update(product="x" * 5000), "database.json"), "xxx ..."),
        (_json(lambda head: head.update(format="a\nb\ud83d"), "world.json"), r"has the format a\nb"),
        (_text("import nothing_there", "tools.py"), "tools.py cannot be read: ModuleNotFoundError"),
        (_text("x = 1", "tools.py"), "tools.py defines no tool"),
        (_text("raise SystemExit(3)", "tools.py"), "tools.py cannot be read: SystemExit: 3"),
        (_text("raise ValueError('a\\nb')", "tools.py"), "tools.py cannot be read: ValueError: a b"),
        (_text('{"a": ' * 90 + "1" + "}" * 90, "database.json"), "database.json is no JSON: it has more than 64 lev"),
        (_text('{"orders": {"O1": 1e999}}', "database.json"), "database.json is no JSON: a number in it, 1e999, over"),
        (_json(lambda schema: schema.update(references=5), "schema.json"), "'references' must be a list of [table, "),
        (_json(lambda schema: schema.update(references=[[1, 2]]), "schema.json"), "'references' must be a list of"),
        (_json(lambda schema: schema.update(tables=[]), "schema.json"), "'tables' must map each table to"),
        (_orders({"$ref": "http://127.0.0.1/x"}), "'orders' cannot be used, at $ref: it refers to 'http://127.0.0.1/x'"),
        (_orders({"$ref": "file:///etc/passwd"}), "refers to 'file:///etc/passwd', which is not in the schema"),
        (_orders({"$ref": "#"}), "its references lead in a circle"),
        (_orders({"properties": {"state": {"pattern": "^(o+)+$"}}}), "orders O10, state: 'open' does not match"),
        (_orders({"properties": {"state": {"pattern": "(?=o)"}}}), "cannot be searched for in linear time"),
        (_text('{"id": "a", "split": "eval", "start": [1], "turns": [{"user": "H"}]}', "tasks.jsonl"), "start must"),
        (_text('{"id": "a"}\n', "tasks.jsonl"), "line 1 is no task: KeyError('turns')"),
        (_text('{"id": "a", "split": "test", "turns": [{"user": "Hi"}]}\n', "tasks.jsonl"), "not 'test'"),
        (_text('{"id": "a", "split": "eval", "turns": [{"user": "Hi"}]}\n' * 2, "tasks.jsonl"), "line 2: there"),
    ],
)  # fmt: skip
def test_a_broken_folder_is_told_in_a_sentence(tmp_path: Path, broken: Callable[[Path], None], told: str) -> None:
    folder = shutil.copytree(SHIPPED / "shop", tmp_path / "shop")
    broken(folder)
    with pytest.raises(BadWorld) as error:
        load(folder, trusted=True)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1500


@pytest.mark.parametrize("file", ["policy.md", "database.json", "tools.py"])
def test_a_folder_that_is_not_trusted_may_not_link_elsewhere(tmp_path: Path, file: str) -> None:
    folder = shutil.copytree(SHIPPED / "shop", tmp_path / "shop")
    (tmp_path / "elsewhere").write_bytes((folder / file).read_bytes())
    (folder / file).unlink()
    (folder / file).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadWorld, match=f"{file} cannot be read: it is a symbolic link to a file elsewhere"):
        load(folder, trusted=False, isolation=ISOLATION)
    load(folder, trusted=True)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os._exit(0)", "do not load: The worker of a world ended in the middle of a call"),
        ("while True: pass", "too much CPU time to load"),
        ("import time; time.sleep(900)", "do not load: The worker of a world gave no answer in 1 s"),
        ("(lambda f: f(f))(lambda f: f(f))", "RecursionError"),
    ],
)
def test_tools_that_exit_or_hang_when_they_are_loaded_are_told(tmp_path: Path, monkeypatch, source, told) -> None:
    folder = shutil.copytree(SHIPPED / "shop", tmp_path / "shop")
    (folder / "tools.py").write_text(source)
    limits = WorkerLimits(load_s=0.2, timeout_s=1.0 if "sleep" in source else 60.0)
    monkeypatch.setattr(pool, "WorkerLimits", lambda: limits)
    with pytest.raises(ConfigError, match=told) as caught:
        open_worlds(compose("env=database", f"env.options.worlds=[{folder}]", f"tools.sandbox.isolation={ISOLATION}"))
    assert "\n" not in str(caught.value)
