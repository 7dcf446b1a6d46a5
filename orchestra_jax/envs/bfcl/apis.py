"""The APIs of one episode: live objects of the package, each with a state of its own.

The result of a call is text as the package's own harness writes it. A bad argument, or one that an API cannot take,
is an error text, which the policy reads.
"""

import copy
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from orchestra_jax.envs.bfcl.package import APIS, PACKAGE, BFCLScenario
from orchestra_jax.types import ToolCall, ToolResult

_MODULES = f"{PACKAGE}.eval_checker.multi_turn_eval.func_source_code"
_STATELESS = ("MathAPI",)
# Numbers that a call could spend hours on; no golden call comes near.
_MOST = {"precision": 1_000, "exponent": 1_000}


class EpisodeApis:
    """The APIs of a scenario in their initial state."""

    def __init__(self, scenario: BFCLScenario) -> None:
        self._apis: dict[str, Any] = {}
        self._methods: dict[str, Callable[..., Any]] = {}
        for name in scenario.apis:
            made = getattr(importlib.import_module(f"{_MODULES}.{APIS[name]}"), name)()
            if name not in _STATELESS:
                start = copy.deepcopy(scenario.state.get(name, {}))
                made._load_scenario(start, long_context=scenario.kind == "long_context")
            self._apis[name] = made
            methods = inspect.getmembers(made, predicate=inspect.ismethod)
            self._methods |= {key: method for key, method in methods if not key.startswith("_")}

    def call(self, call: ToolCall) -> ToolResult:
        """Return the result of a call, whose name is one of the scenario's functions."""
        for name, most in _MOST.items():
            value = call.arguments.get(name)
            if isinstance(value, int | float) and abs(value) > most:
                return ToolResult(f"Error during execution: {name} must be at most {most}.", is_error=True)
        try:
            found = self._methods[call.name](**copy.deepcopy(dict(call.arguments)))
        except Exception as error:
            return ToolResult(f"Error during execution: {error}", is_error=True)
        return ToolResult(_text(found), is_error=isinstance(found, dict) and "error" in found)

    def same(self, other: "EpisodeApis") -> bool:
        """Return whether every API is in the same state: all attributes that are not private are equal."""
        return all(_state(api) == _state(other._apis[name]) for name, api in self._apis.items())


def _state(api: Any) -> Mapping[str, Any]:
    return {key: value for key, value in vars(api).items() if not key.startswith("_")}


def _text(found: Any) -> str:
    if isinstance(found, str):
        return found
    if not isinstance(found, dict):
        return str(found)
    try:
        return json.dumps(found)
    except (TypeError, ValueError):
        return str(found)
