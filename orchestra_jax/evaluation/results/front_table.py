"""Which policies of a benchmark lie on the front of accuracy against cost, and what each adds to it."""

from collections.abc import Sequence

from orchestra_jax.evaluation.results.front import hypervolume, on_front
from orchestra_jax.evaluation.results.measured import Measured, cost, solved
from orchestra_jax.evaluation.results.table import Table


def points(found: Sequence[Measured]) -> dict[str, tuple[float, float]]:
    """Cents a question and accuracy in %, by run."""
    known = [(one.run, one.mean(cost), one.mean(solved)) for one in found]
    return {run: (100 * cents, 100 * right) for run, cents, right in known if cents is not None and right is not None}


def front(label: str, found: Sequence[Measured]) -> Table:
    """Of two policies and more: the front and the hypervolume, in shares of accuracy times cents a question."""
    places = points(found)
    names, marks = list(places), list(places.values())
    dearest = max((cents for cents, _ in marks), default=0.0)
    whole = hypervolume(marks, dearest) / 100
    rows = []
    for number, name in enumerate(names if len(names) > 1 else []):
        rest = hypervolume([mark for other, mark in enumerate(marks) if other != number], dearest) / 100
        on = "yes" if on_front(marks)[number] else "no"
        cents, accuracy = marks[number]
        rows.append([name, f"{accuracy:.1f}", f"{cents:.3f}", on, f"{whole - rest:.4f}"])
    if rows:
        rows.append(["all together", "", "", f"{sum(on_front(marks))} of {len(marks)}", f"{whole:.4f}"])
    note = (
        "On the front is who no other policy beats: none is as right for less, nor more right for as much. "
        "Hypervolume: the area under the front, accuracy (0 to 1) times cents a question, from the reference point at "
        f"accuracy 0 and the dearest policy's cost ({dearest:.3f} cents), which adds nothing itself; in a policy's "
        "row, how much smaller it is without that policy."
    )
    return Table(f"{label}: front of accuracy and cost", ["policy", "accuracy %", "cents a question", "on the front",
                 "hypervolume"], rows, note)  # fmt: skip
