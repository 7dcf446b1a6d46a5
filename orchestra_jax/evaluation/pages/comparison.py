"""A report of evaluations side by side, as Markdown, CSV and one HTML page: from the kept trajectories alone.

The same files give the same bytes. What the paper published stands in rows of its own, marked as published.
"""

import csv
import io
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.config import record
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.evaluation.intervals import Interval, bootstrap, wilson
from orchestra_jax.evaluation.pages.site import templates
from orchestra_jax.types import Status

# arXiv 2511.21689, Table 1: accuracy on HLE and FRAMES in %; cents and minutes are means over both.
PUBLISHED = (
    ("Qwen3-8B, no tools", 3.2, 24.2, 0.2, 0.6),
    ("Qwen3-8B, basic tools", 4.7, 26.5, 1.3, 2.2),
    ("Qwen3-8B, tools and models", 30.6, 68.9, 27.6, 18.3),
    ("GPT-5, basic tools", 35.1, 74.0, 30.2, 19.8),
    ("GPT-5, tools and models", 21.2, 57.5, 17.8, 13.6),
    ("Claude Opus 4.1, tools and models", 34.6, 72.8, 52.5, 25.6),
    ("Orchestrator-8B", 37.1, 76.3, 9.2, 8.2),
)
_PLACES = {"hle": 1, "frames": 2}  # of a benchmark's accuracy in a row above
_FILE = re.compile(r"(?P<name>.+)\.t(?P<temperature>[\d.]+?)(\.\d+)?\.jsonl")  # the number before the end: a process


@dataclass(frozen=True)
class Item:
    """What came of one question: dollars, seconds, and how often each tool was called."""

    solved: bool
    cost: float
    seconds: float
    calls: Counter[str]


@dataclass(frozen=True)
class Measured:
    """One policy on one benchmark.

    Attributes:
        run: folder's name and, of a training run, the phase.
        source: data set; benchmark: its benchmark and temperature.
        items: by question, what was answered; failed: questions that failed for infrastructure reasons.
    """

    run: str
    source: str
    benchmark: str
    items: dict[str, Item]
    failed: int

    @property
    def label(self) -> str:
        """What is asked; two policies with the same label are compared question by question."""
        return f"{self.source}, {self.benchmark}"


@dataclass(frozen=True)
class Table:
    """A table of texts; a row whose first cell begins with "published:" is somebody else's."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def measured(folder: Path) -> list[Measured]:
    """Everything that was evaluated in a run's folder, in the order of its files.

    Raises:
        ConfigError: there is no evaluation in it.
        ValueError: a file is damaged.
    """
    kept = folder / "evaluation"
    config = (record.read(kept) or record.read(folder) or {}).get("config", {})
    data = config.get("data", {})
    source = (
        data.get("eval_source") if data.get("eval_source") not in (None, "auto") else data.get("source", "questions")
    )
    found: dict[tuple[str, str], tuple[dict[str, Item], list[str]]] = {}
    for file in sorted(kept.glob("trajectories/*/*.jsonl"), key=lambda file: (file.parent.name == "after", file)):
        if (named := _FILE.fullmatch(file.name)) is None:
            continue
        phase = "" if file.parent.name == "policy" else f", {file.parent.name}"
        benchmark = f"{named['name']} at temperature {named['temperature']}"
        items, failed = found.setdefault((f"{folder.name}{phase}", benchmark), ({}, []))
        for name, item in _read(file):
            if item is None:
                failed.append(name)
            else:
                items[name] = item
    if not found:
        raise ConfigError(f"{str(folder)!r} has no evaluation: make one with experiments/evaluate.py.")
    return [Measured(run, str(source), name, items, len(failed)) for (run, name), (items, failed) in found.items()]


def _read(file: Path) -> Iterator[tuple[str, Item | None]]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            turns = [turn for turns in row["sequences"] for turn in turns]
            called = [pair for turn in turns for pair in zip(turn["calls"], turn["results"], strict=False)]
            known = row["menu"]["tools"] if isinstance(row["menu"], dict) else {}
            calls = Counter(_tool(call, known) for call, result in called if not result["refused"])
            item = Item(bool(row["solved"]), float(row["cost_usd"]), float(row["latency_s"]), calls)
            yield str(row["id"]), None if row["status"] == Status.FAILED else item
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{str(file)!r}, line {number} is no trajectory: evaluate again. ({error})") from error


def _tool(call: Mapping[str, Any], known: Mapping[str, str]) -> str:
    """What was called: behind the alias of a menu is a tool of the catalogue, or a model that an argument names."""
    name = str(call["name"])
    return known.get(str(call["arguments"].get("model")), known.get(name, name))


def tables(found: Sequence[Measured]) -> list[Table]:
    """Figures by benchmark with the paper's rows, calls by tool, and every two policies on the same questions."""
    labels = list(dict.fromkeys(one.label for one in found))
    made = []
    for label in labels:
        same = [one for one in found if one.label == label]
        made.append(_figures(label, same))
        made.append(_calls(label, same))
        if len(same) > 1:
            made.append(_pairs(label, same))
    return [table for table in made if table.rows]


def _figures(label: str, found: Sequence[Measured]) -> Table:
    rows = []
    for one in found:
        items = list(one.items.values())
        solved, cost = sum(item.solved for item in items), sum(item.cost for item in items)
        rows.append([
            one.run, str(len(items)), str(one.failed),
            _number(solved / len(items) if items else None, 100, 1), _range(wilson(solved, len(items)), 100, 1),
            _number(cost / len(items) if items else None, 100, 3), _range(bootstrap([i.cost for i in items]), 100, 3),
            _number(cost / solved if solved else None, 100, 2),
            _number(float(np.mean([i.seconds for i in items])) if items else None, 1, 1),
            _number(float(np.mean([i.calls.total() for i in items])) if items else None, 1, 2),
        ])  # fmt: skip
    place = _PLACES.get(found[0].source)
    for row in PUBLISHED if place is not None else ():
        own = [
            f"published: {row[0]}",
            "",
            "",
            f"{row[place or 0]:.1f}",
            "",
            f"{row[3]:.1f}",
            "",
            "",
            f"{60 * row[4]:.0f}",
        ]
        rows.append([*own, ""])
    columns = [
        "policy", "answered", "failed", "accuracy %", "95 %", "cents a question", "95 %", "cents per correct",
        "seconds", "calls",
    ]  # fmt: skip
    note = (
        "Means are over the answered questions; what failed for infrastructure reasons is in none of them. Accuracy: "
    )
    note += "Wilson's interval; cents: bootstrap over questions."
    if place is not None:
        note += " Published rows: arXiv 2511.21689, Table 1, whose cents and seconds are means over HLE and FRAMES."
    return Table(label, columns, rows, note)


def _calls(label: str, found: Sequence[Measured]) -> Table:
    counts = [sum((item.calls for item in one.items.values()), Counter[str]()) for one in found]
    tools = sorted({tool for count in counts for tool in count})
    rows = [
        [tool, *(f"{c[tool] / max(1, len(one.items)):.3f} ({c[tool] / max(1, c.total()):.0%})" for c, one in cells)]
        for tool in tools
        for cells in [list(zip(counts, found, strict=True))]
    ]
    note = "Calls a question, and the share of all calls in brackets."
    return Table(f"{label}: calls by tool", ["tool", *(one.run for one in found)], rows, note)


def _pairs(label: str, found: Sequence[Measured]) -> Table:
    rows = []
    for first, second in itertools.combinations(found, 2):
        both = sorted(first.items.keys() & second.items.keys())
        if not both:
            continue
        a, b = [first.items[name] for name in both], [second.items[name] for name in both]
        gained = [float(y.solved) - float(x.solved) for x, y in zip(a, b, strict=True)]
        dearer = [y.cost - x.cost for x, y in zip(a, b, strict=True)]
        wins, losses = gained.count(1.0), gained.count(-1.0)
        rows.append([
            f"{second.run} against {first.run}", str(len(both)), f"{wins} : {losses}",
            f"{100 * float(np.mean(gained)):+.1f}", _range(bootstrap(gained), 100, 1), f"{mcnemar(wins, losses):.3g}",
            f"{100 * float(np.mean(dearer)):+.3f}", _range(bootstrap(dearer), 100, 3),
        ])  # fmt: skip
    columns = ["policies", "questions", "won : lost", "points of accuracy", "95 %", "p", "cents a question", "95 %"]
    note = "On the questions that both answered: bootstrap over the pairs, p of McNemar's exact test."
    return Table(f"{label}: question by question", columns, rows, note)


def mcnemar(wins: int, losses: int) -> float:
    """Two-sided p of McNemar's exact test: so uneven a split of the questions that differ, or more so, by chance."""
    differing = wins + losses
    tail = sum(math.comb(differing, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**differing)


def to_markdown(title: str, made: Sequence[Table]) -> str:
    """The tables as Markdown."""
    parts = [f"# {title}\n"]
    for table in made:
        lines = [table.columns, ["---"] * len(table.columns), *table.rows]
        parts.append(f"## {table.title}\n")
        parts.append(
            "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
        )
        parts.append(f"\n{table.note}\n")
    return "\n".join(parts)


def to_csv(made: Sequence[Table]) -> str:
    """The tables as CSV, one cell of a row in a line: table, row, column, value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "row", "column", "value"])
    for table in made:
        for row in table.rows:
            before = ""
            for column, cell in zip(table.columns[1:], row[1:], strict=True):
                writer.writerow([table.title, row[0], f"{before} {column}" if column == "95 %" else column, cell])
                before = column
    return text.getvalue()


def picture(label: str, found: Sequence[Measured]) -> str:
    """Accuracy against cents a question of the policies on one benchmark, as SVG; the paper's as hollow marks."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    points = [_point(one) for one in found if one.label == label and one.items]
    place = _PLACES.get(next(one.source for one in found if one.label == label))
    theirs = [(f"{row[0]} (published)", row[3], float(row[place])) for row in PUBLISHED] if place else []
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for name, cents, accuracy, low, high in points:
        axes.errorbar(cents, accuracy, yerr=[[accuracy - low], [high - accuracy]], fmt="o", capsize=3)
        axes.annotate(name, (cents, accuracy), xytext=(6, 4), textcoords="offset points", fontsize=8)
    for name, cents, accuracy in theirs:
        axes.plot(cents, accuracy, "o", mfc="none", mec="#6e7781")
        axes.annotate(name, (cents, accuracy), xytext=(6, 4), textcoords="offset points", fontsize=7, color="#6e7781")
    dearest = max([point[1] for point in points] + [point[1] for point in theirs], default=0.0)
    axes.set(xlabel="cents a question", ylabel="accuracy %", title=label, ylim=(0, 100))
    axes.set_xlim(0, 1.1 * dearest or 1.0)  # with room for the dearest one's mark
    axes.spines[["top", "right"]].set_visible(False)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "orchestra_jax", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _point(one: Measured) -> tuple[str, float, float, float, float]:
    items = list(one.items.values())
    solved = sum(item.solved for item in items)
    low, high = wilson(solved, len(items)) or (0.0, 1.0)
    cents = 100 * sum(item.cost for item in items) / len(items)
    return one.run, cents, 100 * solved / len(items), 100 * low, 100 * high


def _number(value: float | None, scale: float, digits: int) -> str:
    return "–" if value is None else f"{scale * value:.{digits}f}"


def _range(interval: Interval | None, scale: float, digits: int) -> str:
    return "" if interval is None else f"{scale * interval[0]:.{digits}f} to {scale * interval[1]:.{digits}f}"


def write_report(folders: Sequence[Path], out: Path) -> list[Path]:
    """Writes report.md, report.csv and report.html, which holds everything itself.

    Raises:
        ConfigError: a folder has no evaluation.
        ValueError: a file is damaged.
    """
    found = [one for folder in folders for one in measured(folder)]
    made: list[Table] = tables(found)
    title = f"Evaluations of {', '.join(folder.name for folder in folders)}"
    pictures = {label: picture(label, found) for label in dict.fromkeys(one.label for one in found)}
    page: Any = templates().get_template("report.html.jinja")
    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.md": to_markdown(title, made),
        "report.csv": to_csv(made),
        "report.html": page.render(title=title, tables=made, pictures=pictures),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8", errors="replace")
    return [out / name for name in texts]
