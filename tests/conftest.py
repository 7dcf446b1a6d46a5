"""What every test runs under: CPU, eight virtual devices, one cache of compilations and one of bytecode for all."""

import os
import sys
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
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("MPLBACKEND", "agg")
    # Without bytecode every process compiles its imports from source: 8 s of CPU in each one that trains.
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(_ROOT / ".pytest_cache" / "bytecode"))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.pycache_prefix, sys.dont_write_bytecode = os.environ["PYTHONPYCACHEPREFIX"], False


_set_environment()

# After the environment: hypothesis' plugin may import what imports jax.
from hypothesis import settings  # noqa: E402

# Compilation makes the first example slow; the seed is fixed so that a failure comes back.
settings.register_profile("orchestra", deadline=None, derandomize=True)
settings.load_profile("orchestra")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data (tokenizer, question files); skips where ORCHESTRA_DATA is unset."""
    folder = os.environ.get("ORCHESTRA_DATA")
    if not folder:
        pytest.skip("ORCHESTRA_DATA is not set")
    return Path(folder)
