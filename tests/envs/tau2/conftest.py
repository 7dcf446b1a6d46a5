"""The package: one that is made for the tests, and the real one where it is installed."""

import importlib
import sys
from dataclasses import replace

import pytest

from orchestra_jax.config.schema import EnvConfig, RunConfig
from orchestra_jax.config.tools import MenuRule, ToolsConfig
from orchestra_jax.envs.tau2.environment import Tau2Environment
from orchestra_jax.envs.tau2.package import _STAYS
from tests.envs.tau2 import made


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Let the made package be found."""
    root = str(made.write(tmp_path_factory.mktemp("package")))
    sys.path.insert(0, root)
    importlib.invalidate_caches()
    real = sys.modules.pop(_STAYS, None)  # a tool of the bank imports it when it is called
    yield
    sys.path.remove(root)
    importlib.invalidate_caches()
    sys.modules.pop(_STAYS, None)
    if real is not None:
        sys.modules[_STAYS] = real


def cfg(**options):
    env = EnvConfig(name="tau2", options={"domains": ["airline"], **options})
    return replace(RunConfig(), env=env, tools=ToolsConfig(menu=MenuRule(form="none")))


@pytest.fixture(scope="module")
def environment(package):
    """Both made domains, all tasks."""
    return Tau2Environment(cfg(domains=["airline", "telecom"], evaluate="all"))


@pytest.fixture(scope="module")
def bank(package):
    """The made bank, all tasks."""
    return Tau2Environment(cfg(domains=["banking"], evaluate="all"))
