"""What snippets and killed runs leave: nothing in the memory of later snippets, and nothing on the disk."""

import asyncio
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra_jax.tools.python import isolation as sandbox_isolation
from orchestra_jax.tools.python.isolation import Launch, why_not
from orchestra_jax.tools.python.sandbox import PythonSandbox

REPOSITORY = Path(sandbox_isolation.__file__).parents[3]
ISOLATIONS = [
    pytest.param(name, marks=pytest.mark.skipif(bool(problem := why_not(name)), reason=f"{name}: {problem}"))
    for name in ("bubblewrap", "namespaces", "none")
]

# Shows what follows $PREFIX anywhere in the memory of its process. The kernel says which pages there are: it cannot
# write the others into a pipe. Without /proc it looks around what it has addresses of.
SCAN = """
import ctypes, gc, os, re
libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
pattern = re.compile(rb"$PREFIX([0-9a-z]{16})")
reader, writer = os.pipe()
os.set_blocking(writer, False)

def read(address, size):
    count = libc.write(writer, ctypes.c_void_p(address), size)
    return os.read(reader, count) if count > 0 else b""

def chunks(start, end):
    for chunk in range(start & -65536, end, 65536):
        data = read(chunk, 65536)
        if data and len(data) < 65536 or not data and any(read(page, 1) for page in range(chunk, chunk + 65536, 4096)):
            data = b"".join(read(page, 4096) for page in range(chunk, chunk + 65536, 4096))
        yield data

gc.unfreeze()
places = sorted([id(thing) for thing in gc.get_objects()] + [ctypes.addressof(ctypes.c_char.in_dll(libc, "environ"))])
heap = libc.sbrk(0)
stack = ctypes.cast(ctypes.c_void_p.in_dll(libc, "environ").value, ctypes.c_void_p).value
spans = [(heap - (8 << 20), heap), (stack - (1 << 20), stack + (1 << 17))]
for place in places:
    if place > spans[-1][1] or place < spans[-1][0]:
        spans.append((place - (2 << 20), place + (2 << 20)))
found, tail = set(), b""
for start, end in spans:
    for data in chunks(start, end):
        found.update(pattern.findall(tail + data))
        tail = data[-64:]
print(*sorted(text.decode() for text in found))
"""


@pytest.fixture(scope="module", params=ISOLATIONS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[PythonSandbox]:
    python = PythonSandbox(1, 60.0, isolation=request.param)
    yield python
    python.close()


async def test_a_snippet_finds_nothing_of_earlier_ones_in_its_memory(sandbox: PythonSandbox):
    tokens = iter([secrets.token_hex(8) for _ in range(9)])
    earlier = [
        f"x = 'needle-{next(tokens)}'",
        f"print('needle-{next(tokens)}')",
        f"# needle-{next(tokens)}\nprint('needle-' + '{next(tokens)}')",
        f"raise ValueError('needle-{next(tokens)}')",
        f"def f(:  # needle-{next(tokens)}",
        f"open('needle-{next(tokens)}', 'w').write('needle-{next(tokens)}' * 1000)",
    ]
    mine = secrets.token_hex(8)
    # The first letter in brackets: the pattern does not find itself.
    scan = SCAN.replace("$PREFIX", "[n]eedle-") + f"# needle-{mine}"

    for code in earlier * 2:
        await sandbox.run(code)
    assert (await sandbox.run(scan)).text == mine


def test_a_snippet_finds_no_path_of_the_host_in_its_memory(sandbox: PythonSandbox):
    if sandbox.kind == "none":
        pytest.skip("there it may walk the disk")
    folder, name = str(REPOSITORY)[1:], str(REPOSITORY)[:1]
    scan = SCAN.replace("$PREFIX([0-9a-z]{16})", f"[{name}]({re.escape(folder)})")
    assert asyncio.run(sandbox.run(scan)).text == ""


async def test_a_snippet_finds_imported_what_it_names_and_nothing_else(sandbox: PythonSandbox):
    shown = "import sys\n'numpy' in sys.modules, 'scipy' in sys.modules"
    imports = ["", "import numpy\n", "", "import numpy\nimport scipy\n", "import numpy\n"]
    none, numpy, both = "(False, False)", "(True, False)", "(True, True)"
    found = [(await sandbox.run(each + shown)).text for each in imports]
    assert found == [none, numpy, none, both, numpy]
    assert len(sandbox.pids) == 3


async def test_workers_with_other_libraries_are_kept_up_to_a_number():
    python = PythonSandbox(1, isolation="none")
    for name in ("x", "numpy", "scipy.fft", "mpmath", "numpy", "x"):
        result = await python.run(f"try:\n    import {name}\nexcept ImportError: pass")
        assert not result.is_error
        assert len(python.pids) <= 3
    python.close()


def start_and_die(folder: Path, *, with_worker: bool) -> int:
    """Kills a process while its sandbox runs a snippet; the worker's pid."""
    program = (
        "import asyncio, os, signal\n"
        "from orchestra_jax.tools.python.sandbox import PythonSandbox\n"
        "async def main():\n"
        "    python = PythonSandbox(1, 600.0, isolation='none')\n"
        "    await python.run('1')\n"
        "    task = asyncio.create_task(python.run(\"open('left', 'w'); import time; time.sleep(600)\"))\n"
        "    await asyncio.sleep(0.1)\n"
        "    print(python.pids[0], flush=True)\n"
        f"    if {with_worker}: os.killpg(python.pids[0], signal.SIGKILL)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())"
    )
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL
    return int(done.stdout)


def test_a_worker_ends_and_cleans_up_when_the_run_is_killed(tmp_path: Path):
    pid = start_and_die(tmp_path, with_worker=False)
    deadline = time.monotonic() + 100  # a sixth of the snippet
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}")
    assert list(tmp_path.iterdir()) == []


def test_the_next_run_removes_what_a_killed_one_left_and_no_more(tmp_path: Path, monkeypatch):
    start_and_die(tmp_path, with_worker=True)
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limits = {"timeout_s": 1.0, "memory_mb": 64, "max_output": 100, "file_mb": 1, "disk_mb": 1, "processes": 1}
    first, second = Launch("none", limits), Launch("none", limits)
    assert len(list(tmp_path.iterdir())) == 2
    first.stop()
    second.stop()
    assert list(tmp_path.iterdir()) == []


def test_isolated_workers_make_no_folder(sandbox: PythonSandbox, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    python = PythonSandbox(1, isolation=sandbox.kind)
    asyncio.run(python.run("1"))
    assert len(list(tmp_path.iterdir())) == (sandbox.kind == "none")
    python.close()
    assert list(tmp_path.iterdir()) == []


def test_the_worker_imports_only_what_it_is_shown(tmp_path: Path):
    """Where its files alone are there, as in bubblewrap."""
    for name in sandbox_isolation._WORKER_FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    module = "orchestra_jax.tools.python.worker"
    command = [sys.executable, "-s", "-S", "-B", "-c", f"import sys, {module}; print(sys.modules[{module!r}].__file__)"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, cwd="/", capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(tmp_path))
