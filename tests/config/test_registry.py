"""Names of registries: own ones, those of installed packages, and files of the user's own."""

import re
import sys

import pytest

from orchestra_jax.config.registry import Registry
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.registry import ENVIRONMENTS
from orchestra_jax.models.families import FAMILIES
from orchestra_jax.training.loggers.base import LOGGERS


@pytest.fixture
def registry():
    return Registry("greeting", "greet.name", builtin={"hello": "hi", "path": "posixpath:join"})


def test_an_object_and_a_lazy_name() -> None:
    def mine() -> int:
        return 1

    registry = Registry("greeting", "greet.name", builtin={"mine": mine, "path": "posixpath:join"})

    assert registry.get("mine") is mine
    assert registry.get("path")("a", "b") == "a/b"
    assert registry.names() == ("mine", "path")


def test_a_file_of_the_working_directory(registry, tmp_path, monkeypatch) -> None:
    (tmp_path / "my_greetings.py").write_text("def wave():\n    return 'o/'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    assert registry.get("my_greetings:wave")() == "o/"


def test_an_entry_point_of_an_installed_package(tmp_path, monkeypatch) -> None:
    info = tmp_path / "greetings-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: greetings\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[test.greetings]\nformal = posixpath:join\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry("greeting", "greet.name", group="test.greetings", builtin={})

    assert registry.names() == ("formal",)
    assert registry.get("formal")("a", "b") == "a/b"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("helo", ["did you mean hello", "greet.name=helo"]),
        ("no_such_module_here:x", ["no module no_such_module_here", "folder that holds it"]),
        ("posixpath:nothing", ["has no 'nothing'"]),
    ],
)
def test_what_is_not_there_is_one_sentence(registry, name, words) -> None:
    with pytest.raises(ConfigError) as error:
        registry.get(name)

    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


class Greeting:
    language = "English"

    def greet(self) -> None: ...

    def leave(self) -> None: ...


def test_a_class_of_another_kind_is_one_sentence_and_says_what_it_lacks(tmp_path, monkeypatch) -> None:
    lines = ["class Half:", "    language = 'x'", "    def greet(self): ..."]
    lines += ["class Whole(Half):", "    def leave(self): ...", "def made(): ...", "class Empty: ..."]
    (tmp_path / "own_greetings.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    registry = Registry("greeting", "greet.name", builtin={"hello": Greeting}, kind=Greeting)

    for name in ("hello", "own_greetings:Whole", "own_greetings:made"):  # what a function makes is not known before
        registry.get(name)
    for name, lacking in (("Half", "leave"), ("Empty", "greet, language, leave")):
        with pytest.raises(ConfigError) as error:
            registry.get(f"own_greetings:{name}")
        said = f"greet.name=own_greetings:{name} is no greeting (see {__name__}): it lacks {lacking}."
        assert str(error.value) == said


@pytest.mark.parametrize(
    ("registry", "concept", "module"),
    [
        (FAMILIES, "model family", "models.base"),
        (ENVIRONMENTS, "environment", "envs.base"),
        (LOGGERS, "logger", "training.loggers.base"),
    ],
)
def test_what_a_users_own_class_needs_is_known(registry, concept, module) -> None:
    told = f"{registry.key}=orchestra_jax.types:Task is no {concept} (see orchestra_jax.{module}): it lacks "
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}[a-z_, ]+\\.$"):
        registry.get("orchestra_jax.types:Task")


@pytest.mark.parametrize(
    ("name", "code", "error", "words"),
    [
        ("needy", "import no_such_dependency\n", ConfigError, "needs no_such_dependency"),
        ("broken", "import math\nmath.squareroot(2)\n", AttributeError, "'math' has no attribute 'squareroot'"),
    ],
)
def test_what_a_module_itself_lacks_is_told(registry, tmp_path, monkeypatch, name, code, error, words) -> None:
    (tmp_path / f"{name}.py").write_text(f"{code}\n\ndef wave(): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    with pytest.raises(error, match=words):
        registry.get(f"{name}:wave")
