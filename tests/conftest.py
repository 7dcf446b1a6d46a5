"""What every test runs under: CPU, eight virtual devices, one cache of compilations and one of bytecode for all."""

import contextlib
import fcntl
import gc
import os
import random
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]


def _set_environment() -> None:
    """Must run before anything imports jax. `JAX_PLATFORMS=cuda pytest -m gpu` keeps its platform."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flags = os.environ.get("XLA_FLAGS", "").split()
    for flag, value in {
        "--xla_force_host_platform_device_count": "8",
        # Workers share two cores, and one thread makes sums reproducible.
        "--xla_cpu_multi_thread_eigen": "false",
    }.items():
        if not any(given.partition("=")[0] == flag for given in flags):
            flags.append(f"{flag}={value}")
    os.environ["XLA_FLAGS"] = " ".join(flags)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_ROOT / ".pytest_cache" / "jax"))
    # All programs, however small: a run has some forty that take 18 ms to compile and 9 ms to read.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # no Python stack for every operation: less CPU
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("MPLBACKEND", "agg")
    # Without bytecode every process compiles its imports from source: 8 s of CPU in each one that trains.
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(_ROOT / ".pytest_cache" / "bytecode"))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.pycache_prefix, sys.dont_write_bytecode = os.environ["PYTHONPYCACHEPREFIX"], False


_set_environment()
# Imports make no garbage, and looking for it again and again is a quarter of their time.
gc.disable()

# After the environment: hypothesis' plugin may import what imports jax.
import yaml  # noqa: E402
from hypothesis import settings  # noqa: E402

# Hundreds of configurations are composed, and libyaml reads their files faster.
yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Compilation makes the first example slow; the seed is fixed so that a failure comes back.
settings.register_profile("orchestra", deadline=None, derandomize=True)
settings.load_profile("orchestra")


def pytest_configure() -> None:
    # Workers inherit what the first process draws: all of them need the same order.
    os.environ.setdefault("TEST_ORDER", str(secrets.randbelow(100_000)))


@contextlib.contextmanager
def _alone_until_bytecode_is_there() -> Iterator[None]:
    """Lets the first worker compile what all import, alone: workers that start at once compile it once each."""
    folder = Path(os.environ["PYTHONPYCACHEPREFIX"])
    done = folder / "complete"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if not done.exists():
            lock = stack.enter_context((folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        done.touch()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    distributes = not hasattr(session.config, "workerinput") and session.config.getoption("numprocesses", None)
    with contextlib.nullcontext() if distributes else _alone_until_bytecode_is_there():
        result = yield
    # What is imported stays: no collection goes over it again, and what commands set (config/command.py) serves tests.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffles the files and the tests of each; a file stays in one piece because its tests share what they build.

    Comes first: pytest then brings together what shares a parametrized fixture.
    """
    order = random.Random(os.environ["TEST_ORDER"])
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    shuffled = list(files.values())
    order.shuffle(shuffled)
    for tests in shuffled:
        order.shuffle(tests)
    items[:] = [item for tests in shuffled for item in tests]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"In random order; the same again with TEST_ORDER={os.environ['TEST_ORDER']}")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data (tokenizer, question files); skips where ORCHESTRA_DATA is unset."""
    folder = os.environ.get("ORCHESTRA_DATA")
    if not folder:
        pytest.skip("ORCHESTRA_DATA is not set")
    return Path(folder)


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The folder of SmolLM2-135M-Instruct; skips where it was not made."""
    folder = Path(os.environ.get("SMOLLM2", _ROOT / "checkpoints" / "smollm2"))
    if not folder.is_dir():
        pytest.skip(f"no pretrained policy at {folder}: make smollm2, or set SMOLLM2")
    return folder


@pytest.fixture
async def stub():
    """A server of OpenAI's API, which counts what it bills."""
    from tests.tools.openai_stub import StubOpenAI

    async with StubOpenAI() as server:
        yield server
