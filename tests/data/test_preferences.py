"""Preferences: vectors in range that fit the menu, wordings of the two splits apart."""

import numpy as np
import pytest

from orchestra_jax.data.preferences import WORDINGS, applicable, make_preference, sample_preference
from orchestra_jax.types import ToolSpec

SCHEMA = {"type": "object"}
MENU = (
    ToolSpec("python", "d", SCHEMA, price_usd=0.0, local=True),
    ToolSpec("notes", "d", SCHEMA, local=True),
    ToolSpec("free_web", "d", SCHEMA, price_usd=0.0),
    ToolSpec("web", "d", SCHEMA, price_usd=0.01),
    ToolSpec("model", "d", SCHEMA),  # priced per token
)


def test_vectors():
    vectors = {}
    for name in WORDINGS:
        preference = make_preference(name, MENU, "words")
        vectors[name] = (sorted(preference.tools), preference.outcome, preference.compute, preference.latency)
        assert (preference.name, preference.instruction) == (name, "words")
    assert vectors == {
        "accuracy": ([], 1.0, 0.0, 0.0),
        "low_cost": ([], 1.0, 1.0, 0.0),
        "fast": ([], 1.0, 0.0, 1.0),
        "local": (["notes", "python"], 1.0, 0.0, 0.0),
        "free": (["free_web", "notes", "python"], 1.0, 1.0, 0.0),
    }
    with pytest.raises(ValueError, match="Unknown preference 'x'"):
        make_preference("x", MENU, "words")


def test_local_and_free_need_a_choice():
    assert applicable(MENU) == ("accuracy", "low_cost", "fast", "local", "free")
    for menu in (MENU[:2], MENU[3:], ()):
        assert applicable(menu) == ("accuracy", "low_cost", "fast")
    assert applicable((MENU[2], MENU[3])) == ("accuracy", "low_cost", "fast", "free")


def test_splits_share_no_wording():
    train, evaluation = ([text for kind in WORDINGS.values() for text in kind[split]] for split in ("train", "eval"))
    assert not set(train) & set(evaluation)
    assert len(set(train + evaluation)) == len(train + evaluation)
    assert all(text.endswith(".") for text in train + evaluation)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_sampling_reaches_every_wording_of_its_split_only(split: str):
    rng = np.random.default_rng(0)
    drawn = {sample_preference(MENU, rng, split).instruction for _ in range(500)}
    assert drawn == {text for kind in WORDINGS.values() for text in kind[split]}
    first, second = (sample_preference(MENU, np.random.default_rng(1), split) for _ in range(2))
    assert first == second


def test_unknown_split():
    with pytest.raises(ValueError, match="'train' and 'eval'"):
        sample_preference(MENU, np.random.default_rng(0), "test")
