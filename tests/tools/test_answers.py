"""Answers found in replies, and what counts as equal."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra_jax.tools.answers import (
    extract_answer,
    marked_answer,
    matches,
    normalize,
    parse_number,
    tagged,
    without_thinking,
)
from orchestra_jax.tools.experts.roles import python_block


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (r"\boxed{4}", "4"),
        (r"\boxed{\text{a } \{b\}} and no more", r"\text{a } \{b\}"),
        (r"First \boxed{1}. So \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2", "1"),
        ("Thus <answer> Oslo </answer> holds.", "Oslo"),
        (r"<answer>no</answer> but \boxed{yes}", "yes"),
        ("<answer>x</answer> then <answer> y\nz </answer>", "y\nz"),
        ("16 - 7 = 9\n#### 18\nDone.", "18"),
        ("It is far.\n\nThe final answer is: Oslo.\n", "Oslo."),
        ("Answer: 42", "42"),
        ("Oslo", "Oslo"),
        (r"<think>maybe \boxed{3}</think>Four", "Four"),
        ("answers vary", "answers vary"),
        ("", ""),
        ("<think>nothing</think>", ""),
    ],
)
def test_extract_answer(reply: str, answer: str):
    assert extract_answer(reply) == answer


@pytest.mark.parametrize(
    ("reply", "answer"), [(r"a \boxed{ 1 }", "1"), ("<answer>2</answer>", "2"), ("#### 3", None), (r"\boxed{4", None)]
)
def test_marked_answer(reply: str, answer: str | None):
    assert marked_answer(reply) == answer


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>a</think> b <think>c</think>d", "b d"),
        ("reasons without their first tag</think>\n\nfour", "four"),
        ("<think>never ends", ""),
        ("plain", "plain"),
    ],
)
def test_without_thinking(text: str, left: str):
    assert without_thinking(text) == left


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("1,234", "1234"),
        ("$18", "18"),
        ("18.00", "18"),
        ("-$5", "-5"),
        ("\u22125", "-5"),
        ("50%", "50"),
        (r"$18$", "18"),
        (r"\$18", "18"),
        ("1e3", "1000"),
        (".5", "0.5"),
        ("18.", "18"),
        ("**18**", "18"),
        ("The Beatles!", "beatles"),
        ("New  York\nCity", "new york city"),
        ("A", "a"),
        ("(B)", "B."),
        ("in 1,234 days", "In 1234 days"),
        ("Zürich", "zürich"),
        ("東京", "東京"),
        (" ....-", "....- "),
    ],
)
def test_equal(answer: str, reference: str):
    assert matches(answer, ["something else", reference])
    assert matches(reference, [answer])


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("1.5", "15"),
        ("3.5 million", "35 million"),
        ("1/2", "12"),
        ("3:45", "345"),
        ("-5", "5"),
        ("-5 degrees", "5 degrees"),
        ("1990-1995", "19901995"),
        ("1,2", "12"),
        ("A", "The"),
        ("", ""),
        ("?", "!"),
        ("18 or 19", "18"),
        ("1e999", "1e998"),
    ],
)
def test_not_equal(answer: str, reference: str):
    assert not matches(answer, [reference])
    assert not matches(reference, [answer])


def test_no_reference_matches_nothing():
    assert not matches("x", [])


@given(st.integers(-(10**12), 10**12), st.sampled_from(["{:,}", "${:,}", "{}", "{}.0", " {} ", "{}%", "{}."]))
def test_numbers_in_every_dress(number: int, dress: str):
    assert parse_number(dress.format(number)) == number


@given(st.text(max_size=40))
def test_scoring_never_raises_and_is_reflexive(text: str):
    parse_number(text)
    assert normalize(normalize(text)) == normalize(normalize(normalize(text)))
    assert matches(text, [text]) == bool(text.strip())
    matches(extract_answer(text), [text])


@pytest.mark.parametrize(
    "part", ["<think>", "</think>", "<answer>", "\\boxed{", "\\boxed{}", "{", "}", "####", "a\n", "1,", "```", "```a"]
)
def test_no_reply_takes_more_than_linear_time(part):
    reply = part * (400_000 // len(part))
    start = time.process_time()
    for read in (extract_answer, marked_answer, without_thinking, normalize, parse_number, python_block):
        read(reply)
    tagged(reply, "answer")
    assert time.process_time() - start < 20.0  # some 0.5; a square of the length takes many minutes
