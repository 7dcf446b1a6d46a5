"""The page at `/`: what a browser may do with it, and the steps that it is told."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
import httpx

from orchestra_jax.serving.database import opened
from orchestra_jax.serving.server import ChatServer, ServerLimits
from tests.serving.made import ask_dear, qa_settings, scripted


async def test_the_page_loads_nothing_runs_its_own_script_alone_and_is_told_each_step(tmp_path: Path):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Why?"}], "stream": True,
            "orchestra": {"trace": True}}  # fmt: skip
    with (
        scripted(tmp_path, ask_dear, *qa_settings(tmp_path), "name=tiny") as orchestrator,
        opened(tmp_path / "served.db") as database,
    ):
        app = ChatServer(orchestrator, database, ServerLimits(key="secret")).app()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
            shown, again = await http.get("/"), await http.get("/")
            told = await http.post("/v1/chat/completions", json=body, headers={"authorization": "Bearer secret"})
    policy = dict(part.split(" ", 1) for part in shown.headers["content-security-policy"].split("; "))
    assert (policy["default-src"], policy["connect-src"], policy["frame-ancestors"]) == ("'none'", "'self'", "'none'")
    (nonce,) = set(re.findall(r'nonce="([^"]+)"', shown.text))
    assert policy["script-src"] == policy["style-src"] == f"'nonce-{nonce}'"
    assert nonce not in again.text  # it cannot be guessed
    assert "://" not in shown.text
    # Nothing that would read a text as HTML or as a program, and no handler in an attribute.
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|\son\w+=", shown.text)
    lines = [json.loads(line[6:]) for line in told.text.split("\n\n") if line.startswith("data: {")]
    steps = [line["orchestra"]["call"] for line in lines if "call" in line.get("orchestra", {})]
    assert [(step["number"], step["tool"], step["result"], step["usd"]) for step in steps] == [
        (0, "dear", None, 0.0), (0, "dear", "It is 4.", 0.4),
    ]  # fmt: skip
