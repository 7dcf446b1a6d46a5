"""Short Python snippets: our sandbox, a new `python` for each, and a warm Jupyter kernel, in turns.

    .venv/bin/python benchmarks/tools.py --only sandbox

Every round runs a snippet again and again, one at a time for the milliseconds of one, then two at a time for executions
per second, and checks every answer. The order changes from round to round. A bare `python` and the kernel isolate
nothing and have no limits; in the kernel all snippets share one state, and it runs one at a time.

The kernel has an environment of its own:

    python3.11 -m venv .venv-jupyter && .venv-jupyter/bin/pip install jupyter_client ipykernel numpy
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from orchestra_jax.tools.python.isolation import why_not
from orchestra_jax.tools.python.sandbox import PythonSandbox

JUPYTER = Path(__file__).resolve().parents[2] / ".venv-jupyter/bin/python"
SNIPPET, NUMPY = ("print(37 * 4 + 9)", "157"), ("import numpy as np\nprint(int(np.arange(10).sum()))", "45")
PARALLEL = 2

Run = Callable[[str], Awaitable[str]]
Figures = tuple[float, float]  # median milliseconds of one, executions per second


@asynccontextmanager
async def sandbox(isolation: str) -> AsyncIterator[Run]:
    """Our sandbox, its workers started."""
    python = PythonSandbox(workers=PARALLEL, isolation=isolation)

    async def run(code: str) -> str:
        return (await python.run(code)).text

    try:
        yield run
    finally:
        python.close()


@asynccontextmanager
async def interpreter(*flags: str) -> AsyncIterator[Run]:
    """A new process for every snippet."""

    async def run(code: str) -> str:
        command = [sys.executable, *flags, "-c", code]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = await process.communicate()
        return output.decode().strip()

    yield run


async def contest(open_: Callable[[], Any], snippet: tuple[str, str], count: int) -> Figures:
    """One round; the first executions, which start workers and load libraries, are not counted."""
    code, answer = snippet
    async with open_() as run:
        await asyncio.gather(*(run(code) for _ in range(4 * PARALLEL)))
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            assert await run(code) == answer
            seconds.append(time.perf_counter() - start)
        slots = asyncio.Semaphore(PARALLEL)

        async def one() -> str:
            async with slots:
                return await run(code)

        start = time.perf_counter()
        assert set(await asyncio.gather(*(one() for _ in range(2 * count)))) == {answer}
        return statistics.median(seconds) * 1e3, 2 * count / (time.perf_counter() - start)


def kernel(process: "subprocess.Popen[str]", snippet: tuple[str, str], count: int) -> Figures:
    """The same of the kernel, timed in its client's process."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([snippet[0], count]) + "\n")
    process.stdin.flush()
    rows = json.loads(process.stdout.readline())
    assert {text for _, text in rows} == {snippet[1]}
    seconds = [seconds for seconds, _ in rows]
    return statistics.median(seconds) * 1e3, count / sum(seconds)


def measure(rounds: int) -> list[dict[str, Any]]:
    """Two rows per contestant, {what, median, best, unit, note}; one whose note says why it could not take part."""
    contests: dict[str, Callable[[], Figures]] = {}
    absent: dict[str, str] = {}
    isolations: tuple[str, ...] = ("bubblewrap", "namespaces", "none")
    for isolation in isolations:
        if isolation != "none" and (problem := why_not(isolation)):
            absent[f"sandbox, {isolation}"] = problem
            continue
        for name, snippet in (("", SNIPPET), (", numpy", NUMPY)):
            contests[f"sandbox, {isolation}{name}"] = partial(_run, partial(sandbox, isolation), snippet, 100)
    contests["python -I -S"] = partial(_run, partial(interpreter, "-I", "-S"), SNIPPET, 10)
    contests["python -I"] = partial(_run, partial(interpreter, "-I"), SNIPPET, 10)
    contests["python -I, numpy"] = partial(_run, partial(interpreter, "-I"), NUMPY, 5)
    jupyter = None
    if JUPYTER.exists():
        command = [JUPYTER, Path(__file__).with_name("jupyter_kernel.py")]
        jupyter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name, snippet in (("", SNIPPET), (", numpy", NUMPY)):
            kernel(jupyter, snippet, 8)
            contests[f"Jupyter kernel{name}"] = partial(kernel, jupyter, snippet, 50)
    else:
        absent["Jupyter kernel"] = f"{JUPYTER} is missing; {Path(__file__).name} says how to make it"
    found: dict[str, list[Figures]] = {name: [] for name in contests}
    try:
        for number in range(rounds):
            order = list(contests)
            for name in order[number % len(order) :] + order[: number % len(order)]:
                found[name].append(contests[name]())
    finally:
        if jupyter is not None:
            jupyter.communicate()
    rows = []
    for name, figures in found.items():
        times, rates = zip(*figures, strict=True)
        rows.append({"what": name, "median": statistics.median(times), "best": min(times), "unit": "ms", "note": ""})
        rows.append({"what": name, "median": statistics.median(rates), "best": max(rates), "unit": "/s", "note": ""})
    nan = float("nan")
    return rows + [{"what": name, "median": nan, "best": nan, "unit": "", "note": why} for name, why in absent.items()]


def _run(open_: Callable[[], Any], snippet: tuple[str, str], count: int) -> Figures:
    return asyncio.run(contest(open_, snippet, count))
