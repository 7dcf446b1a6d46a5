"""The package: one that is made for the tests, and the real one where it is installed."""

import importlib
import sys
from dataclasses import replace

import pytest

from orchestra_jax.config.schema import EnvConfig, RunConfig
from orchestra_jax.envs.bfcl.environment import BFCLEnvironment
from orchestra_jax.envs.bfcl.package import PACKAGE
from tests.envs.bfcl import made


def forget():
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def package(monkeypatch, tmp_path):
    """Make the package importable; takes the arguments of `made.write`."""

    def install(*arguments):
        monkeypatch.syspath_prepend(made.write(tmp_path, *arguments))
        forget()

    yield install
    forget()


def cfg(**options):
    return replace(RunConfig(), env=EnvConfig(name="bfcl", options=options))


@pytest.fixture
def environment(package):
    package()
    return BFCLEnvironment(cfg())
