"""What a table of recorded answers allows, by hand on a small one, and as the README of the data tells it."""

import os
from pathlib import Path

import pytest

from benchmarks.figures import best_per_family, by_family, figures
from orchestra_jax.envs.recorded.readers import read_recording
from orchestra_jax.money import price_files
from orchestra_jax.money.price_files import PRICES
from orchestra_jax.money.prices import Price, PriceList
from tests.envs.recorded.made import CHEAP, MODELS, STRONG, made_rows, write

DATA = Path(os.environ.get("ORCHESTRA_DATA", "nowhere")) / "recorded" / "zeroeval"


def test_figures_by_hand(tmp_path: Path):
    rows = [row for row in made_rows() if row["id"] in ("q1", "q4")]
    found = read_recording(write(tmp_path / "t.jsonl", rows))
    prices = PriceList(
        "p", "2026", "", {model: Price(call=cents) for model, cents in zip(MODELS, (8, 4, 2, 1), strict=True)}
    )
    table = figures(found, prices)
    # q1: nobody is right; q4: the first and the third.
    assert [table[f"expert/{model}"].accuracy for model in MODELS] == [0.5, 0.0, 0.5, 0.0]
    assert (table["oracle"].accuracy, table["oracle"].cents) == (0.5, 150.0)
    assert (table["random"].accuracy, table["random"].cents) == (0.25, 375.0)
    hand = by_family(found, prices, {"sum": CHEAP}, executed=0.97, family="code")
    assert (hand.accuracy, hand.cents) == (0.485, 200.0)


@pytest.mark.skipif(not DATA.is_dir(), reason="needs ORCHESTRA_DATA")
def test_the_figures_of_the_data_come_out_of_our_reader():
    whole, prices = read_recording(DATA), price_files.load(PRICES / "recorded.yaml")
    table = figures(whole, prices)
    mini = "gpt-4o-mini-2024-07-18"
    told = {
        "best": (84.1, 0.282), "expert/gpt-4o-2024-08-06": (83.1, 0.287), f"expert/{mini}": (78.9, 0.018),
        "expert/gemini-1.5-flash": (69.3, 0.006), "best_per_family": (84.7, 0.282), "oracle": (95.9, 0.022),
    }  # fmt: skip
    # Tokens are whole here, and the README's figures have three digits.
    shown = {name: (round(100 * table[name].accuracy, 1), table[name].cents) for name in told}
    assert shown == {name: (accuracy, pytest.approx(cents, abs=6e-4)) for name, (accuracy, cents) in told.items()}
    assert table["random"].accuracy == pytest.approx(0.675, abs=5e-4)
    assert best_per_family(whole, prices).keys() == {"gsm", "math-l5", "crux"}
    hand = {"gsm": mini, "math-l5": mini}
    for chosen, accuracy, cents in ((hand, 84.4, 0.013), ({**hand, "math-l5": STRONG}, 86.3, 0.106)):
        found = by_family(whole, prices, chosen, executed=0.97, family="crux")
        assert (100 * found.accuracy, found.cents) == (
            pytest.approx(accuracy, abs=0.06),
            pytest.approx(cents, abs=6e-4),
        )
