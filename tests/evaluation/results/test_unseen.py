"""Evaluations with different tools and prices stand apart, and their differences in a table of their own."""

from pathlib import Path

import pytest

from orchestra_jax.evaluation.results.measured import measured
from orchestra_jax.evaluation.results.report import write_report
from orchestra_jax.evaluation.results.tables import tables
from tests.evaluation.results.kept_files import config, evaluation, row

NEW = {"names": ["python"], "experts": {"generalist": ["claude-opus-4.1"]}}
PYTHON = {"names": ["python"], "experts": {}}


def parents(path: Path) -> list[dict]:
    return [{"setting": "model.path", "path": str(path)}]


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """One policy in three settings, with 3, 2 and 4 of 5 right; another one as the first, and without models."""
    made = {
        "seen": (3, config(), "a"), "tools": (2, config(tools=NEW, prices="unseen"), "a"),
        "prices": (4, config(prices="deepinfra"), "a"), "other": (5, config(), "b"),
        "few": (1, config(tools=PYTHON), "b"),
    }  # fmt: skip
    return [
        evaluation(
            tmp_path / name, {"policy/held_out.t0": [row(f"q{n}", n < right, n + 1) for n in range(5)]}, settings,
            parents=parents(tmp_path / policy),
        )
        for name, (right, settings, policy) in made.items()
    ]  # fmt: skip


def test_what_was_never_seen_stands_apart(folders: list[Path]) -> None:
    found = [one for folder in folders for one in measured(folder)]
    made = {table.title: table for table in tables(found)}
    titles = [f"hle{new}, held_out at temperature 0" for new in ("", ", unseen tools", ", unseen prices")]
    main = [[row[0] for row in made[title].rows if not row[0].startswith("published")] for title in titles]
    assert main == [
        ["seen, tools and models", "other, tools and models", "few, basic tools"],  # one table, and it says so
        ["tools"], ["prices"],
    ]  # fmt: skip
    published = [[row[3] for row in made[title].rows if row[0].startswith("published")][-1] for title in titles]
    assert published == ["37.1", "22.0", "36.9"]
    assert "prices: deepinfra" in made[titles[2]].note
    assert "Offered to few, basic tools: python" in made[titles[0]].note


def test_differences_are_of_one_policy_on_the_same_questions(folders: list[Path]) -> None:
    found = [one for folder in folders for one in measured(folder)]
    table = tables(found)[-1]
    assert table.title == "hle, held_out at temperature 0: tools and prices never seen"
    ours = [row for row in table.rows if not row[0].startswith("published")]
    assert [[*row[:4], *row[6:8]] for row in ours] == [
        ["seen", "as in training", "5", "60.0", "", ""],
        ["prices", "unseen prices", "5", "80.0", "5", "+20.0"],
        ["tools", "unseen tools", "5", "40.0", "5", "-20.0"],
    ]
    theirs = [(row[0].removeprefix("published: "), row[3], row[5]) for row in table.rows[3:]]
    assert theirs == [
        ("Orchestrator-8B", "37.1", "9.2"), ("Orchestrator-8B, unseen tools", "22.0", "34.8"),
        ("Orchestrator-8B, unseen prices", "36.9", "7.5"),
    ]  # fmt: skip


def test_a_training_run_and_the_evaluation_of_its_export_are_one_policy(tmp_path: Path) -> None:
    trained, lines = tmp_path / "trained", [row("q", True)]
    own = config("quickstart", PYTHON)
    evaluation(trained, {"after/held_out.t0": lines}, own, kind="train")
    again = evaluation(
        tmp_path / "again", {"policy/held_out.t0": lines}, config("quickstart", NEW, "unseen"),
        parents=[{**parents(trained / "policy")[0], "run": str(trained)}],
    )  # fmt: skip
    first, second = (measured(folder)[0] for folder in (trained, again))
    assert first.policy == second.policy
    assert (first.offer.unseen, second.offer.unseen) == ((), ("unseen tools",))


def test_tau2_finds_its_rows(tmp_path: Path) -> None:
    settings = {**config("some_tasks"), "env": {"name": "tau2"}}
    rows = {"policy/held_out.t0": [row("a", True, 3.0)], "policy/tau2.airline.t0": [row("a", True, 3.0)]}
    folder = evaluation(tmp_path / "run", rows, settings)
    text = write_report([folder], tmp_path / "out")[0].read_text()
    assert "## tau2, held_out at temperature 0" in text
    assert "| run | 1 | 0 | 100.0 | 20.7 to 100.0 | 3.000 | 3.000 to 3.000 | 3.00 | 2.0 | 0.00 |" in text
    # Its cost and latency are another table's: these rows have none.
    assert text.count("| published: Orchestrator-8B |  |  | 80.2 |  |  |  |  |  |  |") == 1
    assert "published: Qwen3-8B, no tools" not in text


DOMAINS = ["airline", "retail", "telecom"]


def tau2(folder: Path, user: str = "gpt-5", phase: str = "policy", **options) -> Path:
    """An evaluation of two tasks of each domain, of which the first is right."""
    made = {"domains": DOMAINS, "source": "wheel", "user": user, "evaluate": "all", **options}
    settings = {**config("auto"), "env": {"name": "tau2", "options": made}}
    lines = [
        row(f"{domain}-{n}", n == 0 and phase == "policy", float(cents), family=domain)
        for cents, domain in enumerate(DOMAINS, 1) for n in range(2)
    ]  # fmt: skip
    idle = [row(f"{domain}-{n}", domain == "airline", 0.0, family=domain) for domain in DOMAINS for n in range(2)]
    return evaluation(folder, {"policy/held_out.t0": lines, "do_nothing/held_out.t0": idle}, settings)


def test_tau2_has_a_column_for_each_domain_and_a_row_of_doing_nothing(tmp_path: Path) -> None:
    found = measured(tau2(tmp_path / "run"))
    label = "tau2, wheel data, user gpt-5, held_out at temperature 0"
    made = {table.title: table for table in tables(found)}
    assert [row[0] for row in made[label].rows][:2] == ["run", "do nothing"]
    assert any(row[0].startswith("published") for row in made[label].rows)
    by_domain = made[f"{label}: by family"]
    assert by_domain.columns[1::4] == ["airline %", "retail %", "telecom %"]
    policy, nothing = by_domain.rows
    assert (policy[1::4], policy[3::4], policy[4::4]) == (["50.0"] * 3, ["1.000", "2.000", "3.000"], ["2.0"] * 3)
    assert (nothing[0], nothing[1::4]) == ("do nothing", ["100.0", "0.0", "0.0"])


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({"user": "scripted"}, "tau2, wheel data, scripted user"),
        ({"source": "original", "domains": DOMAINS[:2]}, "tau2, original data, user gpt-5, airline+retail"),
        ({"evaluate": "held_out"}, "tau2, wheel data, user gpt-5"),
    ],
)
def test_no_published_row_stands_beside_another_tau2(tmp_path: Path, options: dict, label: str) -> None:
    text = write_report([tau2(tmp_path / "run", **options)], tmp_path / "out")[0].read_text()
    assert f"## {label}, held_out at temperature 0\n" in text
    assert "published:" not in text


def test_questions_of_one_family_have_no_table_of_it(tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "run", {"policy/held_out.t0": [row("a", True, family="x")]}, config())
    assert not [table for table in tables(measured(folder)) if "by family" in table.title]
