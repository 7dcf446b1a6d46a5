"""Thinking, tool calls and the final answer in the text of a turn.

A call is `<tool_call>` + JSON object + `</tool_call>` with "name" and "arguments". docs/rollouts.md ("What counts as a
call") has the policy for every malformed case. One bad call spoils the turn: the result is a `ParseError`, even if the
turn's other calls are well formed.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from orchestra_jax.io.untrusted import MOST_LEVELS, levels
from orchestra_jax.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, END_THINK = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ParseError:
    """The turn broke the tool-call format; `reason` is one sentence."""

    reason: str


def render_call(call: ToolCall) -> str:
    """Return the call as Qwen3's template writes it."""
    return f"{OPEN}\n{json.dumps({'name': call.name, 'arguments': dict(call.arguments)})}\n{CLOSE}"


def parse_tool_calls(text: str) -> list[ToolCall] | ParseError:
    """Return the calls of one sampled turn, by the table in docs/rollouts.md; an empty list means no call.

    Args:
        text: `ChatFormat.decode` of the sampled ids.
    """
    said = _after_thinking(text)
    return _calls(said) if "tool_call>" in said else []


def final_answer(text: str) -> str:
    """Return what a turn without calls says: the stripped text after thinking, "" if thinking never closed."""
    return _after_thinking(text).strip()


def _after_thinking(text: str) -> str:
    """Return the text after thinking, "" while a `<think>` before any call is open.

    A `</think>` that is left in it stands after a call.
    """
    start = 0
    while (end := text.find(END_THINK, start)) >= 0:
        call = text.find(OPEN, start, end) if start else -1
        if call >= 0 and text.find(THINK, start, call) < 0:
            return text[start:]
        start = end + len(END_THINK)
    rest = text[start:]
    return "" if THINK in rest.partition(OPEN)[0] else rest


def _calls(said: str) -> list[ToolCall] | ParseError:
    """Return the calls of the text after thinking."""
    if END_THINK in said:
        return ParseError("A </think> follows a tool call, so that the call would count as thinking.")
    calls: list[ToolCall] = []
    position = 0
    while True:
        start = said.find(OPEN, position)
        if said.find(CLOSE, position, start if start >= 0 else len(said)) >= 0:
            return ParseError("A </tool_call> has no <tool_call> before it.")
        if start < 0:
            return calls
        begin = _skip_space(said, start + len(OPEN))
        try:
            value, end = _JSON.raw_decode(said, begin)
            _require_few_levels(said[begin:end])
            call = _call(value)
        except RecursionError:
            return ParseError("The JSON of a tool call is nested too deeply.")
        except ValueError as error:
            return ParseError(f"The text after <tool_call> is not a valid call: {error}.")
        end = _skip_space(said, end)
        if not said.startswith(CLOSE, end):
            missing = "the closing </tool_call> is missing" if end == len(said) else "text follows the JSON object"
            return ParseError(f"A tool call does not end properly: {missing}.")
        calls.append(call)
        position = end + len(CLOSE)


def _call(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str) or not name.strip():
        raise ValueError('"name" must be a non-empty string')
    if isinstance(arguments, str):
        _require_few_levels(arguments)
        arguments = _JSON.decode(arguments)
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" must be an object')
    return ToolCall(name, arguments)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    for key, value in pairs:
        _require_utf8(key)
        _require_utf8(value)
    return result


def _require_utf8(value: Any) -> None:
    """Raise UnicodeEncodeError if a string has no UTF-8 form. Objects in `value` were checked when they were built."""
    if isinstance(value, list):
        for item in value:
            _require_utf8(item)
    elif isinstance(value, str) and not value.isascii():
        value.encode()


def _require_few_levels(text: str) -> None:
    """Raise RecursionError if JSON is nested too deeply for the code that walks through arguments."""
    if levels(text.encode()) > MOST_LEVELS:
        raise RecursionError


def _whole(text: str) -> int:
    _float(text)  # beyond all floating-point numbers it is too large
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_whole)
_SPACE = re.compile(r"[ \t\r\n]*")


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position
