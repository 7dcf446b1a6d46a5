"""Menus: subsets within their constraints, from the generator alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra_jax.tools.menu import sample_menu
from orchestra_jax.types import ToolSpec

CATALOGUE = tuple(ToolSpec(f"t{i}", f"Tool {i}.", {"type": "object"}) for i in range(6))
NAMES = {spec.name for spec in CATALOGUE}


@given(st.integers(0, 2**32 - 1), st.sets(st.sampled_from(sorted(NAMES))), st.integers(0, 6), st.integers(0, 6))
def test_every_menu_meets_its_constraints(seed: int, required: set[str], a: int, b: int):
    fewest, most = min(a, b), max(a, b, len(required))
    menus = [
        sample_menu(CATALOGUE, np.random.default_rng(seed), must_include=required, size_range=(fewest, most))
        for _ in range(2)
    ]
    assert menus[0] == menus[1]
    names = [spec.name for spec in menus[0]]
    assert len(set(names)) == len(names)
    assert required <= set(names) <= NAMES
    assert fewest <= len(names) <= most


def test_all_tools_sizes_and_positions_occur():
    rng = np.random.default_rng(0)
    menus = [sample_menu(CATALOGUE, rng, must_include=["t0"], size_range=(2, 4)) for _ in range(400)]
    assert {len(menu) for menu in menus} == {2, 3, 4}
    assert {spec.name for menu in menus for spec in menu} == NAMES
    assert {menu.index(CATALOGUE[0]) for menu in menus} == {0, 1, 2, 3}
    assert len(sample_menu(CATALOGUE, rng)) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"must_include": ["x"]}, "'x' must be on the menu"),
        ({"size_range": (1, 7)}, "cannot be met"),
        ({"size_range": (3, 2)}, "cannot be met"),
        ({"must_include": ["t0", "t1"], "size_range": (1, 1)}, "cannot be met"),
    ],
)
def test_impossible_menus(options: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        sample_menu(CATALOGUE, np.random.default_rng(0), **options)  # type: ignore[arg-type]
