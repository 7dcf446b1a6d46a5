"""The second start of a run compiles nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# argv: the cache's folder. Prints how often a program was compiled, and how often it was found.
START = """
import collections, json, sys
from dataclasses import replace
import jax
from jax import monitoring
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.training.build import keep_compiled

seen = collections.Counter()
monitoring.register_event_listener(lambda event, **_: seen.update([event.rpartition("/")[2]]))
keep_compiled(replace(RunConfig(), compilation_cache=sys.argv[1] or None))
jax.jit(lambda x: x * 2 + 1)(jax.numpy.arange(3.0)).block_until_ready()
print(json.dumps([seen["cache_misses"], seen["cache_hits"]]))
"""


def start(folder: Path | str, **environment: str) -> list[int]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMP", "JAX_PERSIST"))}
    done = subprocess.run(
        [sys.executable, "-c", START, str(folder)], env=clean | {"PYTHONPATH": str(ROOT)} | environment, text=True,
        capture_output=True, check=True, timeout=300,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def test_the_second_start_compiles_nothing(tmp_path: Path):
    compiled, found = start(tmp_path / "cache")
    assert compiled > 0
    assert found == 0
    assert start(tmp_path / "cache") == [0, compiled]


def test_a_folder_of_the_users_own_wins_and_none_is_none(tmp_path: Path):
    assert start("") == [0, 0]
    start(tmp_path / "ours", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "theirs"))
    assert not (tmp_path / "ours").exists()
