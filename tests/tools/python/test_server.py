"""The sandbox's HTTP server and the executor that asks it: what each does when the other writes what it likes."""

import asyncio
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("aiohttp")

from orchestra_jax.tools.python import server as sandbox_server
from orchestra_jax.tools.python.sandbox import PythonSandbox
from orchestra_jax.types import InfrastructureError, ToolResult
from tests.processes.running import free_port
from tests.tools.http_stub import hosting

JSON, KEY = "Content-Type: application/json\r\n", "Authorization: Bearer secret\r\n"


class Echo:
    """In the place of a sandbox: its answer is the code."""

    kind = "none"

    async def run(self, code: str) -> ToolResult:
        return ToolResult(code)

    def close(self) -> None:
        pass


def request(body: bytes, headers: str = JSON + KEY) -> bytes:
    head = f"POST /run HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode("latin1") + body


# name -> (what a client sends, the status of the answer)
REQUESTS = {
    "well_formed": (request(b'{"code": "6 * 7"}'), 200),
    "cut_off": (request(b'{"code"'), 400),
    "no_object": (request(b"[1]"), 400),
    "no_code": (request(b'{"code": 5}'), 400),
    "many_brackets": (request(b"[" * 100_000), 400),
    "many_digits": (request(b'{"code": ' + b"9" * 5000 + b"}"), 400),
    "not_a_number": (request(b'{"code": NaN}'), 400),
    "utf_16": (request('{"code": "1"}'.encode("utf-16")), 400),
    "bytes_that_are_no_text": (request(b'{"code": "\xff"}'), 200),
    "half_a_surrogate_pair": (request(b'{"code": "\\ud83d"}'), 200),
    "unknown_charset": (request(b'{"code": "1"}', "Content-Type: application/json; charset=nonsense\r\n" + KEY), 200),
    "no_content_type": (request(b'{"code": "1"}', KEY), 400),
    "strange_content_type": (request(b"{}", "Content-Type: \xe9;;;=\r\n" + KEY), 400),
    "not_compressed": (request(b"plain", JSON + KEY + "Content-Encoding: gzip\r\n"), 400),
    "key_that_is_no_ascii": (request(b"{}", JSON + "Authorization: Bearer \xe9\r\n"), 401),
    "no_key": (request(b"{}", JSON), 401),
    "too_long": (request(b'{"code": "' + b"x" * (9 << 20) + b'"}'), 413),
    "unknown_path": (b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
    "wrong_method": (b"GET /run HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
    "negative_length": (b"POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400),
    "no_http": (b"\x00\xff\xfe garbage\r\n\r\n", 400),
}


async def test_malformed_requests_get_a_sentence(monkeypatch, caplog):
    monkeypatch.setenv(sandbox_server.KEY_VARIABLE, "secret")
    answers = {}
    async with hosting(sandbox_server.application(Echo())) as url:  # type: ignore[arg-type]
        for name, (data, _) in REQUESTS.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
            writer.write(data)
            answers[name] = await reader.read()
            writer.close()
    assert not [record for record in caplog.records if record.exc_info]
    found = {name: int(answer.split(b" ", 2)[1]) for name, answer in answers.items()}
    assert found == {name: status for name, (_, status) in REQUESTS.items()}
    assert not [name for name, answer in answers.items() if b"Traceback" in answer or answer.endswith(b"\r\n\r\n")]


@pytest.mark.parametrize(
    "answer",
    [
        [],
        None,
        {"text": "x", "error": False},
        {"text": 5, "error": False, "seconds": 0.1},
        {"text": "x", "error": 0, "seconds": 0.1},
        {"text": "x", "error": False, "seconds": "0.1"},
        {"text": "x", "error": False, "seconds": -1},
    ],
)
def test_an_answer_that_is_none_is_not_an_observation(answer: Any, monkeypatch):
    async def post(self: object, path: str, body: object) -> Any:
        return answer

    monkeypatch.setattr(sandbox_server.JsonClient, "post", post)
    with pytest.raises(InfrastructureError, match="cannot be read"):
        asyncio.run(sandbox_server.RemoteSandbox("http://127.0.0.1:9").run("1"))


async def test_remote_sandbox(monkeypatch):
    """Real HTTP: an executor and a server with a key, and what an executor says of a server that refuses or is away."""
    monkeypatch.setenv(sandbox_server.KEY_VARIABLE, "secret")
    python = PythonSandbox(workers=1)
    async with hosting(sandbox_server.application(python)) as url:
        remote = sandbox_server.RemoteSandbox(url)
        results = await asyncio.gather(*(remote.run(code) for code in ("6 * 7", "1 / 0", "'é' * 3")))
        assert [result.text for result in results] == ["42", "ZeroDivisionError: division by zero", "'ééé'"]
        assert [result.is_error for result in results] == [False, True, False]
        assert results[0].usage[0].seconds > 0
        monkeypatch.setenv(sandbox_server.KEY_VARIABLE, "wrong")
        with pytest.raises(InfrastructureError, match="status 401") as failure:
            await remote.run("1")
        assert "wrong" not in str(failure.value)
        monkeypatch.setenv(sandbox_server.KEY_VARIABLE, "secret")
        python.close()
        with pytest.raises(InfrastructureError, match=r"status 503.*closed"):
            await remote.run("1")
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        await remote.run("1")
    remote.close()
    with pytest.raises(InfrastructureError, match="closed"):
        await remote.run("1")


async def test_code_that_nobody_waits_for_any_more_is_ended():
    port = free_port()
    options = ["--port", str(port), "--workers", "1", "--timeout", "600", "--isolation", "none"]
    command = [sys.executable, "-u", "-m", "orchestra_jax.tools.python.server", *options]
    server = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert b"Running on" in await asyncio.wait_for(server.stdout.readline(), 300)
        hasty = sandbox_server.RemoteSandbox(f"http://127.0.0.1:{port}", 1.0)
        for _ in range(3):
            with pytest.raises(InfrastructureError, match="no whole answer"):
                await hasty.run("import time; time.sleep(600)")
        patient = sandbox_server.RemoteSandbox(f"http://127.0.0.1:{port}", 30.0)
        assert (await patient.run("6 * 7")).text == "42"
        server.terminate()
        await asyncio.wait_for(server.communicate(), 60)
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
