"""PythonSandbox: what a snippet shows, what it cannot do, and what a dead worker does to the others."""

import ast
import asyncio
import importlib.util
import os
import random
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from orchestra_jax.tools.python import isolation as sandbox_isolation
from orchestra_jax.tools.python import libraries, snippet
from orchestra_jax.tools.python import worker as sandbox_worker
from orchestra_jax.tools.python.common import FLOOD_BYTES
from orchestra_jax.tools.python.libraries import named_libraries
from orchestra_jax.tools.python.sandbox import PythonSandbox, observe
from orchestra_jax.types import InfrastructureError, ToolResult

SOURCE = Path(sandbox_worker.__file__).parents[3]


def run(code: str, **options: object) -> ToolResult:
    return run_all([code], **options)[0]


def run_all(codes: list[str], **options: object) -> list[ToolResult]:
    async def main() -> list[ToolResult]:
        sandbox = PythonSandbox(**options)  # type: ignore[arg-type]
        try:
            return list(await asyncio.gather(*(sandbox.run(code) for code in codes)))
        finally:
            sandbox.close()

    return asyncio.run(main())


CASES = [
    ("2 + 3", "5", False),
    ("print('hello')", "hello", False),
    ("print('a'); x = 3\nx * 2", "a\n6", False),
    ("x = 1", "", False),
    ("", "", False),
    ("None", "", False),
    ("'text'", "'text'", False),
    ("x = [\n  1,\n  2,\n]\nx", "[1, 2]", False),
    ("def f(n):\n    return n\n\n# note\nf(\n  4\n)\n", "4", False),
    ("for i in range(2):\n    print(i)", "0\n1", False),
    ("x = 1; x", "1", False),
    ('"""a\nb"""', "'a\\nb'", False),
    ("1 + \\\nint(2)", "3", False),
    ("from __future__ import annotations\nx = 5\nx", "5", False),
    ("from dataclasses import dataclass\n@dataclass\nclass A:\n    n: int\nA(2)", "A(n=2)", False),
    ("print('é\\udc80')", "é\\udc80", False),
    ("1 / 0", "ZeroDivisionError: division by zero", True),
    ("print('before')\nundefined", "before\nNameError: name 'undefined' is not defined", True),
    ("def f(:\n  pass", "SyntaxError: invalid syntax (line 1)", True),
    ("raise ValueError", "ValueError", True),
    ("input()", "EOFError: EOF when reading a line", True),
    ("import sys; sys.exit()", "", False),
    ("import sys; sys.exit(3)", "SystemExit: 3", True),
    ("import os; os._exit(4)", "The code ended with exit code 4.", True),
    ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "The code was killed by SIGKILL.", True),
    ("import ctypes\nctypes.string_at(0)", "The code was killed by SIGSEGV.", True),
    ("import os\nos.kill(os.getpid(), 40)", "The code was killed by signal 40.", True),
    ("import io, sys\nprint('a')\nsys.stdout = io.StringIO()\nprint('b')", "a", False),
    ("import io, sys\nprint('a')\nsys.stdout = io.StringIO()\n1 / 0", "a\nZeroDivisionError: division by zero", True),
    ("import sys\nprint('a')\nsys.stdout.close()\n1 / 0", "a\nZeroDivisionError: division by zero", True),
    ("class E(Exception):\n  def __str__(self): raise self\nraise E", "E", True),
    ("import os\nos.closerange(0, 9)\n1 / 0", "", True),
    ("import os\nos.write(1, b'\\xff\\xed\\xa0\\xbd')", "\ufffd" * 4 + "4", False),
    (
        "'\ud83d'",
        "UnicodeEncodeError: 'utf-8' codec can't encode character '\\ud83d' in position 1: surrogates not allowed",
        True,
    ),
    ("import sys\nprint('o'); print('e', file=sys.stderr); print('o')", "o\ne\no", False),
    ("import os\ndict(os.environ), os.listdir()", "({}, [])", False),
    ("import threading\nthreading.Thread(target=lambda: print('late')).start()", "late", False),
    ("open('f', 'w').write('x' * 2 ** 21)", "OSError: [Errno 27] File too large", True),
    ("import os\nos.fork() or os._exit(0)\nprint('parent')", "parent", False),
]


def test_observations():
    results = run_all([code for code, _, _ in CASES], file_mb=1)
    for (code, text, error), result in zip(CASES, results, strict=True):
        assert (result.text, result.is_error) == (text, error), code
        assert result.usage[0].seconds > 0


@pytest.mark.parametrize(
    "code",
    [
        "x = 1; x",
        "x = [\n1\n]\nx",
        "f'''\na'''",
        "1 + \\\n2",
        "if 1:\n  3\nelse:\n  4",
        "(\n5\n)",
        "x = 6",
        "7 # c\n\n# d",
        "8;",
        '"""\na\n"""',
    ],
)
def test_guessed_last_statement_is_the_one_of_the_ast(code: str):
    def value(parts: list[types.CodeType]) -> object:
        scope: dict[str, object] = {}
        return [eval(part, scope) for part in parts][-1]

    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    parts = [compile(tree, "<code>", "exec")]
    if last is not None:
        parts.append(compile(ast.Expression(last.value), "<code>", "eval"))
    assert value(snippet.compile_parts(code)) == value(parts)


def test_memory_bomb():
    assert run("x = bytearray(2 ** 30)").text == "MemoryError"
    result = run("x = []\nwhile True: x.append('y' * 10 ** 6)", memory_mb=128)
    assert result.is_error
    assert "MemoryError" in result.text


def test_huge_output_is_cut_in_the_middle():
    result = run("print('a' * 9000 + 'z')\n1 / 0", max_output=400)
    assert result.text.startswith("aaa")
    assert result.text.endswith("az\nZeroDivisionError: division by zero")
    assert "characters cut" in result.text
    assert len(result.text) < 500
    result = run("while True: print('x' * 1000)", max_output=400)
    assert result.is_error
    assert "printed more than" in result.text
    assert len(result.text) < 600


def test_same_code_same_output_whatever_ran_before():
    code = "import random\nrandom.random(), hash('a'), set('orchestra')"
    results = run_all([code, "import random; random.seed(5)", code, code], workers=1)
    assert results[0].text == results[2].text == results[3].text == run(code).text


def test_the_working_directory_starts_empty_and_is_removed_in_the_end():
    code = "import os\nbefore = os.listdir()\nopen('left', 'w').write('x')\nos.chmod('.', 0o500)\nbefore, os.getcwd()"
    results = run_all([code] * 3, workers=1)
    for result in results:
        before, directory = eval(result.text)
        assert before == []
        assert not os.path.exists(directory)


async def test_killed_worker_fails_its_call_only():
    sandbox = PythonSandbox(workers=1)
    assert (await sandbox.run("1")).text == "1"
    (pid,) = sandbox.pids
    call = asyncio.create_task(sandbox.run("import time\ntime.sleep(60)"))
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="died"):
        await call
    assert (await sandbox.run("2")).text == "2"
    (pid,) = sandbox.pids
    os.kill(pid, signal.SIGKILL)  # while idle
    await asyncio.sleep(0.1)
    with pytest.raises(InfrastructureError, match="died"):
        await sandbox.run("3")
    assert (await sandbox.run("4")).text == "4"
    sandbox.close()


async def test_cancelled_call_gives_its_worker_back():
    sandbox = PythonSandbox(workers=1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sandbox.run("import time\ntime.sleep(60)"), 0.3)
    assert (await sandbox.run("5")).text == "5"
    sandbox.close()


def test_hundred_concurrent_snippets_of_several_event_loops():
    sandbox = PythonSandbox(workers=2)

    async def main() -> list[ToolResult]:
        return await asyncio.gather(*(sandbox.run(f"import math\nmath.isqrt({i} ** 2)") for i in range(100)))

    for _ in range(2):
        assert [result.text for result in asyncio.run(main())] == [str(i) for i in range(100)]
    sandbox.close()
    with pytest.raises(InfrastructureError, match="closed"):
        asyncio.run(main())


async def test_close_fails_calls_in_flight():
    sandbox = PythonSandbox(workers=1)
    calls = [asyncio.create_task(sandbox.run("import time\ntime.sleep(60)")) for _ in range(2)]
    await asyncio.sleep(0.2)
    sandbox.close()
    for call in calls:
        with pytest.raises(InfrastructureError, match="closed"):
            await call
    assert sandbox.pids == ()


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="workers >= 1"):
        PythonSandbox(workers=0)


def test_long_code_passes_the_socket():
    text = "x" * 3_000_000
    assert run(f"len('{text}')").text == str(len(text))


async def test_without_isolation_it_says_so_and_still_works():
    python = PythonSandbox(workers=1, timeout_s=1.0, isolation="none")
    results = [await python.run(code) for code in ("1 + 1", "while True: pass", "import os\nos.fork()\n1", "2")]
    assert [result.text for result in results[::3]] == ["2", "2"]
    assert "time-out" in results[1].text
    assert python.kind == "none"
    # A child that stays behind in the snippet's group is killed with it.
    await python.run("import os, time\nif os.fork() == 0:\n  time.sleep(3)")
    python.close()


@pytest.mark.parametrize("isolation", ["bubblewrap", "namespaces", "none"])
def test_numerical_libraries_work_within_the_limits(isolation: str):
    """OpenBLAS must not start a thread for every core: they count as processes, and reserve memory."""
    if isolation != "none" and (problem := sandbox_isolation.why_not(isolation)):
        pytest.skip(problem)
    codes = [
        "import numpy as np\nround(float(np.linalg.det(np.eye(200) * 1.01)), 4)",
        "from scipy import optimize\nround(optimize.brentq(lambda x: x ** 2 - 2, 0, 2), 6)",
        "import numpy\nnumpy.random.rand()",
        "__import__('mpmath').mpf(2)",  # not named in an import: the snippet itself loads it
        "import numpy\nnumpy.random.rand()",
    ]
    results = run_all(codes, workers=1, memory_mb=256, isolation=isolation)
    assert [result.text for result in results[:2]] == ["7.316", "1.414214"]
    assert results[2].text == results[4].text
    if importlib.util.find_spec("mpmath"):
        assert results[3].text == "mpf('2.0')"


def test_libraries_that_a_snippet_names():
    code = "import numpy as np, os\nfrom scipy.stats import norm\nfrom scipy import optimize\nimport scipy.conftest"
    assert named_libraries(code) == {"numpy.random", "scipy", "scipy.stats", "scipy.optimize"}
    assert named_libraries("print('numpy')") == set()
    assert named_libraries("import numpy\nimport sympy") == {"numpy.random", "sympy"}
    assert named_libraries("import os, mpmath as mp\nfrom scipy import (stats, linalg)") == {
        "mpmath", "scipy", "scipy.stats", "scipy.linalg",
    }  # fmt: skip
    assert named_libraries("import\nimport ,\nfrom . import numpy\nfrom scipy import") == set()


def test_without_any_isolation_it_refuses_to_start(monkeypatch):
    monkeypatch.setattr(sandbox_isolation, "why_not", lambda name: f"no {name} here")
    for isolation in ("auto", "bubblewrap", "namespaces"):
        with pytest.raises(sandbox_isolation.IsolationError, match=r"install bubblewrap.*isolation: none"):
            PythonSandbox(isolation=isolation)  # type: ignore[arg-type]
    PythonSandbox(isolation="none").close()
    with pytest.raises(ValueError, match="one of auto, bubblewrap, namespaces, none"):
        PythonSandbox(isolation="docker")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("echo 'bwrap: no permission to create a namespace' >&2; exit 1", "no permission to create a namespace"),
        (
            "for last; do :; done; "  # the worker's options
            f'PYTHONPATH={SOURCE} exec {sys.executable} -S -P {sandbox_worker.__file__} "$last"',
            "not the first process",
        ),
    ],
)
def test_a_bubblewrap_that_fails_is_no_isolation(program: str, reason: str, tmp_path, monkeypatch):
    """One that the kernel refuses, and one that isolates nothing: the worker does not run where it can see the host."""
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sandbox_isolation.why_not.cache_clear()
    try:
        with pytest.raises(sandbox_isolation.IsolationError, match=reason):
            PythonSandbox(isolation="bubblewrap")
    finally:
        sandbox_isolation.why_not.cache_clear()


@pytest.mark.parametrize("isolation", ["namespaces", "none"])
def test_limits_that_the_machine_sets_are_not_blamed_on_the_code(isolation: str):
    """As on many clusters: files, stack, open files, processor time and memory below what we would allow."""
    if isolation != "none" and (problem := sandbox_isolation.why_not(isolation)):
        pytest.skip(problem)
    program = (
        "import asyncio, resource\n"
        "from orchestra_jax.tools.python.sandbox import PythonSandbox\n"
        "limits = {'FSIZE': 1 << 20, 'STACK': 4 << 20, 'NOFILE': 50, 'CPU': 9, 'SIGPENDING': 99, 'AS': 9 << 27}\n"
        f"python = PythonSandbox(1, isolation={isolation!r})\n"
        "for name, most in limits.items(): resource.setrlimit(getattr(resource, f'RLIMIT_{name}'), (most, most))\n"
        "print(asyncio.run(python.run('6 * 7')).text)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == "42\n"


def test_a_worker_in_which_no_snippet_can_run_says_so(tmp_path, monkeypatch):
    """Here because of a library that it imports for them; it is not the code's fault."""
    (tmp_path / "broken.py").write_text("import os\nos.register_at_fork(after_in_child=lambda: os._exit(3))")
    monkeypatch.setattr(sandbox_isolation, "_shown", lambda _: ({}, {}, [str(tmp_path)], []))
    monkeypatch.setattr(libraries, "named_libraries", lambda code: frozenset({"broken"}))
    with pytest.raises(InfrastructureError, match="an empty snippet ends with status 768"):
        run("import broken", isolation="none")


def test_a_worker_that_cannot_isolate_itself_runs_nothing(monkeypatch):
    """What worked when the sandbox was made may be refused later."""
    monkeypatch.setattr(sandbox_isolation, "why_not", lambda name: None)
    monkeypatch.setattr(sandbox_isolation, "_shown", lambda _: ({"/nowhere": "/nowhere"}, {}, [], []))
    with pytest.raises(InfrastructureError, match=r"could not isolate itself: .*nowhere"):
        run("print(1)", isolation="namespaces")


LIMITS = {"timeout_s": 2.0, "memory_mb": 128, "max_output": 100}


def test_every_way_to_end_has_words():
    for status in range(1 << 16):
        text, error = observe(b"", status, "", LIMITS)
        assert error == (status != 0)
        assert not os.WIFSIGNALED(status) or "killed by" in text or "time-out" in text
    assert observe(b"", 40, "", LIMITS) == ("The code was killed by signal 40.", True)
    assert observe(b"", 9, "", LIMITS) == ("The code was killed by SIGKILL.", True)
    assert observe(b"a\n", 4 << 8, "", LIMITS) == ("a\nThe code ended with exit code 4.", True)
    assert observe(b"", 9, "memory", LIMITS)[0].endswith("more than 128 MiB of memory.")
    assert observe(b"", 9, "time", LIMITS)[0] == "The code was stopped after 2 s (time-out)."


def test_every_output_is_text():
    draw = random.Random(0)
    for _ in range(500):
        text, _ = observe(draw.randbytes(draw.randrange(400)), 0, "", LIMITS)
        text.encode()
        assert len(text) < 200
    assert observe(b"\xed\xa0\xbd", 0, "", LIMITS) == ("\ufffd" * 3, False)  # half a surrogate pair
    assert "printed more than" in observe(b"x" * (FLOOD_BYTES + 1), 0, "", LIMITS)[0]
    assert "printed" not in observe(b"x" * FLOOD_BYTES, 0, "", LIMITS)[0]
