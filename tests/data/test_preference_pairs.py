"""Preferences from a file: P by kinds of tools for any menu, the splits apart, broken lines told."""

import json

import numpy as np
import pytest

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.data.preference_pairs import OWN, Pairs, drawn_from
from orchestra_jax.data.preferences import Pair
from tests.data.test_preferences import KINDS, MENU

ROWS = [
    {"split": split, "instruction": f"{words} ({split}).", **weights}
    for split in ("train", "eval")
    for words, weights in (
        ("Right is what counts", {}),
        ("Open and cheap", {"prefers": {"open": 0.5, "search": 0}, "compute": 1.0}),
        ("What {maker} made, quickly", {"prefers": {"maker": 1.0}, "latency": 0.5}),
        ("Closed ones", {"prefers": {"closed": 1.0}}),
        ("Plain tools", {"prefers": {"plain": 0.25}}),
    )
]


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_wording_of_its_split_that_the_menu_can_follow(tmp_path):
    draw = drawn_from(str(written(tmp_path / "pairs.jsonl", ROWS)))
    drawn = [draw(KINDS, np.random.default_rng(seed), "eval") for seed in range(200)]
    found = {preference.instruction: preference for preference in drawn}
    assert {(p.name, tuple(p.tools.items()), p.compute, p.latency, p.outcome) for p in drawn} == {
        ("accuracy", (), 0.0, 0.0, 1.0),
        ("low_cost+open", (("expert-1", 0.5), ("expert-2", 0.5)), 1.0, 0.0, 1.0),
        ("fast+maker", (("expert-1", 1.0), ("expert-2", 1.0)), 0.0, 0.5, 1.0),
        ("fast+maker", (("expert-3", 1.0),), 0.0, 0.5, 1.0),
        ("closed", (("expert-3", 1.0),), 0.0, 0.0, 1.0),
        ("plain", (("python", 0.25), ("local_search", 0.25)), 0.0, 0.0, 1.0),
    }
    assert "expert-1" in found["What Meta made, quickly (eval)."].tools
    assert "expert-3" in found["What OpenAI made, quickly (eval)."].tools
    # No model is known here, so none of the preferences among models can be followed.
    assert {draw(MENU, np.random.default_rng(seed), "train").name for seed in range(20)} == {"accuracy"}
    first, second = (draw(KINDS, np.random.default_rng(3), "train") for _ in range(2))
    assert first == second
    with pytest.raises(ValueError, match="'train' and 'eval'"):
        draw(KINDS, np.random.default_rng(0), "test")


def test_what_was_drawn_is_understood_by_its_words_alone(tmp_path):
    pairs = Pairs.load(written(tmp_path / "pairs.jsonl", ROWS))
    for seed in range(100):
        drawn = pairs.draw(KINDS, np.random.default_rng(seed), "eval")
        assert pairs.said(drawn.instruction, KINDS) == drawn
    assert pairs.said("What Nobody made, quickly (eval).", KINDS) is None
    assert pairs.said("", KINDS) is None


def test_a_kind_that_all_tools_are_of_is_no_choice():
    pair = Pair("Local ones.", "train", {"local": 1.0})
    assert pair.fits(KINDS)
    assert not pair.fits(MENU[:2])
    assert not Pair("Both.", "train", {"closed": 1.0, "open": 1.0}).fits(KINDS[2:])


def test_none_is_what_comes_with_us():
    assert drawn_from(None) == OWN.draw


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"split": "train"}, "an instruction"),
        ({"split": "train", "instruction": " "}, "an instruction"),
        ({"split": "train", "instruction": "a", "prefers": {"cheap": 1}}, "no kind of tools 'cheap'"),
        ({"split": "train", "instruction": "a", "compute": 2}, r"\[0, 1\]"),
        ({"split": "train", "instruction": "a", "prefers": {"open": True}}, r"\[0, 1\]"),
        ({"split": "test", "instruction": "a"}, "neither train nor eval"),
        ({"instruction": "a"}, "neither train nor eval"),
        ({"split": "train", "instruction": "a", "latencies": 0.6}, "'latencies' means nothing; write latency"),
        ({"split": "train", "instruction": "by {maker}"}, "exactly where"),
        ({"split": "train", "instruction": "a", "prefers": {"maker": 1}}, "exactly where"),
        ([], "no preference"),
    ],
)
def test_a_broken_line_is_told(tmp_path, row, said):
    path = written(tmp_path / "pairs.jsonl", [*ROWS[:2], row])
    with pytest.raises(ConfigError, match=f"line 3 .*{said}|line 3 is {said}"):
        drawn_from(str(path))


def test_a_file_needs_both_splits_and_something_for_the_menu(tmp_path):
    with pytest.raises(ConfigError, match="split 'eval'"):
        drawn_from(str(written(tmp_path / "a.jsonl", ROWS[:5])))
    with pytest.raises(ConfigError, match="No preferences at"):
        drawn_from(str(tmp_path / "none.jsonl"))
    with pytest.raises(ValueError, match="accuracy alone"):
        Pairs([Pair("Open.", "train", {"open": 1.0})]).draw(MENU, np.random.default_rng(0))
