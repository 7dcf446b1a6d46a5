"""The bank's search by patterns of the policy's: as `re`, and no pattern hangs a run."""

import re

import pytest

from orchestra_jax.envs.tau2 import patterns
from orchestra_jax.envs.tau2.patterns import TOO_LONG, Patterns

TEXT = "Close a credit card. Closing fees: 12 dollars, 7 cents [see A-1]."


@pytest.mark.parametrize("pattern", ["close.*card", "fee|DOLLARS", r"\d+ (dollars|cents)", r"\[see", "clos(e|ing)"])
def test_a_search_finds_what_re_finds(pattern):
    assert Patterns.compile(pattern, Patterns.IGNORECASE).findall(TEXT) == re.findall(pattern, TEXT, re.IGNORECASE)


def test_a_pattern_that_is_none_is_told_as_re_tells_it():
    with pytest.raises(Patterns.error):
        Patterns.compile("(", Patterns.IGNORECASE)


def test_a_pattern_that_would_take_forever_is_an_error(monkeypatch):
    monkeypatch.setattr(patterns, "MOST_S", 0.0)
    with pytest.raises(TimeoutError, match=TOO_LONG):
        Patterns.compile("(x|x)+y(?!y)|(x+x+)+z").findall("x" * 5000)
