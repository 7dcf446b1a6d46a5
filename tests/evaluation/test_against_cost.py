"""Labels of the picture of accuracy against cost: each has room, and no leader line runs through one."""

import pytest
from matplotlib.text import Text

from orchestra_jax.evaluation.against_cost import accuracy_cost


def figures(accuracy: float, cost: float) -> dict:
    return {"accuracy": accuracy, "cost": cost}


ONE = (
    (0.361, 0.0637),
    (0.959, 0.0775),
    (0.955, 0.0781),
    (0.969, 0.0887),
    (0.945, 0.0627),
    (0.914, 0.0915),
    (0.875, 0.093),
)
TWO = (
    (0.434, 0.0651),
    (0.943, 0.0779),
    (0.961, 0.0785),
    (0.992, 0.088),
    (0.938, 0.0629),
    (0.906, 0.0914),
    (0.883, 0.093),
)


@pytest.mark.parametrize(("run", "crowd"), [(ONE, 1.0), (TWO, 1.0), (ONE, 0.02)])  # of seed 0, 2026-11-28
def test_labels_of_the_quickstarts_picture_are_read_one_by_one(run, crowd):
    """Points that lie on top of each other (`crowd`) keep readable labels."""

    def near(*point: float) -> dict:
        return figures(*(to + crowd * (own - to) for own, to in zip(point, run[1], strict=True)))

    before, after, greedy, *wishes = (near(*point) for point in run)
    summary = {
        "before": before,
        "after": {**after, "greedy": greedy},
        "preference_swap": {"after": dict(zip(("accuracy", "cost", "fast", "local"), wishes, strict=True))},
        "baselines": {
            "random_tool": near(0.311, 0.0711),
            "strongest_expert": near(0.225, 0.0505),
            "cheapest_sufficient": near(0.953, 0.0552),
            "preference_oracle": near(0.965, 0.0774),
            "do_nothing": near(0.0, 0.0),
        },
    }
    labels, lines = placed(summary)
    assert len(labels) == 12
    assert lines


def test_in_a_crowd_a_script_that_another_one_outdoes_has_no_name():
    crowd = {f"expert/model-{n}-of-a-maker": figures(0.8 + 0.01 * n, 1e-3 * 1.1**n) for n in range(14)}
    scripts = {
        "oracle": figures(0.99, 1.7e-4),  # outdoes none: no policy can know what it knows
        "code_cheap": figures(0.9, 1.35e-4),
        "cascade": figures(0.91, 1.1e-3),
        "router_code": figures(0.9, 9e-4),
        "best": figures(0.91, 2.8e-3),
        "again": figures(0.91, 1.1e-3),
    }
    labels, _ = placed({"after": figures(0.9, 6e-4), "before": figures(0.89, 7e-4), "baselines": crowd | scripts})
    assert labels.count("after training") == 1
    named = {"again", "cascade", "code cheap", "oracle"}
    assert {label for label in labels if "model-" not in label} == named | {"after training", "before training"}
    assert sum("model-" in label for label in labels) == 14


def placed(summary: dict) -> tuple[list[str], int]:
    """The labels of a picture, none of which touches another one or is crossed by a line, and the number of lines."""
    picture = accuracy_cost(summary)
    picture.draw_without_rendering()
    labels = {text: Text.get_window_extent(text) for text in picture.axes[0].texts if text.get_text()}
    lines, inside = 0, picture.axes[0].get_window_extent()
    for text, own in labels.items():
        assert inside.x0 <= own.x0 < own.x1 <= inside.x1
        assert inside.y0 <= own.y0 < own.y1 <= inside.y1
        others = [box for other, box in labels.items() if other is not text]
        assert not own.padded(5 * picture.dpi / 72, 0).count_overlaps(others), text.get_text()
        if text.arrow_patch.get_visible():
            lines += 1
            line = text.arrow_patch.get_transform().transform_path(text.arrow_patch.get_path())
            assert not any(line.intersects_bbox(box, filled=False) for box in others), text.get_text()
    return [text.get_text() for text in labels], lines
