"""The observation of a snippet that ran: text and error, made from bytes that nobody has checked."""

import os
import signal
from collections.abc import Mapping
from typing import Any

from orchestra_jax.tools.python.common import EXCEPTION_EXIT, FLOOD_BYTES

_NAMES = {int(number): number.name for number in signal.Signals}  # real-time signals have none


def observe(output: bytes, status: int, stopped: str, limits: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the observation, and whether it is an error; never raise, whatever a snippet printed and however it ended.

    Args:
        output: what it printed, at least the first `FLOOD_BYTES + 1` bytes.
        status: how its process ended, as of `os.waitpid`.
        stopped: why the worker ended it: "time", "memory", "output", or "".
        limits: of the sandbox: timeout_s, memory_mb and max_output.
    """
    text = output[:FLOOD_BYTES].decode("utf-8", "replace")
    if len(text) > limits["max_output"]:
        head, tail = limits["max_output"] * 3 // 4, limits["max_output"] // 4
        text = f"{text[:head]}\n[... {len(text) - head - tail} characters cut ...]\n{text[len(text) - tail :]}"
    problem = _problem(status, "output" if len(output) > FLOOD_BYTES else stopped, limits)
    text = text.removesuffix("\n")
    if problem:
        text = f"{text}\n{problem}" if text else problem
    return text, bool(problem) or status != 0


def _problem(status: int, stopped: str, limits: Mapping[str, Any]) -> str:
    """Return a sentence on how the code ended, if its own words do not tell."""
    if stopped == "output":
        return f"The code was stopped because it printed more than {FLOOD_BYTES} bytes."
    if stopped == "memory":
        return f"The code was stopped because it used more than {limits['memory_mb']} MiB of memory."
    if stopped:
        return f"The code was stopped after {limits['timeout_s']:g} s (time-out)."
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return f"The code was stopped after {limits['timeout_s']:g} s of CPU time (time-out)."
        return f"The code was killed by {_NAMES.get(number, f'signal {number}')}."
    code = os.WEXITSTATUS(status)
    return "" if code in (0, EXCEPTION_EXIT) else f"The code ended with exit code {code}."
