"""Answers found in replies."""

import pytest

from orchestra_jax.tools.answers import extract_answer, marked_answer, without_thinking


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (r"\boxed{4}", "4"),
        (r"first \boxed{1}, then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\text{a } \{b\}} and no more", r"\text{a } \{b\}"),
        (r"First \boxed{1}. So \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2", "1"),
        ("Thus <answer> Oslo </answer> holds.", "Oslo"),
        (r"<answer>no</answer> but \boxed{yes}", "yes"),
        (r"\boxed{3} and an open \boxed{4", "3"),
        ("<answer>x</answer> then <answer> y\nz </answer>", "y\nz"),
        (r"<answer>tag</answer> \boxed{box}", "box"),
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
