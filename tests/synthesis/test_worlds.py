"""A world from nothing, end to end with scripted models and a real sandbox: stages, filters, folder, card, replay."""

import json

import pytest

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.database.environment import DatabaseEnvironment
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.run_budget import Halted
from orchestra_jax.synthesis.worlds import functions
from orchestra_jax.types import InfrastructureError
from tests.envs.played import collector
from tests.isolation import available
from tests.synthesis.rental import SUBJECTS, reply
from tests.synthesis.server import configured, serving, synthesised

pytestmark = pytest.mark.skipif(not available(), reason="the sandbox cannot isolate code on this machine")


def world(folder, url, *more):
    sizes = (f"synthesis.subjects={len(SUBJECTS)}", "synthesis.tasks=1", "synthesis.attempts=2", "synthesis.turns=6")
    options = ("synthesis.domain=rental", "synthesis.tries=2", "synthesis.eval_share=0.5")
    return configured(folder, url, *options, *sizes, *more)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a synthesis that was interrupted once, and every request that was billed."""
    folder = tmp_path_factory.mktemp("worlds") / "run"
    with serving(reply) as stub:
        with pytest.raises(Halted, match="The same command goes on"):
            synthesised(world(folder, stub.url, "budget.run_calls=12"))
        assert len(stub.bodies) <= 12
        assert synthesised(world(folder, stub.url))
        return folder, stub.bodies


def card(folder):
    return json.loads((folder / "card.json").read_text())


def reasons(folder):
    return {stage["name"]: stage["reasons"] for stage in card(folder)["stages"] if stage["rejected"]}


def test_each_fault_is_rejected_where_it_must_be(made):
    assert reasons(made[0]) == {
        "form": {"bad id": 1, "does not fit the schema": 1, "near-duplicate": 1, "id used twice": 1},
        "plausibility": {"implausible": 1},
        "references": {"refers to nothing": 2},
        "code": {"no fitting reply": 1},
        "loading": {"does not load": 1},
        "evolution": {"no fitting reply": 7},
        "distinct": {"near-duplicate": 1},
        "golden": {"golden calls raise": 2, "solved with no action": 1},
        "solving": {"nobody solves it": 1, "solved with no action": 1},
    }
    stages = {stage["name"]: stage for stage in card(made[0])["stages"]}
    assert stages["code"]["examples"] == {"no fitting reply": ["Line 4: the name open is not allowed."]}
    assert stages["code"]["unfit_replies"] == 2 + 1  # one never fits, one imported os at first
    assert any("took too long" in why for why in stages["golden"]["examples"]["golden calls raise"])


async def test_the_folder_is_a_world_to_train_in(made):
    folder = made[0] / "rental"
    cfg = compose("+experiment=database", f"env.options.worlds=[{folder}]")
    environment = DatabaseEnvironment(cfg)  # in the sandbox
    (world,) = environment._worlds
    assert {name: sorted(rows) for name, rows in world.database.tables.items()} == {
        "riders": ["R01", "R02", "R11"], "bikes": ["B01", "B11"], "repairs": [],
    }  # fmt: skip
    # Neither the one that opened a file nor the one that never ends.
    assert set(world.specs) == {"get_rider", "get_bike", "rent_bike", "return_bike", "greet"}
    assert {task.id: (len(task.turns), task.split) for task in environment._rows.values()} == {
        "rental-0-0-0": (1, "train"), "rental-0-0-0-h0": (2, "train"), "rental-0-1-0": (1, "eval"),
    }  # fmt: skip
    assert "Nothing twice." in world.policy
    assert environment.unusable == {}
    tasks = [*environment.held_out(10), *next(environment.train_tasks(4))]
    played = await collector(environment, cfg).play(
        environment.baselines()["golden"], tasks, budget=Budget(), silent=True
    )
    assert [each.solved for each in played] == [True] * 5
    await environment.close()


def test_card_and_pages_say_what_was_made(made):
    folder, bodies = made
    found = card(folder)
    assert (found["calls"], found["evolved"], found["near_duplicates"]) == (len(bodies), 1, 2)
    assert found["difficulty"] == {"2/2": 3}
    assert found["usd"] == pytest.approx(sum(m["usd"] for s in found["stages"] for m in s["models"].values()))
    assert (folder / "rental" / "card.json").read_bytes() == (folder / "card.json").read_bytes()
    assert (
        "| golden | 5 | 3 | golden calls raise 2; solved with no action 1 | 0 |" in (folder / "README.md").read_text()
    )
    page = (folder / "pages" / "index.html").read_text()
    assert page.count('<div class="task"') == 3
    assert "B01 is yours; 42 dollars are left." in page
    assert "open(" not in page


def test_again_from_the_record(made):
    folder, _ = made
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix in (".json", ".jsonl", ".md", ".py")]
    before = {file: file.read_bytes() for file in files if "spent" not in file.name}
    for file in (folder / "stages").glob("1*"):
        file.unlink()  # as if it had been killed there
    assert synthesised(world(folder, None, "replay.mode=replay"))
    assert {file: file.read_bytes() for file in before} == before


def test_a_sandbox_that_does_not_start_is_one_sentence(made, monkeypatch):
    def dead(*_):
        raise InfrastructureError("The worker of a world did not start.")

    monkeypatch.setattr(functions, "remote", dead)
    with pytest.raises(Halted, match=r"did not start\. The same command goes on"):
        synthesised(world(made[0], None, "replay.mode=replay"))


def test_nothing_is_left_of_nonsense(tmp_path, capsys):
    with serving(lambda body: '{"subjects": ["a"]}') as stub:
        assert not synthesised(world(tmp_path, stub.url))
    assert "nothing is left after the stage schema" in capsys.readouterr().out
    assert reasons(tmp_path) == {"schema": {"no fitting reply": 1}}
    assert not (tmp_path / "rental").exists()


def test_code_never_runs_with_our_rights(tmp_path):
    with pytest.raises(ConfigError, match="isolation=none"):
        synthesised(world(tmp_path, "http://127.0.0.1:9/v1", "tools.sandbox.isolation=none"))
