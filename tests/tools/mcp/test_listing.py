"""Entries of `tools.mcp`, and what is made of a server's list; nothing here needs the package or a server."""

from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestra_jax.config.begun import resume_conflicts
from orchestra_jax.config.compose import compose
from orchestra_jax.config.mcp import McpPrice, McpServer, mcp_server
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.qa.demonstrations import reference_call
from orchestra_jax.envs.quickstart.environment import QuickstartEnvironment
from orchestra_jax.evaluation.results.offering import UNSEEN_TOOLS, offering
from orchestra_jax.tools import build
from orchestra_jax.tools.build import tool_problems
from orchestra_jax.tools.mcp.servers import specs
from orchestra_jax.tools.schema import validate_arguments
from orchestra_jax.types import Preference, Task

POINT = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
TOOLS = [
    {"name": "geo.distance", "description": "How\n far.", "read_only": True, "schema": {
        "type": "object", "$defs": {"Point": POINT}, "required": ["points", "unit", "exact", "n", "any"],
        "properties": {
            "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}, "minItems": 2},
            "unit": {"enum": [1, 2]}, "exact": {"type": "boolean"}, "n": {"type": ["integer", "null"]}, "any": True}}},
    {"name": "plain", "description": "", "read_only": False, "schema": {"type": "object"}},
]  # fmt: skip
QA = ("env=qa", "data.path=README.md")


def listing(*tools: dict) -> dict:
    return {"server": {"name": "s", "version": "1", "protocol": "p"}, "tools": list(tools or TOOLS)}


def test_an_entry_is_a_command_an_address_or_a_mapping():
    assert mcp_server("npx -y a", "k") == McpServer("npx -y a")
    assert mcp_server("http://h:1/mcp", "k").url == "http://h:1/mcp"
    entry = {"server": "run it", "name": "n", "prices": {"a": {"price_usd": 0.5}}, "env": ["TOKEN"]}
    assert mcp_server(entry, "k") == McpServer("run it", "n", prices={"a": McpPrice(0.5)}, env=["TOKEN"])


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (7, r"tools\.mcp\[0\]=7 names no server"),
        ("{name: a}", "names no server"),
        ("{server: a, pricse: {}}", "pricse.*its settings are server, name"),
        ("{server: a, prices: {x: {price_usd: -1}}}", "price_usd=-1.0 must be at least 0"),
        ("{server: a, timeout_s: soon}", "soon"),
        ("'http://h:port/x'", "is no address"),
        ('{server: "a \'b"}', "cannot be read"),
        ("{server: a, headers: {A: B}}", "headers are for an address"),
        ("{server: 'http://h/x', env: [A]}", "env is for a command"),
    ],
)
def test_a_wrong_entry_is_one_sentence(entry: object, problem: str):
    with pytest.raises(ConfigError, match=problem):
        compose(*QA, f"tools.mcp=[{entry}]")


def test_schemas_prices_and_names_are_kept():
    settings = mcp_server(
        {"server": "a", "name": "maps", "prices": {"plain": {"price_usd": 0.25, "latency_s": 2}}, "local": True}, "k"
    )
    found = specs(listing(), settings)
    assert [(own, spec.name, spec.price_usd, spec.latency_s, spec.local) for own, spec in found.items()] == [
        ("geo.distance", "maps_geo_distance", 0.0, None, True), ("plain", "maps_plain", 0.25, 2.0, True),
    ]  # fmt: skip
    assert found["geo.distance"].parameters == TOOLS[0]["schema"]
    assert [spec.description for spec in found.values()] == ["How far.", "The tool maps_plain."]
    assert list(specs(listing(), McpServer("a", tools=["plain"]))) == ["plain"]
    assert "Argument 'points.1'" in str(
        validate_arguments(
            found["geo.distance"], {"points": [{"x": 1}, {}], "unit": 1, "exact": True, "n": 1, "any": 0}
        )
    )


def test_demonstrations_keep_to_a_nested_schema():
    spec = specs(listing(), McpServer("a"))["geo.distance"]
    task = Task("q", "How far is 3.5 from 1?", ("2.5",), (spec,), Preference("accuracy", ""))
    call = reference_call(task, spec.name)
    assert validate_arguments(spec, call.arguments) is None
    assert call.arguments["points"] == [{"x": 3.5}, {"x": 3.5}]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "array"}, "must be a JSON schema with type 'object'"),
        (
            {"type": "object", "properties": {"a": {"type": "strin"}}},
            "JSON schema, at properties/a/type: 'strin' is no",
        ),
        (
            {"type": "object", "properties": {"a": {"$ref": "http://x/y.json"}}},
            "refers to 'http://x/y.json', which is not",
        ),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/no"}}}, "#/\\$defs/no', which is not in the schema"),
    ],
)
def test_what_no_menu_can_offer_is_named_with_the_way_out(schema: dict, problem: str):
    bad = {"name": "bad", "description": "d", "read_only": False, "schema": schema}
    with pytest.raises(ValueError, match=f"The MCP server a has a tool .*{problem}.*tools: \\[plain\\]"):
        specs(listing(TOOLS[1], bad), McpServer("a"))
    assert list(specs(listing(TOOLS[1], bad), McpServer("a", tools=["plain"]))) == ["plain"]


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ValueError, match="The MCP server a lists two tools of the name plain: mend it"):
        specs(listing(*TOOLS, TOOLS[1]), McpServer("a"))
    alike = [{**TOOLS[1], "name": name} for name in ("a.b", "a/b")]
    with pytest.raises(ValueError, match=r"lists a\.b and a/b, which are both called a_b in a menu"):
        specs(listing(*alike), McpServer("a"))
    assert list(specs(listing(*alike), McpServer("a", tools=["a/b"]))) == ["a/b"]


def test_names_are_compared_in_linear_work():
    compared = []

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return str.__eq__(self, other)

    names = [Name(f"tool_{number}") for number in range(2000)]
    entry = [SimpleNamespace(spec=SimpleNamespace(name=name)) for name in names]
    build._check_names(entry)
    assert len(compared) < 10 * len(names)
    with pytest.raises(ValueError, match="Two tools are called 'tool_7'"):
        build._check_names([*entry, entry[7]])


def test_what_settings_name_and_no_server_has_is_told():
    with pytest.raises(ValueError, match=r"no tool nothing, which tools of tools\.mcp names: it has geo\.distance"):
        specs(listing(), McpServer("a", tools=["nothing"]))
    with pytest.raises(ValueError, match="which prices of"):
        specs(listing(), McpServer("a", prices={"nothing": McpPrice()}))
    with pytest.raises(ValueError, match="offers no tool"):
        specs({**listing(), "tools": []}, McpServer("a"))


def test_what_is_missing_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def told(entry: str, *more: str) -> list[str]:
        return tool_problems(compose(*QA, "tools.names=[]", f"tools.mcp=[{entry}]", *more))

    monkeypatch.setattr(metadata, "version", lambda package: "2.3.1")
    assert told("no-such-program -x") == [
        "tools.mcp: there is no program no-such-program to start the MCP server no-such-program -x: install it, or "
        "mend it."
    ]
    (silent,) = told("http://127.0.0.1:9/mcp")
    assert "No server answers at http://127.0.0.1:9/mcp for the MCP server" in silent
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    (unset,) = told("{server: sh, env: [NO_SUCH_TOKEN]}")
    assert unset == "Set the environment variable NO_SUCH_TOKEN: the MCP server sh needs it."
    monkeypatch.setattr(metadata, "version", lambda package: "1.28.1")
    (older,) = told("sh")
    assert "needs the package mcp, 2.3 or newer, and 1.28.1 is installed" in older
    assert "an environment of its own (docs/mcp.md)" in older

    def not_there(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", not_there)
    assert told("sh") == ["tools.mcp needs the package mcp, 2.3 or newer: pip install 'orchestra-jax[mcp]'."]
    (tmp_path / "calls.db").touch()
    assert told("no-such-program", "replay.mode=replay", f"replay.path={tmp_path / 'calls.db'}") == []


def test_the_quickstart_which_has_tools_of_its_own_says_so():
    (said,) = QuickstartEnvironment.problems(compose("tools.mcp=[sh]"))
    assert "tools.mcp and tools.relay are for env=qa" in said


def test_a_report_tells_servers_that_training_did_not_have():
    cfg = asdict(
        compose(*QA, "tools=offline", "tools.mcp=['npx -y @a/some-server','http://h:1/mcp',{server: x/y, name: n}]")
    )
    trained = {**cfg, "tools": {**cfg["tools"], "mcp": cfg["tools"]["mcp"][:2]}}
    assert offering(cfg, trained).tools == ("python", "local_search", "mcp:some-server", "mcp:h:1", "mcp:n")
    assert (offering(cfg, trained).unseen, offering(cfg, cfg).unseen) == ((UNSEEN_TOOLS,), ())


def test_a_server_with_a_name_may_be_elsewhere_when_a_run_goes_on():
    def differs(old: str, new: str) -> list[str]:
        return resume_conflicts(asdict(compose(*QA, f"tools.mcp=[{old}]")), compose(*QA, f"tools.mcp=[{new}]"))

    assert differs("{name: a, server: 'http://h:1/mcp'}", "{name: a, server: 'http://h:2/mcp', timeout_s: 9}") == []
    assert len(differs("{name: a, server: x}", "{name: b, server: x}")) == 1
    assert len(differs("{name: a, server: x}", "{name: a, server: x, tools: [t]}")) == 1
    assert len(differs("x", "y")) == 1
    old = asdict(compose(*QA))
    del old["tools"]["mcp"]  # of a run from before there were any
    assert resume_conflicts(old, compose(*QA)) == []
