"""A page that shows tasks of a synthesised world: words, calls, results, and facts to tell."""

from collections.abc import Sequence
from pathlib import Path

from orchestra_jax.evaluation.results.rendering import templates
from orchestra_jax.io.whole import write_whole
from orchestra_jax.synthesis.stages import Row

INDEX, SHOWN = "index.html", 10


def write(folder: Path, name: str, policy: str, tools: Sequence[Row], tasks: Sequence[Row]) -> None:
    """Write a page with ten tasks of all degrees of difficulty, the rules and the tools."""
    folder.mkdir(parents=True, exist_ok=True)
    ordered = sorted(tasks, key=lambda row: (row["attempts"]["solved"], row["id"]))
    step = max(1.0, len(ordered) / SHOWN)
    shown = [ordered[int(place * step)] for place in range(min(SHOWN, len(ordered)))]
    template = templates(__package__).get_template("world.html.jinja")
    text = template.render(
        name=name,
        policy=policy,
        tools=tools,
        tasks=[{**row, "turns": list(_turns(row))} for row in shown],
        count=len(tasks),
    )
    write_whole(folder / INDEX, text)


def _turns(row: Row) -> list[Row]:
    """Yield the turns, each call with its outcome."""
    outcomes = iter(row["outcomes"])
    return [{**turn, "calls": [{**call, "outcome": next(outcomes)} for call in turn["calls"]]} for turn in row["turns"]]
