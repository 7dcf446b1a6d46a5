"""Schemas that others wrote: refused when they are listed, or checked against in bounded work."""

import json
import random
import socket
import urllib.request
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from orchestra_jax.tools import foreign_schema
from orchestra_jax.tools.foreign_schema import BadSchema
from orchestra_jax.tools.schema import checker, validate_arguments
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.types import ToolSpec


def spec(**properties: Any) -> ToolSpec:
    definitions = properties.pop("defs", {})
    return ToolSpec("t", "d", {"type": "object", "properties": properties, "$defs": definitions})


def doubled(levels: int) -> dict[str, Any]:
    """Schemas of three references each to the one before."""
    made: dict[str, Any] = {"n0": {"type": "string"}}
    for level in range(1, levels):
        made[f"n{level}"] = {"anyOf": [{"$ref": f"#/$defs/n{level - 1}"}] * 3}
    return made


def chain(levels: int) -> dict[str, Any]:
    return {f"n{level}": {"$ref": f"#/$defs/n{level + 1}"} for level in range(levels)} | {f"n{levels}": {}}


def nested(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        made = {"type": "array", "items": made}
    return made


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (spec(a={"$ref": "#/$defs/n"}, defs={"n": {"anyOf": [{"$ref": "#/$defs/n"}]}}), "lead in a circle"),
        (spec(a={"$ref": "#"}), "lead in a circle"),
        (spec(a={"$ref": "#/properties/a"}), "lead in a circle"),
        (spec(a={"$ref": "http://127.0.0.1/x.json"}), r"http://127\.0\.0\.1/x\.json', which is not in the schema"),
        (spec(a={"$ref": "file:///etc/passwd"}), "which is not in the schema"),
        (spec(a={"$ref": "#name"}), "which is not in the schema"),
        (spec(a={"$ref": "#/$defs/none"}), "which is not in the schema"),
        (spec(a={"$ref": 5}), "which is not in the schema"),
        (spec(a={"$ref": "#/properties/b/enum"}, b={"enum": [1]}), "is no schema"),
        (spec(a={"$id": "http://127.0.0.1/", "$ref": "x"}), r"properties/a/\$id: this keyword is not supported"),
        (spec(a={"$dynamicRef": "#a"}), "not supported"),
        (spec(a={"unevaluatedProperties": False}), "not supported"),
        (spec(a={"$ref": "#/$defs/n13"}, defs=doubled(14)), "stands for more than 10000 schemas"),
        (spec(a={"$ref": "#/$defs/n0"}, defs=chain(300)), "more than 32 levels"),
        (spec(a=nested(40)), "more than 32 levels"),
        (spec(a=nested(3000)), "not JSON|more than 32 levels"),
        (spec(a={"enum": ["x" * 300_000]}), "more than 256 KiB"),
        (spec(a={"pattern": "(?=a)b"}), r"properties/a/pattern: the pattern '\(\?=a\)b' cannot be searched .*linear"),
        (spec(a={"pattern": r"(a)\1"}), "cannot be searched for in linear time"),
        (spec(a={"pattern": "((a{1000}){1000}){1000}"}), "cannot be searched for in linear time"),
        (spec(a={"patternProperties": {"(?!a)": {}}}), "cannot be searched for in linear time"),
        (spec(a={"pattern": 5}), "5 is no value of this keyword"),
        (spec(a={"multipleOf": 0}), "0 is no value of this keyword"),
        (spec(a={"minimum": "1"}), "'1' is no value of this keyword"),
        (spec(a={"maxLength": -1}), "-1 is no value of this keyword"),
        (spec(a={"anyOf": []}), "must be a list of schemas"),
        (spec(a={"dependentSchemas": []}), "must map names to schemas"),
        (spec(a=7), "7 is no schema"),
    ],
)
def test_what_cannot_be_checked_in_bounded_work_is_refused_by_name(bad: ToolSpec, why: str, monkeypatch):
    def fetched(*_: Any, **__: Any) -> None:
        raise AssertionError("it was fetched")

    monkeypatch.setattr(urllib.request, "urlopen", fetched)
    monkeypatch.setattr(socket, "create_connection", fetched)
    with pytest.raises(ValueError, match=why) as caught:
        check_spec(bad)
    said = str(caught.value)
    assert said.startswith("The parameters of tool 't' ")
    assert "\n" not in said
    assert len(said) < 600


def test_a_pattern_is_searched_in_linear_time():
    """With `re` this takes longer than the universe has been there."""
    bad = spec(a={"type": "string", "pattern": "^(a+)+$"}, b={"patternProperties": {"^(b|b)*$": {"type": "number"}}})
    check_spec(bad)
    assert "does not match" in str(validate_arguments(bad, {"a": "a" * 5000 + "!"}))
    assert validate_arguments(bad, {"a": "a" * 5000, "b": {"b" * 5000 + "!": "x"}}) is None
    assert "must be of type number" in str(validate_arguments(bad, {"b": {"bb": "x"}}))
    assert "does not match" in str(validate_arguments(bad, {"a": "\ud800"}))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"anyOf": [{"minimum": n} for n in range(500)]}}, [-1] * 5000),
        ({"items": {"enum": [[n] for n in range(5000)]}}, [[-1]] * 5000),
        ({"items": {"allOf": [{"pattern": f"x{n}$"} for n in range(3000)]}}, ["y" * 10_000] * 100),
        ({"allOf": [{"type": "string"}] * 5000}, ["z" * 1000] * 1000),
        ({"uniqueItems": True}, [{"n": n} for n in range(200_000)]),
    ],
)
def test_one_check_has_bounded_work(schema: dict[str, Any], value: Any, monkeypatch):
    spent = list[int]()
    monkeypatch.setattr(
        foreign_schema, "_spend", lambda steps, own=foreign_schema._spend: (spent.append(steps), own(steps))
    )
    found = foreign_schema.fault(json.dumps(schema), value)
    assert "takes more than 100000 steps" in found.message
    assert len(spent) <= foreign_schema.MOST_STEPS + 1


def test_references_within_the_document_and_the_keywords_of_others_are_followed():
    point = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "title": "Point"}
    good = spec(
        a={"$ref": "#/$defs/Point"}, b={"type": "array", "items": {"$ref": "#/$defs/a~1b%25"}, "uniqueItems": True},
        c={"$ref": "#/properties/a", "x-order": 3}, d={"format": "email", "examples": [1], "nullable": True},
        defs={"Point": point, "a/b%": {"oneOf": [{"const": 1}, {"const": "1"}]}, "unused": {"$ref": "#/$defs/unused"}},
    )  # fmt: skip
    check_spec(good)
    assert validate_arguments(good, {"a": {"x": 1}, "b": [1, "1"], "c": {"x": 2}, "d": 5}) is None
    assert "'c' of t lack the required 'x'" in str(validate_arguments(good, {"c": {}}))
    assert "non-unique" in str(validate_arguments(good, {"b": [1, 1.0]}))
    assert "'b.0' of t is not valid" in str(validate_arguments(good, {"b": [True]}))


WORDS: dict[str, Any] = {
    "type": ["string", ["integer", "null"], "object", "array"], "enum": [[1, "a"], [None]], "const": [1, "a", [1]],
    "minimum": [1], "multipleOf": [2], "minLength": [1], "maxItems": [1], "pattern": ["^a"], "uniqueItems": [True],
    "required": [["a"]], "minProperties": [1], "minContains": [0, 2], "dependentRequired": [{"a": ["b"]}],
}  # fmt: skip


def drawn(rng: random.Random, levels: int) -> Any:
    if not levels or rng.random() < 0.1:
        return rng.random() < 0.8
    made = {word: rng.choice(WORDS[word]) for word in rng.sample(sorted(WORDS), rng.randint(0, 2))}
    for word in rng.sample(("allOf", "anyOf", "oneOf", "prefixItems"), rng.randint(0, 1)):
        made[word] = [drawn(rng, levels - 1) for _ in range(rng.randint(1, 3))]
    for word in rng.sample(
        ("additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else"), rng.randint(0, 3)
    ):
        made[word] = drawn(rng, levels - 1)
    for word in rng.sample(("properties", "patternProperties", "dependentSchemas"), rng.randint(0, 2)):
        made[word] = {name: drawn(rng, levels - 1) for name in rng.sample("ab", rng.randint(1, 2))}
    if rng.random() < 0.2:
        made["$ref"] = rng.choice(["#/$defs/one", "#/$defs/two"])
    return made


def value(rng: random.Random, levels: int) -> Any:
    kind = rng.randint(0, 7 if levels else 5)
    if kind < 6:
        return [1, 2.0, "a", "bb", None, True][kind]
    inner = [value(rng, levels - 1) for _ in range(rng.randint(0, 3))]
    return inner if kind == 6 else dict(zip("abc", inner, strict=False))


def test_every_verdict_is_that_of_jsonschema():
    rng, seen = random.Random(0), set[bool]()
    for _ in range(150):
        schema = {"allOf": [drawn(rng, 3)], "$defs": {"one": {"minimum": 2}, "two": {"type": ["array", "string"]}}}
        wanted = Draft202012Validator(schema)
        fault = checker(schema)
        for _ in range(10):
            each = value(rng, 3)
            assert (fault(each) is None) == wanted.is_valid(each), (schema, each)
            seen.add(fault(each) is None)
    assert seen == {True, False}


def test_without_the_package_a_pattern_is_refused(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "re2", None)
    with pytest.raises(BadSchema, match="pip install google-re2"):
        foreign_schema.read('{"pattern": "never seen before"}')
