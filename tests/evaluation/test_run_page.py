"""The page of a finished run: figures, pictures, questions before and after, commands; hostile text stays text."""

import json
import math
import re
import shlex
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.evaluation.pictures import draw
from orchestra_jax.evaluation.run_page import write_page
from orchestra_jax.evaluation.trajectory_files import TrajectoryFile
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolResult, ToolSpec, Trajectory, Turn, Usage

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{ 7*7 }} \ud83d"
FIGURES = {"valid_rate": 1.0, "latency": 2.0, "calls": 1.0}


def trajectory(number: int, *, solved: bool, text: str = "said", family: str = "lookup", calls: int = 1) -> Trajectory:
    tools = (ToolSpec("search", "finds", {}, 0.02, 3.0), ToolSpec("free", "guesses", {}))
    task = Task(
        f"t{number}", f"Question {number}? {text}", ("right",), tools, Preference("cost", f"Save. {text}"), family
    )
    paid = Usage("search", cost_usd=0.02, seconds=3.0)
    call = Turn(
        (), (), (), 1, "stop", f"I call. {text}", (ToolCall("search", {}),), (ToolResult(f"found {text}", (paid,)),)
    )
    end = Turn((), (), (), 1, "stop", "right" if solved else "wrong")
    turns = (*[call] * calls, end)
    return Trajectory(task, 0, 0, (turns,), Status.COMPLETED, "", end.text, solved, (paid,) * calls)


def keep(run: Path, phase: str, found: list[Trajectory], name: str = "held_out.t1.jsonl") -> None:
    for number, each in enumerate(found):
        path = run / "evaluation" / "trajectories" / phase / f"{number}.jsonl"
        TrajectoryFile(path, None, [each.task]).add(each)
        with (path.parent / name).open("a") as whole:
            whole.write(path.read_text())
        path.unlink()


def summary(**others: Any) -> dict[str, Any]:
    before = {"accuracy": 0.4, "cost": 0.02, "cost_per_correct": 0.05, "utility": 0.3, **FIGURES}
    after = {"accuracy": 0.9, "cost": 0.01, "cost_per_correct": 0.0111, "utility": 0.75, **FIGURES}
    swap = {"cost": {"accuracy": 0.8, "cost": 0.01, "latency": 4.0}}
    scripts = {"oracle": {"accuracy": 0.95, "utility": 0.8}}
    found = {"name": "quick", "steps": 20, "seed": 3, "before": before, "after": after, "baselines": scripts}
    return found | {"preference_swap": {"before": swap, "after": swap}} | others


class Tags(HTMLParser):
    """Collects the tags of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.words += " " * (tag in ("td", "th"))

    def handle_data(self, data: str) -> None:
        self.words += data


def page(run: Path, found: dict[str, Any], rows: Sequence[dict[str, float]] = ()) -> Tags:
    read = Tags()
    read.feed(write_page(found, run, rows).read_text(encoding="utf-8"))
    return read


def test_the_page_has_figures_pictures_three_questions_and_commands_that_a_shell_takes(tmp_path: Path) -> None:
    run = tmp_path / "my runs"
    (run / "policy").mkdir(parents=True)
    before = [trajectory(n, solved=n == 3, family="hops" if n == 4 else "lookup") for n in range(6)]
    after = [trajectory(n, solved=n > 1, family="hops" if n == 4 else "lookup", calls=1 + (n == 4)) for n in range(6)]
    keep(run, "before", before)
    keep(run, "after", after)
    rows = [
        {"step": n, "reward/mean": 0.1, "accuracy": n / 20, "cost_usd": 0.01, "valid_rate": 1.0} for n in (1, 10, 20)
    ]
    draw(summary(), rows, run)
    found = page(run, summary())
    assert [attrs["src"] for tag, attrs in found.tags if tag == "img"] == ["learning_curves.png", "accuracy_cost.png"]
    words = " ".join(found.words.split())
    assert "Cost per correct answer: 5.00 to 1.11 cents (-78 %) Accuracy: 40.0 to 90.0 % (+50.0 points)" in words
    assert "after training 90.0 100.0 1.00 1.11 2.0 1.00 0.750 oracle 95.0" in words
    assert "cost 80.0 → 80.0 1.00 → 1.00" in words
    asked = re.findall(r"Question (\d)\? said Save\. said Menu: search 2 cents 3 s, free\. Right: right\.", words)
    assert asked == ["4", "2", "5"]  # mended: first the one of another kind, with most calls
    assert words.count("before: wrong, 2.00 cents, 3.0 s I call. said → found said wrong") == 3
    (command, *_) = [line for line in found.words.splitlines() if line.startswith("orchestra-jax ask")]
    assert shlex.split(command) == [
        "orchestra-jax", "ask", str(run), "Question 4? said", "--wish", "Save. said"
    ]  # fmt: skip
    assert f"orchestra-jax serve {shlex.quote(str(run))} --port 8100" in words


def test_the_page_has_a_table_of_steps_and_of_many_some_with_the_last(tmp_path: Path) -> None:
    figures = {"reward/mean": 0.25, "accuracy": 0.5, "cost_usd": 0.0125, "latency_s": 2.0, "valid_rate": 1.0}
    rows = [{"step": 1, **figures}, {"step": 2, **figures, "calls": 1.5, "eval/accuracy": 0.75}]
    words = " ".join(page(tmp_path, summary(), rows).words.split())
    assert "step reward right (%) cents seconds calls valid (%) held out: right (%) 1 0.250 50.0 1.25 2.0" in words
    assert " 2.0 100.0 2 0.250 50.0 1.25 2.0 1.50 100.0 75.0 Ask this policy" in words
    many = page(tmp_path, summary(), [{"step": n, "accuracy": math.nan} for n in range(1, 402)]).words
    assert [int(step) for step in re.findall(r"(\d+) +nan", many)] == list(range(1, 402, 5))
    assert "Steps" not in page(tmp_path, summary()).words


def test_hostile_text_stays_text_and_nothing_runs(tmp_path: Path) -> None:
    keep(tmp_path, "before", [trajectory(0, solved=False, text=HOSTILE)])
    keep(tmp_path, "after", [trajectory(0, solved=True, text=HOSTILE)])
    (tmp_path / "policy").mkdir()
    found = page(tmp_path, summary(name=HOSTILE, baselines={HOSTILE: {"accuracy": 0.5}}))
    tags = [tag for tag, _ in found.tags]
    assert not {"script", "img", "iframe", "object", "link"} & set(tags)
    assert not [name for _, attrs in found.tags for name in attrs if name.startswith("on")]
    assert found.words.count("alert(1)") >= 10  # title, heading, table, question, turns, results, command
    assert "{{ 7*7 }}" in found.words
    assert "default-src 'none'" in next(attrs["content"] or "" for tag, attrs in found.tags if "http-equiv" in attrs)


@pytest.mark.parametrize("kept", [False, True])
def test_a_run_without_policy_trajectories_or_figures_has_a_page_too(tmp_path: Path, kept: bool) -> None:
    if kept:
        keep(tmp_path, "after", [trajectory(0, solved=True)])  # none before
    found = page(tmp_path, {"name": None, "before": {}, "after": {}} if not kept else summary())
    assert "The run wrote no policy" in found.words
    assert "Before and after" not in found.words
    assert "orchestra-jax ask" not in found.words


def test_greedy_answers_are_shown_where_there_are_some(tmp_path: Path) -> None:
    for phase in ("before", "after"):
        keep(tmp_path, phase, [trajectory(0, solved=True, text="sampled")])
        keep(tmp_path, phase, [trajectory(0, solved=True, text="sampled")], "held_out.t0.7.jsonl")
        keep(tmp_path, phase, [trajectory(0, solved=True, text="greedy")], "held_out.t0.jsonl")
    words = page(tmp_path, summary()).words
    assert ("greedy" in words, "sampled" in words) == (True, False)


def test_a_question_of_the_file_is_what_json_says(tmp_path: Path) -> None:
    keep(tmp_path, "after", [trajectory(0, solved=True)])
    (line,) = (tmp_path / "evaluation/trajectories/after/held_out.t1.jsonl").read_text().splitlines()
    assert json.loads(line)["offers"] == {"search": [0.02, 3.0], "free": [None, None]}
