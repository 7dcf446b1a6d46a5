import io
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from rich.console import Console

from orchestra_jax.evaluation import pictures
from orchestra_jax.evaluation.benchmark_rows import footnotes, interval_lines
from orchestra_jax.evaluation.pictures import draw
from orchestra_jax.evaluation.terminal import print_summary

ALL_PICTURES = ["learning_curves.png", "tool_shares.png", "accuracy_cost.png"]


def row(accuracy, cost, **more) -> dict:
    made = {"accuracy": accuracy, "valid_rate": 0.96, "cost": cost, "cost_per_correct": cost / accuracy}
    return made | {"latency": 5.0, "calls": 1.25, "failed": 0.0, "utility": 0.5} | more


def swap(cost, local, fast) -> dict:
    base = {"accuracy": 0.8, "cost": 0.04, "latency": 8.0, "local_share": 0.25}
    changes = {"accuracy": {}, "cost": {"cost": cost}, "fast": {"latency": fast}, "local": {"local_share": local}}
    return {kind: base | change for kind, change in changes.items()}


@pytest.fixture
def summary() -> dict:
    before = {"arith": {"python": 0.25, "web": 0.75}, "hard": {}, "all": {"python": 0.25, "web": 0.75}}
    after = {"arith": {"python": 1.0}, "hard": {"expert": 1.0}, "all": {"python": 0.5, "expert": 0.5}}
    return {
        "name": "demo",
        "seed": 3,
        "steps": 250,
        "seconds": 90.0,
        "before": row(0.4, 0.05, tool_shares=before, greedy=row(0.42, 0.048)),
        "after": row(0.8, 0.02, tool_shares=after, greedy=row(0.82, 0.019), failed=2.0),
        "baselines": {
            "random_tool": row(0.3, 0.03),
            "strongest_expert": row(0.5, 0.09),
            "cheapest_sufficient": row(0.81, 0.0195),
            "preference_oracle": row(0.82, 0.0205),
        },
        "preference_swap": {"before": swap(0.04, 0.25, 8.0), "after": swap(0.01, 0.875, 2.0)},
    }


@pytest.fixture
def metrics() -> list[dict]:
    rng = np.random.default_rng(0)
    warm = [{"step": i, "sft/loss": 1.0} for i in range(3)]
    return warm + [
        {
            "step": i,
            "reward/mean": 0.2 + 0.01 * i + rng.normal(0, 0.01),
            "accuracy": 0.4 + 0.01 * i,
            "valid_rate": 0.97 + 0.01 * (-1) ** i,
            "cost_usd": 0.05 - 0.001 * i,
        }
        for i in range(40)
    ]


def printed(summary, width: int = 80, directory: Path = Path("outputs/demo")) -> str:
    out = io.StringIO()
    print_summary(summary, directory, Console(file=out, width=width, force_terminal=False))
    return out.getvalue()


def cells(text: str, start: str) -> list[str]:
    """The columns of the line that starts so."""
    line = next(line for line in text.splitlines() if line.strip().startswith(start))
    return line.strip().removeprefix(start).split()


# --- tables ----------------------------------------------------------------------------------------------------------


def test_a_summary_tells_where_the_time_went(summary) -> None:
    assert "time went" not in printed(summary)
    parts = {"warm start": 54.0, "rollouts": 27.0, "updates": 9.0}
    assert "Where the time went: warm start 60 %, rollouts 30 %, updates 10 %" in printed(summary | {"parts": parts})


def test_other_benchmarks_have_rows_of_their_own_and_so_has_each_part(summary):
    parts = {"accuracy": row(0.5, 0.01), "hard_ones": row(0.25, 0.04)}
    summary["benchmarks"] = {
        "mine": {"before": row(0.1, 0.02), "after": row(0.3, 0.02, greedy=row(0.35, 0.02))},
        "split": {"before": {}, "after": parts},
    }
    text = printed(summary, width=120)
    for start, accuracy in {
        "mine, before": "10.0", "mine, after, greedy": "35.0", "split, after: accuracy": "50.0",
        "split, after: hard ones": "25.0",
    }.items():  # fmt: skip
        assert cells(text, start)[0] == accuracy
    assert "split, before" not in text
    del summary["before"], summary["after"], summary["preference_swap"]
    assert "mine, after" in printed(summary, width=120)


def test_the_summary_fits_a_terminal_of_80_columns(summary):
    text = printed(summary)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_rows_and_units(summary):
    text = printed(summary)
    assert "demo, 250 steps, 1.5 min, seed 3" in text
    assert cells(text, "before training") == ["40.0", "96.0", "5.00", "12.50", "5.0", "1.25", "0.500"]
    assert cells(text, "after training")[:4] == ["80.0", "96.0", "2.00", "2.50"]
    assert cells(text, "after, greedy")[0] == "82.0"
    assert cells(text, "strongest expert")[:4] == ["50.0", "96.0", "9.00", "18.00"]
    assert "Cost per correct answer: 12.50 to 2.50 cents (-80 %)" in text
    assert "Accuracy: 40.0 to 80.0 % (+40.0 points)" in text
    assert "after training: 2 failed for infrastructure reasons" in text
    assert "before training: " not in text


def test_what_several_calls_gain(summary):
    assert "Several calls" not in printed(summary)
    gain = {"share": 0.25, "first_right": 0.4, "answer_right": 0.7, "first_cost": 0.0001, "cost": 0.0003}
    summary["before"]["several"], summary["after"]["several"] = {"share": 0.0}, gain
    lines = printed(summary, width=200).splitlines()
    assert "Several calls for a question, before: 0.0 %" in lines
    assert (
        "Several calls for a question, after: 25.0 %; 40 % of these right by the first call alone, 70 % by all, which "
        "cost 0.030 instead of 0.010 cents"
    ) in lines


def test_the_preference_swap(summary):
    text = printed(summary)
    assert cells(text, "cost  ")[:6] == ["80.0", "→", "80.0", "4.00", "→", "1.00"]
    assert cells(text, 'cost under "cost" ÷ under "accuracy"') == ["1.00", "0.25"]
    assert cells(text, 'latency under "fast" ÷ under "cost"') == ["1.00", "0.25"]
    assert cells(text, 'local share of searches, "local" vs "accuracy"') == "25 % vs 25 % 88 % vs 25 %".split()
    for phase in summary["preference_swap"].values():
        for kind in phase.values():
            kind["local_share"] = None  # nothing was searched
    text = printed(summary)
    assert cells(text, "cost  ")[-3:] == ["–", "→", "–"]
    assert "local share of searches" not in text


def test_where_the_files_lie(summary, tmp_path):
    assert f"Pictures, summary.json and index.html, a page of the run, are in {tmp_path}" in printed(
        summary, directory=tmp_path
    )


def test_a_verdict_stands_last_and_is_the_greedy_policys_where_there_is_one(summary):
    assert printed(summary).rstrip().endswith("outputs/demo")
    summary["after"]["verdict"] = "It varies."
    summary["after"]["greedy"] = None
    assert printed(summary).endswith("are in outputs/demo\nIt varies.\n")
    summary["after"]["greedy"] = {"verdict": "More often right.\nNext: go on."}
    assert printed(summary).endswith("are in outputs/demo\nMore often right.\nNext: go on.\n")


def test_small_costs_have_the_digits_that_their_change_is_told_of(summary):
    summary["before"]["cost_per_correct"], summary["after"]["cost_per_correct"] = 0.000557, 0.000507
    summary["preference_swap"]["before"]["cost"]["cost"] = 0.000192
    text = printed(summary)
    assert "Cost per correct answer: 0.0557 to 0.0507 cents (-9 %)" in text  # not "0.06 to 0.05 cents (-9 %)"
    assert cells(text, "cost  ")[3:6] == ["0.0192", "→", "1.0000"]


def test_after_alone_is_enough_and_missing_figures_are_dashes():
    text = printed({"after": {"accuracy": 0.5}, "baselines": {"random": {"accuracy": None, "cost": math.nan}}})
    assert cells(text, "after training") == ["50.0"]
    assert cells(text, "random") == ["–"]
    assert "Cost per" not in text


def test_an_infinite_cost_per_correct_answer_is_shown(summary):
    for infinite in (math.inf, "inf"):  # the second is how strict JSON may hold it
        summary["before"]["cost_per_correct"] = infinite
        text = printed(summary)
        assert cells(text, "before training")[3] == "∞"
        assert "Cost per correct answer: ∞ to 2.50 cents\n" in text


def test_a_swap_after_training_only(summary):
    del summary["preference_swap"]["before"], summary["preference_swap"]["after"]["fast"]
    text = printed(summary)
    assert "The same questions under each preference, after training" in text
    assert cells(text, 'cost under "cost" ÷ under "accuracy"') == ["–", "0.25"]
    assert "latency under" not in text
    assert "under" not in printed(summary | {"preference_swap": {}})
    assert "under" not in printed(summary | {"preference_swap": {"before": {}, "after": {}}})


# --- pictures --------------------------------------------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    """Figures as they are when saved."""
    found: list[Figure] = []
    save = Figure.savefig

    def keep(self, *args, **kwargs):
        if Path(args[0]).suffix == ".png":
            found.append(self)
        return save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return found


def texts(figure: Figure) -> list[Text]:
    """Texts of the picture, with its headline, which is hidden for the .svg that is saved last."""
    return [t for t in figure.findobj(Text) if t.get_text().strip() and (t.get_visible() or t in figure.texts)]


def words(figure: Figure) -> str:
    return "\n".join(t.get_text() for t in texts(figure))


def test_all_pictures(summary, metrics, tmp_path, drawn):
    folder = tmp_path / "new" / "folder"
    assert draw(summary, metrics, folder) == [folder / name for name in ALL_PICTURES]
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 20_000
    for path in folder.glob("*.svg"):  # for a paper, which has captions: without the headline
        page = path.read_text()
        assert not any(f"<!-- {begin}" in page for begin in ("250 steps", "Expert rises", "After training 80"))
        assert any(f"<!-- {label} -->" in page for label in ("before training", "training step"))
    assert len([*folder.iterdir()]) == 6
    curves, shares, plane = drawn
    assert "Cost per question falls from 4.9" in words(curves)
    assert "Accuracy rises from 4" in words(curves)
    assert "Valid rate stays near 97 %" in words(curves)
    assert "250 steps of training" in words(curves)
    assert "Preference utility" in words(curves)
    assert "Reward" not in words(curves)  # it is relative to the group, and may fall while the policy gets better
    assert "Expert rises from 0 to 50 % of calls, web falls from 75 to 0 %" in words(shares)
    assert "arith: python (100 %); hard: expert (100 %)" in words(shares)
    assert "no calls" in words(shares)
    assert "After training 80 % right for 2.00 cents a question" in words(plane)
    assert {"before training", "after training", "after, greedy", "preference oracle"} <= set(words(plane).split("\n"))


def test_costs_far_apart_are_on_a_logarithmic_axis_with_more_decimals(summary, tmp_path, drawn):
    summary["baselines"] = {
        "do_nothing": row(0.3, 0.0), "router": row(0.8, 0.000122), "expert/gpt-5": row(0.84, 0.02)
    }  # fmt: skip
    draw(summary, [], tmp_path)
    plane = drawn[-1]
    assert plane.axes[0].get_xscale() == "log"
    shown = set(words(plane).split("\n"))
    assert {"router", "gpt-5"} <= shown
    assert "do nothing" not in shown  # what is free has no place there
    text = printed(summary)
    assert cells(text, "router")[2:4] == ["0.0122", "0.0152"]
    assert cells(text, "expert/gpt-5")[2] == "2.0000"


def test_what_is_missing_is_not_drawn(summary, metrics, tmp_path, drawn):
    assert draw({"after": {"accuracy": 0.5}}, [], tmp_path) == []
    assert draw({}, [{"step": 0, "accuracy": 0.5}], tmp_path) == []  # one point makes no curve
    assert list(tmp_path.iterdir()) == []

    del summary["baselines"], summary["before"]
    only_accuracy = [{"step": m["step"], "accuracy": m.get("accuracy", math.nan)} for m in metrics]
    assert [path.name for path in draw(summary, only_accuracy, tmp_path)] == ALL_PICTURES
    curves, shares, plane = drawn
    assert (len(curves.axes), len(shares.axes)) == (1, 1)
    assert "before" not in words(shares)
    assert "Accuracy against cost" in words(plane)


def test_many_tools_share_the_last_colour(summary, tmp_path, drawn):
    shares = {f"tool_{i}": (12 - i) / 78 for i in range(12)}
    summary["before"]["tool_shares"] = summary["after"]["tool_shares"] = {"all": shares}
    draw(summary, [], tmp_path)
    legend = [t.get_text() for t in drawn[0].legends[0].get_texts()]
    assert legend == [f"tool {i}" for i in range(7)] + ["other tools"]
    bars = drawn[0].axes[0].patches
    assert sum(bar.get_width() for bar in bars) == pytest.approx(100)
    assert "Which tools the policy calls" in words(drawn[0])


def test_smoothing_keeps_a_constant_and_its_range():
    steps = np.arange(200.0)
    np.testing.assert_allclose(pictures.smooth(steps, np.full(200, 3.0)), 3.0)
    noisy = np.random.default_rng(0).normal(0, 1, 200)
    assert np.std(pictures.smooth(steps, noisy)) < 0.5 * np.std(noisy)


@pytest.mark.parametrize("in_turn", [False, True])
def test_curves_say_where_first_calls_are_not_the_policys_own(in_turn: bool):
    rows = [{"step": step, "accuracy": 0.5, "cost_usd": 0.1} for step in (1, 2, 3)]
    rows = [row | {"reward/mean": 0.2} for row in rows]
    curves = pictures._learning_curves(rows, {})
    assert any("Reward" in axes.get_title("left") for axes in curves.axes)  # no utility is known
    words = " ".join(text.get_text() for text in pictures._learning_curves(rows, {"enumerate_calls": in_turn}).texts)
    assert "3 steps of training" in words
    assert ("not the policy's own" in words) is in_turn


def test_the_lines_below_the_table_by_hand():
    several = {"intervals": {"accuracy": {"bootstrap": (0.25, 0.75)}}, "pass^k": {"1": 0.5, "2": 0.125}}
    rows = [("a", {"accuracy": 0.5, **several, "pass@k": {"1": 0.5, "2": None}}, ""), ("b", {"accuracy": 1.0}, "")]
    assert list(interval_lines(rows)) == [
        "a: accuracy 50.0 %, 95 % interval 25.0 to 75.0 %.",
        "a: pass^k for k = 1: 50.0 %, 2: 12.5 %.",
        "a: pass@k for k = 1: 50.0 %, 2: – %.",
    ]
    of, why = "failed for infrastructure reasons and are in no figure.", "Most often: Gone."
    failed = [{"failed": 2.0, "counted": 0.0, "failure": "Gone."}, {"failed": 1.0, "counted": 3.0}, {"failed": 0.0}]
    wanted = [f"r: 2 of 2 {of} Nothing is known of it. {why}", f"r: 1 of 4 {of}"]
    assert list(footnotes([("r", figures, "") for figures in failed])) == wanted
