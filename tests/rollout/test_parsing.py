"""Every tool call and answer under the written policy: whole, and from beginnings that contradict nothing."""

import json
import math
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestra_jax.rollout import chat
from orchestra_jax.rollout.parsing import ParseError, final_answer, parse_tool_calls
from orchestra_jax.types import ToolCall

CALL = '<tool_call>\n{"name": "python", "arguments": {"code": "37 * 4"}}\n</tool_call>'
THOUGHT = "<think>\nLet me see.\n</think>\n\n"


def one(name, **arguments):
    return [ToolCall(name, arguments)]


def wrap(body):
    return f"<tool_call>\n{body}\n</tool_call>"


ACCEPTED = [
    ("", []),
    ("The answer is 148.", []),
    ('{"name": "python", "arguments": {}}', []),
    ("tool_call> is how a call ends", []),
    (CALL, one("python", code="37 * 4")),
    ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', one("f")),
    ('<tool_call> \r\n\t{"name": "f", "arguments": {}} \n\n </tool_call>\n', one("f")),
    (wrap('{"arguments": {"a": 1}, "name": "f"}'), one("f", a=1)),
    (CALL + "\n" + wrap('{"name": "f", "arguments": {"a": 1}}'), [*one("python", code="37 * 4"), *one("f", a=1)]),
    (CALL + CALL + CALL, one("python", code="37 * 4") * 3),
    ("Let me compute. " + CALL + " Done.", one("python", code="37 * 4")),
    (wrap('{"name": "f", "arguments": "{\\"a\\": [1, 2]}"}'), one("f", a=[1, 2])),
    (wrap('{"name": "f", "arguments": {}, "id": 3, "type": "function"}'), one("f")),
    (wrap('{"name": "f", "arguments": {"a": {"b": [{}, {"d": null}]}}}'), one("f", a={"b": [{}, {"d": None}]})),
    (wrap('{"name": "f", "arguments": {"code": "{{}} }"}}'), one("f", code="{{}} }")),
    (wrap('{"name": "f", "arguments": {"code": "</tool_call>"}}'), one("f", code="</tool_call>")),
    (wrap('{"name": "f", "arguments": {"code": "<tool_call> <think>"}}'), one("f", code="<tool_call> <think>")),
    (wrap('{"name": "f", "arguments": {"a": "\\u00e9\\ud83d\\ude42\\n"}}'), one("f", a="\u00e9\U0001f642\n")),
    (wrap('{"name": "f", "arguments": {"a": "Z\u00fcrich"}}'), one("f", a="Z\u00fcrich")),
    (wrap('{"name": "f", "arguments": {"a": 1.5, "b": -2e3, "c": true}}'), one("f", a=1.5, b=-2000.0, c=True)),
    (f"<think>\nI could use <tool_call> here.\n</think>\n\n{CALL}", one("python", code="37 * 4")),
    (f"<think>{CALL}</think>148", []),
    (f"No opening tag</think>{CALL}", one("python", code="37 * 4")),
    (f"<think>a</think><think>b</think>{CALL}", one("python", code="37 * 4")),
    (f"<think>still going {CALL}", []),
    (f"<think>a</think>b<think>{CALL}", []),
    (f"{CALL} <think>", one("python", code="37 * 4")),
    (wrap(f'{{"name": "f", "arguments": {{"a": {"9" * 320}.5e-320}}}}'), one("f", a=1.0)),
    (wrap('{"name": "no such tool", "arguments": {"x": 1}}'), one("no such tool", x=1)),
    (wrap('{"name": "python", "arguments": {"code": "37 * 4"}, "price_usd": 0.5}'), one("python", code="37 * 4")),
    (wrap('{"name": "f", "arguments": "{}", "arguments_note": {"a": {}}}'), one("f")),
    (f"First this: {CALL} then that: {CALL} and done.", one("python", code="37 * 4") * 2),
    (f"{CALL} I may <tool_response> 148 </tool_response> now.", one("python", code="37 * 4")),
    (f"<think>a <tool_call></think>b</think>{CALL}", one("python", code="37 * 4")),
    (f"<think>{CALL} or</think><think>{CALL}</think>", []),
    (f"{CALL}</think>148", []),
    (THOUGHT + wrap('{"name": "f", "arguments": {"a": "<think>"}}'), one("f", a="<think>")),
    (f"{THOUGHT}{CALL} <think> hm", one("python", code="37 * 4")),
    (f"{THOUGHT}The answer is 148.", []),
]  # fmt: skip

MALFORMED = [
    ("<tool_call>", "not a valid call"),
    ('<tool_call>\n{"name": "f", "arguments": {}}', "closing </tool_call> is missing"),
    ('<tool_call>\n{"name": "f", "arguments": {"a": ', "not a valid call"),
    (CALL + '\n<tool_call>\n{"name": "f", "arguments": {}}\n', "closing </tool_call> is missing"),
    ("</tool_call>", "no <tool_call> before"),
    (CALL + "</tool_call>", "no <tool_call> before"),
    ("</tool_call>" + CALL, "no <tool_call> before"),
    ("<tool_call></tool_call>", "not a valid call"),
    ("<tool_call>" + CALL, "not a valid call"),
    (wrap("python(37 * 4)"), "not a valid call"),
    (wrap("{'name': 'f', 'arguments': {}}"), "not a valid call"),
    (wrap('{"name": "f", "arguments": {},}'), "not a valid call"),
    (wrap('{"name": "f", "arguments": {}}}'), "text follows"),
    (wrap('{"name": "f", "arguments": {}} {"name": "g", "arguments": {}}'), "text follows"),
    (wrap('[{"name": "f", "arguments": {}}]'), "not a JSON object"),
    (wrap('"f"'), "not a JSON object"),
    (wrap('{"arguments": {}}'), '"name"'),
    (wrap('{"name": "", "arguments": {}}'), '"name"'),
    (wrap('{"name": " ", "arguments": {}}'), '"name"'),
    (wrap('{"name": 3, "arguments": {}}'), '"name"'),
    (wrap('{"name": null, "arguments": {}}'), '"name"'),
    (wrap('{"name": "f"}'), '"arguments"'),
    (wrap('{"name": "f", "arguments": null}'), '"arguments"'),
    (wrap('{"name": "f", "arguments": [1]}'), '"arguments"'),
    (wrap('{"name": "f", "arguments": "[1]"}'), '"arguments"'),
    (wrap('{"name": "f", "arguments": "37 * 4"}'), "not a valid call"),
    (wrap('{"name": "f", "name": "g", "arguments": {}}'), "twice"),
    (wrap('{"name": "f", "arguments": {"a": [{"b": 1, "b": 2}]}}'), "twice"),
    (wrap('{"name": "f", "arguments": {"a": NaN}}'), "NaN"),
    (wrap('{"name": "f", "arguments": {"a": -Infinity}}'), "-Infinity"),
    (wrap('{"name": "f", "arguments": {"a": 1e999}}'), "too large"),
    (wrap('{"name": "f", "arguments": {"a": ' + "9" * 400 + "}}"), "too large"),
    (wrap('{"name": "f", "arguments": {"a": -1' + "0" * 309 + "}}"), "too large"),
    (wrap('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}"), "not a valid call"),
    (wrap('{"name": "f", "arguments": {"a": "\\ud800"}}'), "not a valid call"),
    (wrap('{"name": "f", "arguments": {"a": [["\\udfff"]]}}'), "not a valid call"),
    (wrap('{"name": "\\ud800", "arguments": {}}'), "not a valid call"),
    (wrap('{"name": "f", "arguments": {"\\ud800": 1}}'), "not a valid call"),
    (wrap('{"name": "f", "arguments": {"code": "a\nb"}}'), "not a valid call"),
    (wrap('{"name": "f", "arguments": {"code": "\\x"}}'), "not a valid call"),
    (wrap('{"name": "f", "arguments": {"a": ' + "[" * 100_000 + "}}"), "nested too deeply"),
    (wrap('{"name": "f", "arguments": {"a": ' + "[" * 64 + "]" * 64 + "}}"), "nested too deeply"),
    (wrap('{"name": "f", "arguments": "{\\"a\\": ' + "[" * 64 + "]" * 64 + '}"}'), "nested too deeply"),
    (wrap('{"name": "f", "arguments": {"code": "</think>"}}'), "no <tool_call> before"),
    (THOUGHT + wrap('{"name": "f", "arguments": {"code": "</think>"}}'), "</think> follows a tool call"),
    (f"{THOUGHT}{CALL}\n{THOUGHT}{CALL}", "</think> follows a tool call"),
    (f"{THOUGHT}{CALL}</think>148", "</think> follows a tool call"),
    (f"<think>a</think></tool_call>{CALL}", "no <tool_call> before"),
    (wrap('{"name": "f", "arguments": {"a": 1} // why not\n}'), "not a valid call"),
    (wrap('```json\n{"name": "f", "arguments": {}}\n```'), "not a valid call"),
    (wrap('{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}'), "text follows"),
    (wrap('{"name": "f", "arguments": {"a": "\\u12"}}'), "not a valid call"),
    (wrap('{"name": "f", "arguments": {"a": 1e400, "b": 1}}'), "too large"),
    (wrap('{"name": "f", "arguments": "{\\"a\\": 1"}'), "not a valid call"),
    (wrap("null"), "not a JSON object"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "calls"), ACCEPTED, ids=range(len(ACCEPTED)))
def test_accepted_calls(text, calls):
    assert parse_tool_calls(text) == calls


@pytest.mark.parametrize(("text", "reason"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_calls(text, reason):
    result = parse_tool_calls(text)
    assert isinstance(result, ParseError)
    assert reason in result.reason
    assert len(result.reason) < 200


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("148", "148"),
        ("  148\n", "148"),
        ("<think>\nhm\n</think>\n\n148", "148"),
        ("hm</think>148", "148"),
        ("<think>a</think>b</think> 148 ", "148"),
        ("<think>never closed 148", ""),
        ("148 <think>", ""),
        ("<think></think>", ""),
        ("", ""),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


def test_the_policy_is_fed_enough():
    assert len({text for text, _ in ACCEPTED + MALFORMED}) >= 80


@pytest.mark.parametrize(
    "text",
    ["", "148", "<tool_call>python(", f"<think>{CALL}</tool_call>", "</tool_call>", f"{THOUGHT}</tool_call> no, wait"],
)
def test_what_stands_before_the_end_of_thinking_is_thinking(text):
    assert parse_tool_calls(f"{text}</think>{CALL}") == one("python", code="37 * 4")


def soundness(value):
    """The levels of a value that every tool can take."""
    if isinstance(value, str):
        value.encode()
    if isinstance(value, int | float):
        assert math.isfinite(float(value))
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((soundness(one) + 1 for one in inner), default=0)


PIECES = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", '{"name": "f", "arguments": ',
    '"{\\"a\\": 1}"',
    "{}", "}", "[", "]", "{", '"', "\\", "\\ud83d", "\\u0000", "1e999", "-", "9" * 400, "NaN", "null",
    ",", ":", '"a": ', "\n", " ",
    "\x00", "\ud83d", "\u2028", CALL, "<|im_end|>",
]  # fmt: skip


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=25).map("".join))
@example("".join(PIECES))
def test_any_text_is_calls_or_a_reason(text):
    found = parse_tool_calls(text)
    if isinstance(found, ParseError):
        assert 0 < len(found.reason) < 300
    else:
        for call in found:
            assert call.name.strip()
            assert soundness(call.arguments) <= 64
            json.dumps(call.arguments, allow_nan=False)
    assert final_answer(text) == final_answer(text).strip()


@pytest.mark.parametrize(
    "text",
    [
        "</think>" * 10**6,
        "<think>" * 10**6,
        f"{CALL}{'</think>' * 10**6}",
        "</think>" + "<tool_call>" * 10**6,
        "<tool_call>" + "[" * 10**6,
        "<tool_call>" + " " * 10**6,
        '<tool_call>{"name": "f", "arguments": {"a": ' + "1" * 10**6,
        "</think><think>" * 10**6,
    ],
    ids=range(8),
)
def test_a_million_tags_take_linear_time(text):
    start = time.process_time()
    parse_tool_calls(text)
    assert time.process_time() - start < 10.0  # some 0.3; a square of the length would take an hour


def test_the_chat_format_is_imported_from_one_place():
    assert chat.parse_tool_calls is parse_tool_calls
    assert chat.ParseError is ParseError
