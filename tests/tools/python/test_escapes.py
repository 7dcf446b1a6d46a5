"""Attacks on the sandbox: each must be contained, leave the worker alive, and leave nothing for the next snippet.

An attack is a snippet that shows ESCAPED where it got what it wanted. It is contained when it does not, and when its
observation matches what a sandbox that holds makes it say. Those that are safe to lose run without isolation too, and
must get out there: an attack that fails for a reason of its own would prove nothing.

Every test runs with each isolation that works on this machine: bubblewrap, and our own namespaces.
"""

import asyncio
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from orchestra_jax.tools.python.isolation import why_not
from orchestra_jax.tools.python.sandbox import PythonSandbox
from orchestra_jax.types import ToolResult
from tests.tools.python.attacks import ATTACKS, HARMLESS, PRELUDE

LIMITS = {"workers": 1, "timeout_s": 2.0, "memory_mb": 128, "file_mb": 4, "disk_mb": 8, "processes": 16}

# Of every snippet that follows an attack: it works, finds no file, no environment and no other process.
AFTER = """
import os
try:
    os.kill(-1, 0)
    others = "others"
except ProcessLookupError:
    others = "nobody"
print(2 + 2, os.listdir(), os.listdir("/tmp"), os.listdir("/dev/shm"), dict(os.environ), others)
"""
HEALTHY = "4 [] [] [] {} nobody"

ISOLATIONS = [
    pytest.param(name, marks=pytest.mark.skipif(bool(problem := why_not(name)), reason=f"{name}: {problem}"))
    for name in ("bubblewrap", "namespaces")
]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Things of this machine that no snippet may reach, by the names that attacks call them."""
    secret = secrets.token_hex(16)
    folder = tmp_path_factory.mktemp("host")
    home = Path.home() / f".orchestra-canary-{os.getpid()}"
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"OPENAI_API_KEY": secret})
    listeners = [socket.socket(), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    try:
        home.write_text(secret)
        for listener, address in zip(listeners, [("127.0.0.1", 0), f"\0{secret}", f"{folder}/socket"], strict=True):
            listener.bind(address)
            listener.listen()
        yield {
            "$SECRET": secret,
            "$FOLDER": str(folder),
            "$HOME": str(home),
            "$ABSTRACT": secret,
            "$PORT": str(listeners[0].getsockname()[1]),
            "$VICTIM": str(victim.pid),
            "$REPOSITORY": str(Path(__file__).parents[3]),
        }
    finally:
        for listener in listeners:
            listener.close()
        victim.kill()
        victim.communicate()
        home.unlink(missing_ok=True)


def attack(name: str, host: Mapping[str, str]) -> str:
    code = PRELUDE + ATTACKS[name][0]
    for placeholder, value in host.items():
        code = code.replace(placeholder, value)
    return code


@pytest.fixture(scope="module", params=ISOLATIONS)
def sandboxes(request: pytest.FixtureRequest) -> Iterator[Mapping[bool, PythonSandbox]]:
    """A sandbox for attacks that a time-out may end, and one for those that another limit must end, however slowly."""
    found = {}
    for timed_out in (True, False):
        limits = LIMITS if timed_out else {**LIMITS, "timeout_s": 60.0}
        python = found[timed_out] = PythonSandbox(**limits, isolation=request.param)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENAI_API_KEY", "never-shown")
            assert asyncio.run(python.run(AFTER)).text == HEALTHY
        assert python.kind == request.param
    yield found
    for python in found.values():
        python.close()


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_contained(name: str, sandboxes: Mapping[bool, PythonSandbox], host: Mapping[str, str]):
    sandbox = sandboxes[bool(re.search("time|stopped", ATTACKS[name][1]))]
    before = sandbox.pids

    async def main() -> list[ToolResult]:
        return [await sandbox.run(attack(name, host)), await sandbox.run(AFTER)]

    result, after = asyncio.run(main())
    assert "ESCAPED" not in result.text
    assert host["$SECRET"] not in result.text
    assert re.search(ATTACKS[name][1], result.text), result.text
    assert after.text == HEALTHY
    assert sandbox.pids == before
    assert not os.path.exists(f"{host['$FOLDER']}/written")


@pytest.mark.parametrize("name", HARMLESS)
def test_attack_gets_out_where_nothing_isolates(name: str, host: Mapping[str, str]):
    async def main() -> ToolResult:
        python = PythonSandbox(**LIMITS, isolation="none")  # type: ignore[arg-type]
        try:
            return await python.run(attack(name, host))
        finally:
            python.close()

    try:
        assert "ESCAPED" in asyncio.run(main()).text
    finally:
        Path(host["$FOLDER"], "written").unlink(missing_ok=True)
