"""Tool schemas: what the policy sees, which arguments pass, which specs are refused."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestra_jax.tools import schema
from orchestra_jax.tools.price_note import price_note
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import ToolSpec

SPEC = ToolSpec(
    "ask",
    "Asks an expert.",
    {
        "type": "object",
        "properties": {
            "question": {"type": "string"},
            "effort": {"enum": ["low", "high"]},
            "n": {"type": ["integer", "null"], "minimum": 1},
            "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
        },
        "required": ["question"],
        "additionalProperties": False,
    },
)


def test_to_openai_is_plain_json_and_shows_price_and_latency():
    plain = schema.to_openai(SPEC)
    assert json.loads(json.dumps(plain)) == {
        "type": "function",
        "function": {"name": "ask", "description": "Asks an expert.", "parameters": SPEC.parameters},
    }
    priced = replace(SPEC, price_usd=0.002, latency_s=3.0, local=True)
    text = "Asks an expert. Price: $0.002 per call. Latency: 3 s. Runs locally."
    assert schema.to_openai(priced)["function"]["description"] == text
    assert schema.to_openai(priced, show_price=False) == plain
    assert price_note(replace(SPEC, price_usd=0.0)) == "Price: free."


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"question": "x"}, None),
        ({"question": "x", "n": None, "effort": "low"}, None),
        ({}, "The arguments of ask lack the required 'question'."),
        ({"question": 3}, "Argument 'question' of ask must be of type string, not integer."),
        ({"question": "x", "n": True}, "Argument 'n' of ask must be of type integer or null, not boolean."),
        ({"question": "x", "effort": "max"}, 'Argument \'effort\' of ask must be one of ["low", "high"].'),
        ({"question": "x", "n": 0}, "Argument 'n' of ask is not valid: 0 is less than the minimum of 1."),
        (
            {"question": "x", "options": {"deep": 1}},
            "Argument 'options.deep' of ask must be of type boolean, not integer.",
        ),
        (
            {"question": "x", "y": 1},
            "The arguments of ask are not valid: Additional properties are not allowed ('y' was unexpected).",
        ),
        (["x"], "The arguments of ask must be a JSON object, not array."),
    ],
)
def test_validate_arguments(arguments: Any, problem: str | None):
    assert schema.validate_arguments(SPEC, arguments) == problem


def test_a_changed_schema_is_not_validated_by_an_old_one():
    parameters: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
    spec = ToolSpec("t", "d", parameters)
    assert schema.validate_arguments(spec, {"a": "x"}) is None
    parameters["properties"]["a"]["type"] = "integer"
    assert schema.validate_arguments(spec, {"a": "x"}) is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "has space"}, "must be 1 to 64 letters"),
        ({"description": " "}, "has no description"),
        ({"price_usd": -1.0}, "price_usd=-1.0"),
        ({"latency_s": float("nan")}, "latency_s=nan"),
        ({"parameters": {"type": "string"}}, "with type 'object'"),
        (
            {"parameters": {"type": "object", "properties": {"a": {"type": "text"}}}},
            "cannot be used as a JSON schema, at properties/a/type: 'text' is no value",
        ),
        ({"parameters": {"type": "object", "required": ["b"]}}, "requires the parameter 'b'"),
        ({"parameters": {"type": "object", "default": {1, 2}}}, "not JSON"),
    ],
)
def test_check_spec(change: dict[str, Any], message: str):
    check_spec(SPEC)
    with pytest.raises(ValueError, match=message) as caught:
        check_spec(replace(SPEC, **change))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif("ORCHESTRA_DATA" not in os.environ, reason="needs ORCHESTRA_DATA")
def test_released_tools_are_accepted():
    for tool in json.loads((Path(os.environ["ORCHESTRA_DATA"]) / "toolorchestra_tools.json").read_text()):
        function = tool["function"]
        spec = ToolSpec(function["name"], function["description"], function["parameters"])
        check_spec(spec)
        assert schema.to_openai(spec) == {"type": "function", "function": function}
        assert "model" in (schema.validate_arguments(spec, {}) or "")
