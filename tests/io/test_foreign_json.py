"""The one decoder of foreign JSON: every input gives a value within the limits or `Unreadable`."""

import contextlib
import json
import math
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestra_jax.io.fields import count_of, text_of
from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.untrusted import MOST_LEVELS, Unreadable, valid_text

CHEAP = settings(max_examples=150, derandomize=True, deadline=None, database=None)
HALVES = "\ud83d", "\ude00"  # of one emoji
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
ANY_TEXT = st.text(st.characters(exclude_categories=()))  # with surrogates


def walk(value: Any, level: int = 0) -> int:
    """The levels of a value that is sound in every part."""
    if isinstance(value, str):
        value.encode()
    if isinstance(value, int | float):
        assert math.isfinite(value)
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((walk(one, level + 1) for one in inner), default=level)


@CHEAP
@given(VALUES, st.booleans())
def test_sound_json_is_read_as_it_is(value, ascii_only):
    assert read_json(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@CHEAP
@given(st.binary(max_size=200) | st.text(alphabet='[]{}",:\\u0123456789eE+-.dDnulNaI \n').map(str.encode))
@example(b'{"a":' * 50_000)
@example(b"[" * 100_000 + b"]" * 100_000)
@example(b"-" + b"9" * 400)
@example(b"1e999")
@example(b'"\xed\xa0\xbd"')
def test_any_bytes_are_sound_or_refused(content):
    said = "sound"
    try:
        assert walk(read_json(content)) <= MOST_LEVELS
    except Unreadable as refused:
        said = str(refused)
    assert 0 < len(said) < 200


@CHEAP
@given(ANY_TEXT)
@example("".join(HALVES) + HALVES[0])
def test_texts_become_valid_and_valid_ones_stay(text):
    found = valid_text(text)
    assert valid_text(found) == found
    assert read_json(json.dumps({text: [text]}).encode()) == {found: [found]}
    assert "\ud83d" not in found
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert found == text


@CHEAP
@given(VALUES | st.floats() | st.integers() | ANY_TEXT, st.integers(0, 10**9))
def test_texts_and_counts_are_what_they_say(value, most):
    for read, kind in ((text_of, str), (lambda some: count_of(some, most), int)):
        with contextlib.suppress(Unreadable):
            assert type(read(value)) is kind


def test_limits():
    assert read_json(b"[" * MOST_LEVELS + b"]" * MOST_LEVELS)
    assert read_json(b'["' + b"[" * 1000 + b'\\""]') == ["[" * 1000 + '"']  # brackets of a text are no levels
    for content in (b"[" * (MOST_LEVELS + 1) + b"]" * (MOST_LEVELS + 1), b"NaN", b"[Infinity]", b"-1e400", b"9" * 21):
        with pytest.raises(Unreadable):
            read_json(content)
    with pytest.raises(Unreadable, match="more than 3 bytes"):
        read_json(b"[12]", most_bytes=3)
    assert read_json(b'\xef\xbb\xbf{"a": "caf\xc3"}') == {"a": "caf\ufffd"}
    assert (count_of(None, 9), count_of(3.0, 9), text_of(None)) == (0, 3, "")
    for nonsense in (-1, 10, 2.5, True, "3", 1e308, math.nan, math.inf, [1]):
        with pytest.raises(Unreadable):
            count_of(nonsense, 9)


@pytest.mark.parametrize("part", [b"[", b'"', b'"\\"', b"[]", b'{"a":', b"[" * 65 + b"]" * 65, b"\\ud83d"])
def test_time_is_linear(part):
    start = time.process_time()
    with pytest.raises(Unreadable):
        read_json(b"[" + part * ((1 << 20) // len(part)))
    assert time.process_time() - start < 5.0  # some 0.05; a square of the length would take minutes
