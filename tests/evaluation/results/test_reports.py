"""The report: figures from kept trajectories, paired comparisons against brute force, the same bytes again."""

import csv
import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.evaluation.against_cost import accuracy_cost
from orchestra_jax.evaluation.results.comparisons import mcnemar, sign_flip_test
from orchestra_jax.evaluation.results.measured import measured
from orchestra_jax.evaluation.results.published import TABLE_1
from orchestra_jax.evaluation.results.report import write_report
from orchestra_jax.evaluation.results.tables import tables
from tests.evaluation.results.kept_files import config, evaluation, row

SOLVED = {"one": [1, 1, 0, 0, 1], "two": [1, 0, 1, 1, 1]}


def line(name: str, solved: int, cost: float, status: str = "completed") -> str:
    call = {"name": "expert-1", "arguments": {}}
    result = {"refused": False}
    turns = [{"calls": [call, call], "results": [result, {"refused": True}]}, {"calls": [], "results": []}]
    menu = {"tools": {"expert-1": "generalist/<b>"}}
    return json.dumps(row(name, bool(solved), cost_usd=cost, menu=menu, status=status, sequences=[turns]))


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    for name, solved in SOLVED.items():
        kept = tmp_path / name / "evaluation"
        (kept / "trajectories" / "policy").mkdir(parents=True)
        rows = [line(f"q{n}", right, 0.01 * (n + 1) * len(name)) for n, right in enumerate(solved)]
        rows.append(line("q9", 0, 0.0, "failed" if name == "one" else "completed"))
        (kept / "trajectories" / "policy" / "held_out.t0.jsonl").write_text("\n".join(rows[:3]) + "\n")
        (kept / "trajectories" / "policy" / "held_out.t0.p1.jsonl").write_text("\n".join(rows[3:]) + "\n")
        config = {"data": {"source": "hle", "eval_source": "auto"}}
        (kept / "run.json").write_text(json.dumps({"config": config, "starts": []}))
    return [tmp_path / name for name in SOLVED]


def test_figures_stand_beside_what_was_published(folders: list[Path]) -> None:
    figures, calls, pairs, front = tables([one for folder in folders for one in measured(folder)])
    assert figures.title == "hle, held_out at temperature 0"
    first, second, *published = figures.rows
    assert first[:4] == ["one", "5", "1", "60.0"]  # what failed is in no mean
    assert second[:4] == ["two", "6", "0", "66.7"]
    assert (first[5], first[7]) == ("9.000", "15.00")
    assert [row[0] for row in published] == [f"published: {row.name}" for row in TABLE_1]
    assert published[-1][3] == "37.1"
    assert [list(row) for row in calls.rows] == [["generalist/<b>", "1.000 (100%)", "1.000 (100%)"]]
    ((what, count, score, points, interval, *_),) = pairs.rows
    assert (what, count, score, points) == ("two against one", "5", "2 : 1", "+20.0")
    gained = [b - a for a, b in zip(*SOLVED.values(), strict=True)]
    low, high = map(float, interval.split(" to "))
    draws = [np.mean(picked) for picked in itertools.product(gained, repeat=5)]  # all resamples there are
    assert np.mean([low <= 100 * draw <= high for draw in draws]) == pytest.approx(0.95, abs=0.05)
    # (9 - 7.5) cents times 2 / 3.
    assert [list(row[-2:]) for row in front.rows] == [["no", "0.0000"], ["yes", "1.0000"], ["1 of 2", "1.0000"]]


def test_mcnemar_is_the_share_of_as_uneven_splits() -> None:
    for wins, losses in ((0, 0), (3, 1), (0, 6), (5, 5)):
        splits = [abs(sum(coins) * 2 - (wins + losses)) for coins in itertools.product((0, 1), repeat=wins + losses)]
        assert mcnemar(wins, losses) == pytest.approx(np.mean([split >= abs(wins - losses) for split in splits]))


def test_differences_of_means_are_flipped_in_all_ways() -> None:
    for gained in ([1.0, 1 / 3, -2 / 3, 0.0, 1.0, 1 / 3, 2 / 3], [1.0] * 6, [0.5, -0.5], [0.0]):
        ways = [np.dot(signs, gained) for signs in itertools.product((-1, 1), repeat=len(gained))]
        share = np.mean([abs(way) >= abs(sum(gained)) - 1e-9 for way in ways])
        assert sign_flip_test(gained) == pytest.approx(share, abs=0.02)
    once = [1.0] * 9 + [-1.0] * 2  # one sample of each question: McNemar's test
    assert sign_flip_test(once) == pytest.approx(mcnemar(9, 2), abs=0.01)


def test_the_same_files_give_the_same_bytes(folders: list[Path], tmp_path: Path) -> None:
    first, second = (write_report(folders, tmp_path / name) for name in ("a", "b"))
    assert [file.name for file in first] == ["report.md", "report.csv", "report.html"]
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
    ended = folders[1] / "evaluation" / "trajectories" / "policy" / "held_out.t0.jsonl"
    ended.write_text("".join(reversed(ended.read_text().splitlines(keepends=True))))  # in another order
    again = write_report(folders, tmp_path / "c")
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in again]
    page = first[2].read_text()
    assert "<svg" in page
    assert "generalist/&lt;b&gt;" in page
    assert "src=" not in page.replace("xlink:href", "")  # it needs nothing else


def test_a_temperature_is_told_from_a_process(folders: list[Path]) -> None:
    kept = folders[0] / "evaluation" / "trajectories" / "policy"
    for name in ("held_out.t0.7.jsonl", "held_out.t0.7.p12.jsonl", "held_out.t1e-05.jsonl"):
        (kept / name).write_text(line(name, 1, 0.01) + "\n")
    found = {one.benchmark: len(one.items) for one in measured(folders[0])}
    assert found == {f"held_out at temperature {t}": count for t, count in {"0": 5, "0.7": 2, "1e-05": 1}.items()}


def test_what_is_no_evaluation_is_named(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no evaluation: make one with experiments/evaluate\.py"):
        measured(tmp_path)
    file = folders[0] / "evaluation" / "trajectories" / "policy" / "held_out.t0.jsonl"
    for content in (b'{"id": 1}\n', b'{"id": "\xff"}\n', b"[" * 100_000):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"held_out\.t0\.jsonl', line 1 is no trajectory"):
            measured(folders[0])


def test_several_samples_are_one_question_in_every_interval(tmp_path: Path) -> None:
    def evaluated(name: str, right: int) -> Path:
        lines = [row(f"q{n % 3}", n % 3 < right, 2.0, member=n // 3) for n in range(6)]
        lines.append(row("q9", False, status="failed"))
        return evaluation(tmp_path / name, {"policy/held_out.t1": lines}, config())

    folders = [evaluated("one", 1), evaluated("two", 2)]
    made = {table.title.partition(": ")[2]: table for table in tables([measured(folder)[0] for folder in folders])}
    (first, second, *_) = made[""].rows
    assert (first[1:4], second[1:4]) == (["3", "1", "33.3"], ["3", "1", "66.7"])  # two samples of three questions
    assert first[4] == "0.0 to 100.0"  # Wilson's, of six, would say 9.7 to 70.0
    several = made["several samples of a question"]
    assert several.columns == ["policy", "pass^1 %", "pass^2 %", "pass@1 %", "pass@2 %"]
    assert several.rows[0] == ["one", "33.3", "33.3", "33.3", "33.3"]
    assert made["question by question"].rows[0][1:4] == ["3", "1 : 0", "+33.3"]
    assert "flip the differences' signs" in made["question by question"].note


def test_doing_nothing_has_one_row_and_a_cut_policy_no_pair(tmp_path: Path) -> None:
    for name in ("one", "two"):
        lines = [row(f"q{n}", n < 2, 1.0) for n in range(4)]
        silent = [line | {"solved": False, "cost_usd": 0.0} for line in lines[: 4 if name == "two" else 3]]
        files = {f"{phase}/held_out.t0": lines for phase in ("policy", "policy-10-turns")}
        evaluation(tmp_path / name, {**files, "do_nothing/held_out.t0": silent}, config())
    found = [one for name in ("one", "two") for one in measured(tmp_path / name)]
    made = {table.title.partition(": ")[2]: table for table in tables(found)}
    names = ["one", "one, policy-10-turns", "two", "two, policy-10-turns", "do nothing"]
    assert [row[0] for row in made[""].rows if "published" not in row[0]] == names
    assert made[""].rows[4][:4] == ["do nothing", "4", "0", "0.0"]
    assert [row[0] for row in made["front of accuracy and cost"].rows] == [*names, "all together"]
    against = [row[0] for row in made["question by question"].rows]
    assert against == ["two against one", "do nothing against one", "do nothing against two"]


def test_whom_a_policy_asks_stands_beside_what_was_published(tmp_path: Path) -> None:
    calls = [["expert-1", "expert-2", "python"], ["expert-1", "expert-1"], []]
    lines = [row(f"q{n}", True, calls=each, policy_model="gpt-5-mini") for n, each in enumerate(calls)]
    folder = evaluation(tmp_path / "run", {"policy/held_out.t0": lines}, config())
    (table,) = [table for table in tables(measured(folder)) if table.title.endswith("whom the policy asks")]
    assert table.rows[0] == ["run", "1.333", "75.0", "50.0 to 100.0", "75.0", "50.0 to 100.0", "gpt-5-mini"]
    assert [[cell for cell in row if cell] for row in table.rows[1:]] == [
        ["published: GPT-5", "98"], ["published: Qwen3-8B", "73"],
    ]  # fmt: skip
    unknown = [line | {"policy_model": None} for line in lines]
    again = evaluation(tmp_path / "again", {"policy/held_out.t0": unknown}, config("mine"))
    (table,) = [table for table in tables(measured(again)) if table.title.endswith("whom the policy asks")]
    assert [list(row) for row in table.rows] == [["again", "1.333", "75.0", "50.0 to 100.0", "–", "", "–"]]
    assert all("published" not in cell for row in table.rows for cell in row)


def test_runs_whose_folders_have_one_name_are_told_apart(tmp_path: Path) -> None:
    folders = [tmp_path / name / "0" for name in ("one", "two")]
    for folder, cents in zip(folders, (1.0, 2.0), strict=True):
        lines = [row(f"q{n}", n < cents, cents) for n in range(3)]
        evaluation(folder, {"policy/held_out.t0": lines}, config("mine"))
    _, table, _ = (file.read_text() for file in write_report(folders, tmp_path / "out"))
    lines = [line for line in csv.reader(io.StringIO(table)) if "front" in line[0] and line[2] == "on the front"]
    assert [line[1:] for line in lines] == [
        [str(folders[0]), "on the front", "yes"], [str(folders[1]), "on the front", "yes"],
        ["all together", "on the front", "2 of 2"],
    ]  # fmt: skip
    assert f"{folders[1]} against {folders[0]}" in table
    compared = {line[2]: line[3] for line in csv.reader(io.StringIO(table)) if "question by question" in line[0]}
    assert (compared["won : lost"], compared["cents a question"]) == ("1 : 0", "+1.000")  # the second is dearer


def test_no_cell_of_a_report_is_a_formula_or_a_tag(tmp_path: Path) -> None:
    hostile = ('=HYPERLINK("http://x","y")', "@SUM(1)", "-2+3", "+1 to 2", "<img src=x onerror=alert(1)>", "[a](b)|\\|")
    lines = [row(f"q{n}", n % 2 == 0, n, calls=[name]) for n, name in enumerate(hostile)]
    one = evaluation(tmp_path / "=1+1", {"policy/held_out.t0": lines}, config())
    two = evaluation(tmp_path / "two", {"policy/held_out.t0": [line | {"solved": False} for line in lines]}, config())
    markdown, table, _ = (file.read_text() for file in write_report([one, two], tmp_path / "out"))
    cells = [cell for line in csv.reader(io.StringIO(table)) for cell in line]
    risky = [cell for cell in cells if cell[:1] in tuple("=+-@")]
    assert all(float(cell) <= 0 or cell.startswith("+") for cell in risky)  # numbers alone
    assert {f"'{name}" for name in hostile[:4]} < set(cells)
    assert "'=1+1" in cells
    assert "<img" not in markdown
    assert "&lt;img src=x onerror=alert(1)&gt;" in markdown
    assert "\\[a\\](b)\\|\\\\\\|" in markdown


def test_a_world_names_itself_and_where_all_is_free_no_cost_is_drawn(tmp_path: Path) -> None:
    options = {"name": "recorded", "options": {"path": "logs/mine.csv"}}
    made = config("auto") | {"env": options}
    lines = [row(f"q{n}", n < 2, 0.0) for n in range(3)]
    folders = [evaluation(tmp_path / name, {"policy/held_out.t0": lines}, made) for name in ("one", "two")]
    titles = [table.title for table in tables([one for folder in folders for one in measured(folder)])]
    assert titles[0] == "recorded, mine.csv, held_out at temperature 0"
    assert not any("front" in title for title in titles)
    assert "<svg" not in write_report(folders, tmp_path / "out")[2].read_text()
    paid = evaluation(tmp_path / "paid", {"policy/held_out.t0": [line | {"cost_usd": 0.1} for line in lines]}, made)
    assert "<svg" in write_report([*folders, paid], tmp_path / "more")[2].read_text()
    free = {"accuracy": 0.5, "cost": 0.0}
    assert accuracy_cost({"after": free, "baselines": {"cheapest": free}}) is None


def test_a_script_on_other_questions_is_no_point_beside_those_of_the_held_out_ones() -> None:
    paid = {"accuracy": 0.5, "cost": 0.01}
    rows = {"do_nothing": paid, "do_nothing on preference_swap": paid}
    plane = accuracy_cost({"after": paid, "baselines": rows})
    words = [text.get_text() for text in plane.axes[0].texts]
    assert "do nothing" in words
    assert "do nothing on preference swap" not in words
    wished = {"after": {"low_cost": paid, "accuracy": {"accuracy": 0.7, "cost": 0.2}}}
    plane = accuracy_cost({"after": paid, "preference_swap": wished})
    words = [text.get_text() for text in plane.axes[0].texts]
    assert {"after, wish: low cost", "after, wish: accuracy"} < set(words)
