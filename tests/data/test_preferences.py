"""Our own preferences: vectors in range that fit the menu, wordings of the two splits apart."""

from collections.abc import Sequence

import numpy as np
import pytest

from orchestra_jax.data.preference_pairs import OWN, preference_of
from orchestra_jax.data.preferences import WORDINGS, make_preference, makers
from orchestra_jax.types import CODE, FREE, MADE_BY, OPEN_WEIGHTS, PAID, SEARCH, Preference, ToolSpec

SCHEMA = {"type": "object"}
MENU = (
    ToolSpec("python", "d", SCHEMA, price_usd=0.0, local=True),
    ToolSpec("notes", "d", SCHEMA, local=True),
    ToolSpec("free_web", "d", SCHEMA, price_usd=0.0),
    ToolSpec("web", "d", SCHEMA, price_usd=0.01),
    ToolSpec("model", "d", SCHEMA),  # priced per token
)
KINDS = (
    ToolSpec("python", "d", SCHEMA, local=True, traits=(CODE, PAID)),
    ToolSpec("local_search", "d", SCHEMA, local=True, traits=(SEARCH, FREE)),
    ToolSpec("expert-1", "d", SCHEMA, local=True, traits=(f"{MADE_BY}Meta", OPEN_WEIGHTS, PAID)),
    ToolSpec("expert-2", "d", SCHEMA, traits=(f"{MADE_BY}Meta", OPEN_WEIGHTS, CODE, PAID)),
    ToolSpec("expert-3", "d", SCHEMA, traits=(f"{MADE_BY}OpenAI", SEARCH, PAID)),
)


def followed(tools: Sequence[ToolSpec]) -> list[str]:
    return [pairs[0].name for pairs, _ in OWN.fitting(tools, "train")]


def test_vectors():
    vectors = {}
    for name in WORDINGS.keys() - {"maker"}:
        preference = make_preference(name, MENU, "words")
        vectors[name] = (sorted(preference.tools), preference.outcome, preference.compute, preference.latency)
        assert (preference.name, preference.instruction) == (name, "words")
    assert vectors == {
        "accuracy": ([], 1.0, 0.0, 0.0),
        "low_cost": ([], 1.0, 1.0, 0.0),
        "fast": ([], 1.0, 0.0, 1.0),
        "local": (["notes", "python"], 1.0, 0.0, 0.0),
        "free": (["free_web", "notes", "python"], 1.0, 1.0, 0.0),
        **{name: ([], 1.0, 0.0, 0.0) for name in ("open", "search", "code")},
    }
    with pytest.raises(ValueError, match="no kind of tools 'x'"):
        make_preference("x", MENU, "words")


def test_local_and_free_need_a_choice():
    assert followed(MENU) == ["accuracy", "low_cost", "fast", "local", "free"]
    for menu in (MENU[:2], MENU[3:], ()):
        assert followed(menu) == ["accuracy", "low_cost", "fast"]
    assert followed((MENU[2], MENU[3])) == ["accuracy", "low_cost", "fast", "free"]


def test_preferences_among_models():
    assert followed(KINDS) == ["accuracy", "low_cost", "fast", "local", "free", "open", "search", "code", "maker"]
    assert makers(KINDS) == ["Meta", "OpenAI"]
    assert makers(KINDS[2:4]) == []
    preferred = {pairs[0].name: set(pairs[0].weights(KINDS, who[0])) for pairs, who in OWN.fitting(KINDS, "train")[3:]}
    assert preferred == {
        "local": {"python", "local_search", "expert-1"},
        "free": {"local_search"},
        "open": {"expert-1", "expert-2"},
        "search": {"local_search", "expert-3"},
        "code": {"python", "expert-2"},
        "maker": {"expert-1", "expert-2"},
    }
    assert followed(KINDS[:1]) == ["accuracy", "low_cost", "fast"]


def test_a_preference_for_a_maker_names_it():
    drawn = [OWN.draw(KINDS, np.random.default_rng(seed)) for seed in range(200)]
    by_maker = [preference for preference in drawn if preference.name == "maker"]
    assert {tuple(preference.tools) for preference in by_maker} == {("expert-1", "expert-2"), ("expert-3",)}
    for preference in by_maker:
        assert ("Meta" if "expert-1" in preference.tools else "OpenAI") in preference.instruction


def test_splits_share_no_wording():
    train, evaluation = ([text for kind in WORDINGS.values() for text in kind[split]] for split in ("train", "eval"))
    assert not set(train) & set(evaluation)
    assert len(set(train + evaluation)) == len(train + evaluation)
    assert all(text.endswith(".") for text in train + evaluation)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_sampling_reaches_every_wording_of_its_split_only(split: str):
    rng = np.random.default_rng(0)
    drawn = {OWN.draw(MENU, rng, split).instruction for _ in range(500)}
    assert drawn == {text for name in followed(MENU) for text in WORDINGS[name][split]}
    drawn = {OWN.draw(KINDS, rng, split).instruction for _ in range(1500)}
    assert drawn == {text.format(maker=who) for k in WORDINGS.values() for text in k[split] for who in makers(KINDS)}
    first, second = (OWN.draw(MENU, np.random.default_rng(1), split) for _ in range(2))
    assert first == second


def test_what_was_drawn_is_understood_by_its_words_alone():
    for split in ("train", "eval"):
        for seed in range(200):
            drawn = OWN.draw(KINDS, np.random.default_rng(seed), split)
            assert preference_of(drawn.instruction, KINDS) == drawn
    for words in ("", "Take the blue one.", WORDINGS["maker"]["train"][0].format(maker="Nobody")):
        assert preference_of(words, KINDS) == Preference("accuracy", words)
