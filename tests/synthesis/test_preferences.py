"""Preferences by models, end to end: proposed, read by another, sifted, loaded by data.preferences_file; resumed."""

import hashlib
import json
import re

import numpy as np
import pytest

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.data.preference_pairs import drawn_from
from orchestra_jax.data.preferences import MAKER, WORDINGS
from orchestra_jax.io.shipped import CONF
from orchestra_jax.money import price_files
from orchestra_jax.money.run_budget import Halted
from orchestra_jax.synthesis.near import Seen
from orchestra_jax.synthesis.wordings import FEATURES, TARGETS, WordingRequest, _flaw, menu
from tests.data.test_preferences import KINDS
from tests.synthesis.server import asked, configured, serving, synthesised

REQUESTS = 2 * len(TARGETS)
OPENINGS = ("Hear me out", "One more thing", "By the way")


def proposal(body):
    """Answer as the scripted writer or the scripted reader; features are named by their own words."""
    text = asked(body)
    if "The user's words: " in text:
        words = text.partition("The user's words: ")[2]
        wants = [name for name in FEATURES if f"<{name}>" in words]
        return json.dumps({"wants": wants if "misread" not in words else ["search", "plain"]})
    target = re.findall(r"(\w+) \(", text.partition("about this alone: ")[2].partition(". Weigh only")[0])
    who = re.findall(r"Who speaks: (.*?); how: (.*)\.", text)[0]
    named = " ".join(f"<{name}>" for name in target) + (" {maker}" if MAKER in target else "")
    own = {opening: hashlib.sha256(f"{opening} {text}".encode()).digest()[:8] for opening in OPENINGS}
    lines = [f"{opening}, says {who[0]}: {named} {' '.join(f'w{n}' for n in own[opening])}" for opening in OPENINGS]
    if target == ["open"]:
        lines[1] = f"misread {lines[1]}"
    if target == ["fast"]:
        lines[1] = f"{lines[2]}!"  # repeats the one for evaluation
    value = {"weights": dict.fromkeys(target, 1.0), "instructions": lines}
    if target == ["local"] and len(body["messages"]) == 2:
        return "I would rather talk about something else."
    if target == ["code"]:
        return f"<think>well</think>```json\n{json.dumps(value)}\n```"
    if target == ["plain"]:
        value["weights"] = {"fast": 1.0}  # never what was asked for
    return json.dumps(value)


def preferences(folder, url, *more):
    return configured(folder, url, "synthesis.make=preferences", f"synthesis.preferences={REQUESTS}", *more)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a synthesis, and how many requests were billed for it."""
    folder = tmp_path_factory.mktemp("preferences") / "run"
    with serving(proposal) as stub:
        synthesised(preferences(folder, stub.url))
        return folder, stub.bodies


def test_the_file_serves_menus(made):
    folder, bodies = made
    rows = [json.loads(line) for line in (folder / "preferences.jsonl").read_text().splitlines()]
    names = {row["name"] for row in rows}
    assert {"accuracy", "low_cost", "fast", "local", "free", "maker", "models", "closed", "local+low_cost"} <= names
    assert "plain" not in names
    by_split = {split: [row["instruction"] for row in rows if row["split"] == split] for split in ("train", "eval")}
    assert len(by_split["eval"]) == REQUESTS - 2
    assert all(text.startswith(OPENINGS[2]) for text in by_split["eval"])
    assert not any(text.startswith(OPENINGS[2]) for text in by_split["train"])
    draw = drawn_from(str(folder / "preferences.jsonl"))
    drawn = {draw(KINDS, np.random.default_rng(seed), "train").name for seed in range(300)}
    assert {"open", "maker", "closed", "low_cost+maker", "accuracy"} <= drawn
    assert all(body["response_format"]["type"] == "json_schema" for body in bodies)


def test_the_card_counts_what_was_rejected(made):
    folder, bodies = made
    card = json.loads((folder / "card.json").read_text())
    proposals, readings, pairs = card["stages"]
    assert (proposals["kept"], proposals["reasons"]) == (3 * (REQUESTS - 2), {"no fitting reply": 2})
    assert proposals["unfit_replies"] == 2 * 3 + 2  # "plain" never fits, "local" on the second try
    assert readings["reasons"] == {"words and P differ": 2}
    assert "is read as" in readings["examples"]["words and P differ"][0]
    assert pairs["reasons"] == {"near-duplicate": 2}
    assert card["calls"] == len(bodies)
    assert card["usd"] > 0
    page = (folder / "README.md").read_text()
    assert "| readings |" in page
    assert "near-duplicate 2" in page


def test_again_asks_nobody_and_writes_the_same(made):
    folder, _ = made
    before = {file.name: file.read_bytes() for file in folder.glob("*.json*")}
    for file in (folder / "stages").glob("02*"):
        file.unlink()  # as if it had been interrupted there: the record answers
    synthesised(preferences(folder, None, "replay.mode=replay"))
    assert {file.name: file.read_bytes() for file in folder.glob("*.json*")} == before


def test_a_budget_ends_it_and_the_same_command_goes_on(made, tmp_path):
    whole, bodies = made
    with serving(proposal) as stub:
        with pytest.raises(Halted, match="The same command goes on"):
            synthesised(preferences(tmp_path, stub.url, "budget.run_calls=30"))
        assert 0 < len(stub.bodies) <= 30
        synthesised(preferences(tmp_path, stub.url))
        assert len(stub.bodies) == len(bodies)  # nothing twice
    assert (tmp_path / "preferences.jsonl").read_bytes() == (whole / "preferences.jsonl").read_bytes()


def test_what_cannot_be_used_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"replay\.mode=off"):
        synthesised(preferences(tmp_path, "http://127.0.0.1:9/v1", "replay.mode=off"))
    with pytest.raises(ConfigError, match=r"synthesis\.domain=A/B"):
        synthesised(preferences(tmp_path, "http://127.0.0.1:9/v1", "synthesis.domain=A/B"))
    with pytest.raises(ConfigError, match="no server"):
        synthesised(preferences(tmp_path, None))
    with pytest.raises(ConfigError, match="gpt-9"):
        synthesised(preferences(tmp_path, "http://127.0.0.1:9/v1", "synthesis.models.writer=gpt-9"))


@pytest.mark.parametrize("name", ["web_search", "Local_search", "python", "expert-1"])
def test_a_wording_names_no_tool(name):
    tools = menu(price_files.load(CONF / "pricing" / "paper.yaml"), np.random.default_rng(0))
    request = WordingRequest(0, ("fast",), tools)
    for words, flaw in (
        (f"ask {name}, and be quick", "an instruction names a price or a tool"),
        ("be quick, ok", None),
    ):
        assert _flaw({"weights": {"fast": 1.0}, "instructions": [words]}, request) == flaw


def test_near_duplicates():
    seen = Seen(0.6)
    assert seen.add("Please keep the cost of this as low as you can.") is None
    assert seen.add("please, keep the COST of this as low as you can!") is not None
    assert seen.add("Please keep the cost of this as low as you possibly can.") is not None
    assert seen.add("Please keep the time of this as short as you can.") is None
    assert seen.add("Café") is None
    assert seen.add("cafe") == "Café"


def test_the_wordings_that_come_with_us_repeat_nothing():
    seen = Seen(0.4)
    texts = [text for kind in WORDINGS.values() for split in ("eval", "train") for text in kind[split]]
    assert {text: earlier for text in texts if (earlier := seen.add(text))} == {}
    assert all(len(kind["train"]) == 8 and len(kind["eval"]) == 4 for kind in WORDINGS.values())
