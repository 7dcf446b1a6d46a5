"""The second start of a run compiles nothing."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax

from orchestra_jax.config.schema import RunConfig
from orchestra_jax.training.build import keep_compiled

ROOT = Path(__file__).resolve().parents[2]
# argv: the cache's folder for each start. They are one process after the other, forked from one that has imported what
# all of them import. Prints how often each compiled a program, and how often it found one.
STARTS = """
import collections, json, os, sys
from dataclasses import replace
import jax
from jax import monitoring
from orchestra_jax.config.schema import RunConfig
from orchestra_jax.training.build import keep_compiled

for folder in sys.argv[1:]:
    child = os.fork()
    if not child:
        seen = collections.Counter()
        monitoring.register_event_listener(lambda event, **_: seen.update([event.rpartition("/")[2]]))
        keep_compiled(replace(RunConfig(), compilation_cache=folder or None))
        jax.jit(lambda x: x * 2 + 1)(jax.numpy.arange(3.0)).block_until_ready()
        print(json.dumps([seen["cache_misses"], seen["cache_hits"]]), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def start(*folders: Path | str) -> list[list[int]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMP", "JAX_PERSIST"))}
    done = subprocess.run(
        [sys.executable, "-c", STARTS, *map(str, folders)], env=clean | {"PYTHONPATH": str(ROOT)},
        text=True, capture_output=True, check=True, timeout=300,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def test_the_second_start_compiles_nothing_and_none_is_none(tmp_path: Path):
    (compiled, found), second, without = start(tmp_path / "cache", tmp_path / "cache", "")
    assert compiled > 0
    assert found == 0
    assert second == [0, compiled]
    assert without == [0, 0]


def test_a_folder_of_the_users_own_wins(tmp_path: Path):
    """tests/conftest.py names one in JAX_COMPILATION_CACHE_DIR, which JAX reads when it is imported."""
    own = jax.config.values["jax_compilation_cache_dir"]
    assert own == os.environ["JAX_COMPILATION_CACHE_DIR"]
    keep_compiled(replace(RunConfig(), compilation_cache=str(tmp_path / "ours")))
    assert jax.config.values["jax_compilation_cache_dir"] == own
