"""Attacks on a server over real sockets: none spends a cent, tells a secret or stops the next request."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the server's packages: pip install 'orchestra-jax[serve]'")
import httpx

from orchestra_jax.serving.database import PICO, ServerDatabase, opened
from orchestra_jax.serving.keys import add_key, digest, end_key
from orchestra_jax.serving.server import ChatServer, ServerLimits
from orchestra_jax.types import Task, ToolCall, ToolResult
from tests.serving.made import ask_dear, client, over_http, qa_settings, rows, scripted

KEY = "sk-the-operators-key"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Why?"}]}
OK = json.dumps(BODY).encode()


@dataclass(frozen=True)
class Served:
    """A server on a port of 127.0.0.1."""

    port: int
    database: ServerDatabase
    keys: dict[str, str]

    def raw(self, sent: bytes) -> bytes:
        """What comes back for these bytes until the server closes."""
        found = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as link:
            with contextlib.suppress(ConnectionError):  # it closes in the middle of what is too long
                link.sendall(sent)
            with contextlib.suppress(ConnectionError):
                while part := link.recv(65_536):
                    found += part
        return found

    def http(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with (
        pytest.MonkeyPatch.context() as patch,
        scripted(folder, ask_dear, *qa_settings(folder), "name=tiny") as orchestrator,
        opened(folder / "served.db") as database,
    ):
        patch.setattr("orchestra_jax.serving.server._BODY_S", 0.3)
        keys = {"anna": add_key(database, "anna", 1.0, None), "ended": add_key(database, "ended", None, None)}
        keys["slow"] = add_key(database, "slow", None, 5)
        end_key(database, "ended")
        limits = ServerLimits(key=KEY, max_usd=1.0, body=100_000)
        with over_http(ChatServer(orchestrator, database, limits)) as address:
            yield Served(int(address.rpartition(":")[2]), database, keys)


def post(body: bytes = OK, *headers: str, path: str = "/v1/chat/completions", key: str | None = KEY) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    if not any(line.lower().startswith("content-type") for line in headers):
        lines.append("Content-Type: application/json")
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def get(path: str, *headers: str, method: str = "GET", host: str = "127.0.0.1") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def saying(**more: Any) -> bytes:
    return json.dumps({**BODY, **more}).encode()


WITH_KEY = f"Authorization: Bearer {KEY}"
ATTACKS: dict[str, tuple[bytes, tuple[int, ...]]] = {
    # Who may ask.
    "no key": (post(key=None), (401,)),
    "an empty key": (post(key=""), (401,)),
    "a wrong key": (post(key="wrong"), (401,)),
    "a part of the key": (post(key=KEY[:-1]), (401,)),
    "more than the key": (post(key=f"{KEY}x"), (401,)),
    "the key in capitals": (post(key=KEY.upper()), (401,)),
    "the kept digest as the key": (post(key=digest(KEY)), (401,)),
    "another scheme": (post(OK, f"Authorization: Basic {KEY}", key=None), (401,)),
    "no scheme": (post(OK, f"Authorization: {KEY}", key=None), (401,)),
    "the key in the address": (post(path=f"/v1/chat/completions?api_key={KEY}", key=None), (401,)),
    "the key in another header": (post(OK, f"X-Api-Key: {KEY}", key=None), (401,)),
    "two keys": (post(OK, "Authorization: Bearer wrong"), (401,)),
    "bytes as a key": (post(key="\xff\xfe\xfd"), (401,)),
    "a list of models without a key": (get("/v1/models"), (401,)),
    "figures without a key": (get("/metrics"), (401,)),
    "feedback without a key": (post(b'{"id": "x", "thumbs": "up"}', path="/v1/feedback", key=None), (401,)),
    "another name of the server": (get("/v1/models", WITH_KEY, host="evil.example"), (421,)),
    "its name with a suffix": (get("/v1/models", WITH_KEY, host="127.0.0.1.evil.example"), (421,)),
    "a forwarded name": (get("/v1/models", "X-Forwarded-Host: 127.0.0.1", WITH_KEY, host="evil"), (421,)),
    # What may be asked for.
    "a way up": (get("/../../etc/passwd", WITH_KEY), (404, 400)),
    "a way up in escapes": (get("/%2e%2e/%2e%2e/etc/passwd", WITH_KEY), (404,)),
    "a way up behind a model": (get("/v1/models/../../../etc/passwd", WITH_KEY), (404,)),
    "a way up behind a model in escapes": (get("/v1/models/..%2f..%2fetc%2fpasswd", WITH_KEY), (404,)),
    "two slashes": (get("//etc/passwd", WITH_KEY), (404,)),
    "a zero byte": (get("/page.html%00.txt", WITH_KEY), (404,)),
    "the database": (get("/served.db", WITH_KEY), (404,)),
    "the source": (get("/orchestra_jax/serving/server.py", WITH_KEY), (404,)),
    "an address as a path": (get("http://169.254.169.254/latest/meta-data", WITH_KEY), (404,)),
    "a tunnel": (get("169.254.169.254:80", method="CONNECT"), (400, 404, 405)),
    "an echo": (get("/v1/models", WITH_KEY, method="TRACE"), (405,)),
    "a deletion": (get("/v1/models/tiny", WITH_KEY, method="DELETE"), (405,)),
    "a page of another origin asks first": (
        get("/v1/chat/completions", "Origin: http://evil.example", "Access-Control-Request-Method: POST",
            method="OPTIONS"), (405,),
    ),
    "a form of another page": (post(OK, "Content-Type: text/plain"), (415,)),
    "a form with a name": (post(b"model=tiny", "Content-Type: application/x-www-form-urlencoded"), (415,)),
    # Limits of headers and bodies.
    "a long address": (get(f"/{'x' * 100_000}", WITH_KEY), (400, 404, 414, 431)),
    "a long header": (get("/v1/models", f"X-Long: {'x' * 200_000}", WITH_KEY), (400, 431)),
    "many headers": (get("/v1/models", *(f"X-{n}: {'y' * 50}" for n in range(5000)), WITH_KEY), (400, 431)),
    "a body too large": (post(b"x" * 200_000), (413,)),
    "a body that claims too much": (post(OK, "Content-Length: 99999999999999999999"), (400, 413)),
    "a body that claims a negative length": (post(OK, "Content-Length: -1"), (400,)),
    "two lengths": (post(OK, "Content-Length: 4", f"Content-Length: {len(OK)}"), (400,)),
    "a length and chunks": (post(b"0\r\n\r\n", "Content-Length: 4", "Transfer-Encoding: chunked"), (400,)),
    "chunks without an end": (post(b"ffffff\r\n{", "Transfer-Encoding: chunked"), (400, 408, 499)),
    "chunks that are none": (post(b"zz\r\n\r\n", "Transfer-Encoding: chunked"), (400,)),
    "a packed bomb": (post(b"\x1f\x8b\x08\x00" + b"\x00" * 999, "Content-Encoding: gzip"), (400,)),
    "deep JSON": (post(b'{"model": ' + b"[" * 40_000), (400,)),
    "a number without end": (post(b'{"temperature": ' + b"9" * 50_000 + b"}"), (400,)),
    "the same field twice": (post(b'{"model": "tiny", "model": "x", "messages": []}'), (404,)),
    "half of a surrogate pair": (post(b'{"model": "\\ud800", "messages": []}'), (400, 404)),
    "no HTTP at all": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20, (400,)),
    # What may be spent.
    "endless dollars": (post(saying(orchestra={"max_usd": 1e308})), (400,)),
    "infinite dollars": (post(OK[:-1] + b', "orchestra": {"max_usd": Infinity}}'), (400,)),
    "less than no dollars": (post(saying(orchestra={"max_usd": -5})), (400,)),
    "dollars as a word": (post(saying(orchestra={"max_usd": "all"})), (400,)),
    "many answers": (post(saying(n=1000)), (400,)),
    "another model": (post(saying(model="gpt-5")), (404,)),
    "an address as a model": (post(saying(model="http://169.254.169.254/latest")), (404,)),
    # Ways out, and words for others.
    "a picture to fetch": (
        post(saying(messages=[{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]}])), (400,),
    ),
    "a schema to fetch": (
        post(saying(tools=[{"type": "function", "function": {"name": "x", "parameters": {
            "type": "object", "properties": {"y": {"$ref": "http://169.254.169.254/"}}}}}])), (400,),
    ),
    "a tool of the server to run": (post(saying(tools=[{"type": "mcp", "server_url": "http://evil"}])), (400,)),
    "a line in a model's name": (post(saying(model="tiny\r\nSet-Cookie: x=1")), (404,)),
    "the key of another as an id": (
        post(b'{"id": "x\' OR 1=1 --", "thumbs": "down"}', path="/v1/feedback"), (404,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_and_tells_nothing(served: Served, name: str):
    sent, allowed = ATTACKS[name]
    before = rows(served.database, "requests"), rows(served.database, "calls")
    found = served.raw(sent)
    status = int(found.split(b" ", 2)[1]) if found.startswith(b"HTTP/1.1 ") else 400  # closed without a word
    assert status in allowed, found[:300]
    head = found.split(b"\r\n\r\n")[0].lower()
    assert not any(word in head for word in (b"set-cookie", b"access-control-allow", b"server:"))
    assert not any(word in found for word in (KEY.encode(), b"root:", b"Traceback", b"import ", b"sk-orchestra"))
    with served.http() as http:
        assert http.get("/health").json() == {"status": "ok"}
    assert (rows(served.database, "requests"), rows(served.database, "calls")) == before  # nothing was spent


def test_sixty_attacks_are_tried():
    assert len(ATTACKS) >= 60


def test_slow_clients_are_ended_and_stop_nobody(served: Served):
    links = [socket.create_connection(("127.0.0.1", served.port), timeout=30) for _ in range(50)]
    try:
        for number, link in enumerate(links):  # half a head, or a head and half a body
            link.sendall(post()[:40] if number % 2 else post()[:-20])
        with served.http(authorization=f"Bearer {KEY}") as http:
            assert http.post("/v1/chat/completions", json=BODY).status_code == 200
        assert all(b" 408 " in link.recv(65_536).split(b"\r\n")[0] for link in links[::2])
    finally:
        for link in links:
            link.close()


async def test_many_at_once_stay_within_a_keys_budget_and_rate(served: Served):
    async def asked(http: httpx.AsyncClient, key: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {served.keys[key]}"}
        return await http.post("/v1/chat/completions", json=BODY, headers=headers)

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.port}", timeout=60) as http:
        paid = await asyncio.gather(*(asked(http, "anna") for _ in range(20)))
        often = await asyncio.gather(*(asked(http, "slow") for _ in range(20)))
        assert (await asked(http, "ended")).status_code == 401
    costs = [found.json()["usage"]["cost_usd"] for found in paid if found.status_code == 200]
    assert {found.status_code for found in paid} <= {200, 402}
    assert 0.8 - 1e-9 <= sum(costs) <= 1.0
    (account,) = [row for row in rows(served.database, "accounts") if row["name"].startswith("1/")]
    assert account["usd"] == 0.8 * PICO  # two calls of 40 cents fit
    assert sorted(found.status_code for found in often) == [200] * 5 + [429] * 15


HOSTILE = '</script><img src=x onerror=alert(1)>\x1b]0;x\x07\n\ndata: {"choices": []}\n\nevent: x\r\nSet-Cookie: a=b'


def echo(task: Task, results: list[ToolResult]) -> ToolCall | str:
    """Say a text that a hostile tool or web page could have written."""
    return HOSTILE


async def test_a_hostile_answer_is_data_in_json_and_in_a_stream(tmp_path: Path):
    with (
        scripted(tmp_path, echo, *qa_settings(tmp_path), "name=tiny") as orchestrator,
        opened(tmp_path / "served.db") as database,
    ):
        async with client(orchestrator, database) as http:
            whole = await http.post("/v1/chat/completions", json=BODY)
            stream = await http.post("/v1/chat/completions", json={**BODY, "stream": True})
    assert whole.headers["content-type"] == "application/json"
    assert whole.json()["choices"][0]["message"]["content"] == HOSTILE
    assert "set-cookie" not in whole.headers
    events = [event for event in stream.text.split("\n\n") if event]
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    said = [json.loads(event[6:])["choices"][0]["delta"].get("content") for event in events[:-1]]
    assert HOSTILE in said


SPYING = {
    "the server's keys": "import os\nprint(dict(os.environ))",
    "the server's keys from its process": "print(open('/proc/1/environ').read())",
    "what others asked": "print(open('FOLDER/served.db', 'rb').read()[:100])",
    "an address inside": "import urllib.request\nprint(urllib.request.urlopen('http://127.0.0.1:PORT/health').read())",
    "an address outside": "import socket\nsocket.create_connection(('169.254.169.254', 80), 2)\nprint('reached')",
}


def test_a_prompt_that_has_a_tool_spy_gets_nothing(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The policy does what a stranger tells it to, and runs the code in its sandbox."""
    monkeypatch.setenv("ORCHESTRA_API_KEY", KEY)
    code = ""

    def obey(task: Task, results: list[ToolResult]) -> ToolCall | str:
        return results[-1].text if results else ToolCall("python", {"code": code})

    settings = ["name=tiny", "tools.sandbox.isolation=namespaces"]
    with opened(tmp_path / "served.db") as database, scripted(tmp_path, obey, *settings) as orchestrator:
        add_key(database, "anna", None, None)
        for wanted, program in SPYING.items():
            code = program.replace("FOLDER", str(tmp_path)).replace("PORT", str(served.port))
            said = orchestrator.ask("What is 7 * 8 + 3?").calls[0].result
            assert said, wanted
            assert not any(word in said for word in (KEY, "SQLite format", '{"status"', "reached\n")), wanted
        code = "print(6 * 7)"
        assert orchestrator.ask("What is 7 * 8 + 3?").answer == "42"  # it does run
