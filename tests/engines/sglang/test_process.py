"""The life of a server process, with a stand-in for SGLang: ready, dead, restarted, stopped, never left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from orchestra_jax.engines.sglang.process import ServerConfig, SGLangProcess, reviver
from orchestra_jax.io.http_json import JsonClient
from orchestra_jax.types import InfrastructureError

SECONDS = 120.0
ROOT = str(Path(__file__).resolve().parents[3])
# A process of its own beside it, as SGLang has; answers /health, and writes what it was started with.
SERVER = """
import http.server, os, subprocess, sys
flags = dict(part.split("=", 1) for part in sys.argv[1:] if "=" in part)
print("loading", flags["--weight-version"], os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
if "--broken" in sys.argv:
    sys.exit("no memory left")
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
open(flags["--model-path"] + "/pids", "a").write(f"{os.getpid()} {child.pid}\\n")

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if "--never-ready" in sys.argv else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

http.server.HTTPServer((flags["--host"], int(flags["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    package = tmp_path / "packages" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(textwrap.dedent(SERVER))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    (tmp_path / "model").mkdir()
    return ServerConfig(
        python=sys.executable, model=tmp_path / "model", log=tmp_path / "logs" / "log", version=3, ready_s=SECONDS
    )


@pytest.fixture
async def start(config):
    """Starts a server with changed settings; stops it at the end."""
    servers = []

    async def begin(**changes):
        server = SGLangProcess(ServerConfig(**(vars(config) | changes)))
        servers.append(server)
        async with asyncio.timeout(SECONDS):
            await server.start()
        return server

    yield begin
    for server in servers:
        await server.stop()


def pids(config):
    return [int(word) for word in (Path(config.model) / "pids").read_text().split()]


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(found):
    async with asyncio.timeout(SECONDS):
        while any(runs(pid) for pid in found):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_server_is_waited_for_and_stopped_with_all_its_processes(start, config):
    server = await start(gpus=(1, 3))
    assert server.alive
    assert "loading 3 1,3" in server.log_tail()
    client = JsonClient(server.url)
    assert await client.get("/health", timeout_s=30) == {}
    await client.close()
    found = pids(config)
    assert all(runs(pid) for pid in found)
    await server.stop()
    await server.stop()
    await gone(found)
    assert not server.alive


async def test_a_server_that_dies_says_its_last_words(start):
    with pytest.raises(InfrastructureError, match=r"(?s)died before it was ready.*no memory left"):
        await start(flags=("--broken",))


async def test_a_server_that_is_not_ready_in_time_is_stopped(start, config):
    with pytest.raises(InfrastructureError, match=r"not ready after 0\.5 s; raise its ready_s"):
        await start(flags=("--never-ready",), ready_s=0.5)
    if (Path(config.model) / "pids").exists():
        await gone(pids(config))


async def test_a_killed_server_is_restarted_on_its_port_and_nothing_of_the_old_one_stays(start, config):
    server = await start()
    old = pids(config)
    await server.revive()
    assert pids(config) == old  # it runs: left alone
    os.kill(old[0], signal.SIGKILL)
    await gone(old)
    async with asyncio.timeout(SECONDS):
        while server.alive:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await reviver([server])(server.url, False)
    assert server.alive
    new = pids(config)[2:]
    assert len(new) == 2
    assert not set(new) & set(old)


async def test_a_hung_server_is_killed_and_started_again(start, config):
    server = await start()
    old = pids(config)
    os.kill(old[0], signal.SIGSTOP)
    async with asyncio.timeout(SECONDS):
        await reviver([server])(server.url, True)
    await gone(old)
    assert server.alive
    assert len(pids(config)) == 4


async def test_no_server_outlives_the_process_that_started_it(config):
    program = textwrap.dedent(f"""
        import asyncio, os, signal
        from orchestra_jax.engines.sglang.process import ServerConfig, SGLangProcess
        server = SGLangProcess(ServerConfig({config.python!r}, {str(config.model)!r}, {str(config.log)!r}))
        asyncio.run(server.start())
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    path = os.pathsep.join((ROOT, os.environ["PYTHONPATH"]))
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path}, timeout=SECONDS,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    await gone(pids(config))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"python": "/nowhere/python"}, r"No interpreter '/nowhere/python' .*requirements/README\.md.*\.$"),
        ({"model": "/nowhere/model"}, r"No model folder '/nowhere/model' .*\.$"),
    ],
)
async def test_what_is_missing_is_named(start, changes, sentence):
    with pytest.raises(FileNotFoundError, match=sentence):
        await start(**changes)


def test_the_cpu_preset_and_own_flags(config):
    cpu = ServerConfig(**(vars(config) | {"device": "cpu", "max_length": 64, "flags": ("--log-level=error",)}))
    command = cpu.command(31000)
    assert command[1:3] == ["-m", "sglang.launch_server"]
    assert {"--device=cpu", "--attention-backend=torch_native", "--context-length=70", "--port=31000"} <= set(command)
    assert command[-1] == "--log-level=error"
    assert cpu.environment()["CUDA_VISIBLE_DEVICES"] == ""
    assert cpu.environment()["SGLANG_PLATFORM"] == "torchcpu"
    assert "--tp-size=2" in ServerConfig(**(vars(config) | {"gpus": (0, 1)})).command(1)
    with pytest.raises(ValueError, match=r"device 'tpu' is unknown; choose cuda or cpu\.$"):
        SGLangProcess(ServerConfig(**(vars(config) | {"device": "tpu"})))
