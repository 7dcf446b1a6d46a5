"""The live table on a terminal: figures by family of questions, first calls by tool, at any size, to the end."""

import io
import os
import pickle
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from orchestra_jax.training.loggers.live import LATEST, FamilyTable
from orchestra_jax.training.loggers.progress import ProgressBar, show_step
from orchestra_jax.types import Preference, Status, Trajectory, Usage
from tests.rl.trajectories import task, trajectory, turn

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
ROOT = Path(__file__).resolve().parents[3]


def rollout(family: str, calls: str = "", usd: float = 0.0, **rest: object) -> Trajectory:
    asked = replace(task("t", "python", Preference("right", "")), family=family)
    return trajectory(asked, turn([1], [2], calls), turn([3], [4]), ledger=[Usage("python", cost_usd=usd)], **rest)


def drawn(*batches: Sequence[Trajectory], width: int = 80, height: int = 24) -> dict[str, list[str]]:
    """The cells of every line of the table, by the first one."""
    table, console = FamilyTable(), Console(file=io.StringIO(), width=width, height=height)
    for batch in batches:
        table.add(batch)
    with console.capture() as got:
        console.print(table)
    lines = got.get().splitlines()
    assert len(lines) <= height - 3, "bar, a printed line and the cursor's own need room"
    assert all(len(line) <= width for line in lines)
    cells = [re.split(r"  +", line.rstrip()) for line in lines if line.strip(" ─")]
    return {first.strip(): rest for first, *rest in cells}


def test_each_family_has_its_figures_and_first_calls():
    found = drawn(
        [
            rollout("sum", "web_search python", 0.03),
            rollout("sum", "local_search python", 0.01, solved=False),
            rollout("sum", solved=False, status=Status.NO_ANSWER),
            rollout("sum", solved=False, status=Status.FAILED),  # says nothing about the policy
            rollout("hops", "web_search", 0.04),
        ]
    )
    assert found == {
        "the latest 4 rollouts": [],
        "": ["hops", "sum", "all"],
        "right %": ["100", "33", "50"],
        "valid %": ["100", "67", "75"],
        "calls": ["1.00", "1.33", "1.25"],
        "cents": ["4.00", "1.33", "2.00"],
        "first call, %": [],
        "(no call)": ["33", "25"],
        "local_search": ["33", "25"],
        "web_search": ["100", "33", "50"],
    }


def test_figures_are_of_the_latest_batches_and_no_family_or_tool_comes_and_goes():
    old, new = [rollout("sum", "python", solved=False)], [rollout("hops", "web_search")]
    found = drawn(old, *[new] * (LATEST - 1))
    assert (found["right %"], found["python"]) == (["100", "0", "67"], ["100", "33"])
    found = drawn(old, *[new] * LATEST)
    assert (found[""], found["right %"]) == (["hops", "sum", "all"], ["100", "–", "100"])
    assert found["python"] == []


def test_where_every_rollout_failed_there_is_no_table():
    assert drawn([rollout("sum", status=Status.FAILED)]) == {}


def test_questions_without_families_and_of_one_family_have_one_column():
    assert drawn([rollout("")])[""] == drawn([rollout("sum")])[""] == ["all"]


@pytest.mark.parametrize(("width", "height"), [(40, 24), (80, 24), (80, 17), (120, 50)])
def test_many_families_and_tools_fit_the_terminal(width: int, height: int):
    names = [f"family {n} of questions" for n in range(12)]
    batch = [rollout(name, f"tool_{k}", 0.0001) for n, name in enumerate(names) for k in range(30 - n)]
    found = drawn(batch, width=width, height=height)
    assert found[""][-1] == "all"
    assert found["right %"] == ["100"] * len(found[""])
    assert found["cents"][-1] == "0.0100"  # two decimals would say nothing
    shares = [int(found[label][-1]) for label in found if label.startswith(("tool_", "(other tools)"))]
    assert sum(shares) == pytest.approx(100, abs=len(shares) / 2)
    assert len(found[""]) == {40: 2, 80: 4, 120: 7}[width], "the columns that there is room for"
    assert ("tool_0" in found, "(other tools)" in found) == (height > 14, height < 50)


def test_a_terminal_of_few_lines_has_no_table_and_names_in_brackets_stay():
    assert drawn([rollout("sum")], height=13) == {}
    found = drawn([rollout("[bold]", "[red]"), rollout("sum", "[red]")])
    assert (found[""], found["[red]"]) == (["[bold]", "sum", "all"], ["100", "100", "100"])


def test_the_longest_name_of_a_tool_leaves_room_for_its_figure():
    found = drawn([rollout("sum", "t" * 64), rollout("", "t" * 64)], width=40)
    assert (found[""], found["right %"]) == (["sum", "all"], ["100", "100"])
    assert sum(label.startswith("tttttttt") for label in found) == 1


def test_the_bar_leaves_to_the_table_what_it_shows():
    out = io.StringIO()
    metrics = {"accuracy": 0.5, "reward/mean": 0.25, "valid_rate": 1.0}
    with ProgressBar(2, phase="policy", console=Console(file=out, force_terminal=True, width=120, height=24)) as bar:
        show_step(bar, 1, metrics)
        bar.show([rollout("sum", "python")])
        bar.print("saved [step 1]")
        show_step(bar, 2, metrics)
    assert "saved [step 1]" in out.getvalue()
    assert "[bold]" not in out.getvalue()
    last = out.getvalue().rpartition("policy")[2]
    assert "reward 0.25" in last
    assert "the latest 1 rollouts" in last
    assert "accuracy" not in last


def test_a_pipe_gets_no_table():
    out = io.StringIO()
    with ProgressBar(1, phase="policy", console=Console(file=out, force_terminal=False)) as bar:
        bar.show([rollout("sum", "python")])
        show_step(bar, 1, {"accuracy": 0.5})
    assert out.getvalue() == "policy 1/1  eta -:--:--  accuracy 0.5\n"


# argv: the rollouts to show, pickled. What makes them imports JAX, which takes longer than all the rest.
ENDS = """
import pickle, sys
from orchestra_jax.training.loggers.progress import ProgressBar
with ProgressBar(3, phase="policy") as bar:
    bar.show(pickle.loads(bytes.fromhex(sys.argv[1])))
    bar.update(1)
    sys.stderr.write("a warning\\n")
    {end}
print("the next line")
"""


@pytest.mark.parametrize(
    ("end", "said"),
    [("", "the next line"), ("raise KeyboardInterrupt", "KeyboardInterrupt"), ("raise ValueError('bad')", "bad")],
)
def test_however_it_ends_the_terminal_is_whole_and_the_table_stays(end: str, said: str):
    main, worker = pty.openpty()
    shown = [rollout("sum", "python"), rollout("hops", "web_search")]
    words = [sys.executable, "-c", ENDS.format(end=end), pickle.dumps(shown).hex()]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(words, cwd=ROOT, env=env, stdin=worker, stdout=worker, stderr=worker):
        os.close(worker)
        text = "".join(iter(lambda: read(main), ""))
    os.close(main)
    assert text.count(HIDE) == text.count(SHOW) == 1
    assert text.count("a warning") == 1
    table, _, rest = text.partition(SHOW)
    assert said in rest
    assert "right %" not in rest  # it is drawn once more, and nothing is drawn over it
    assert re.search(r"web_search +\S*100", table.rpartition("policy")[2])


def read(terminal: int) -> str:
    """What a terminal got; nothing once the other side has closed, which Linux tells as an error."""
    try:
        return os.read(terminal, 65536).decode("utf-8", "replace")
    except OSError:
        return ""
