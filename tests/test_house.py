"""The border of the core, and the names and docstrings of the package; `benchmarks/house.py` prints the figures."""

import pytest

from benchmarks import house

MOST_LOADED = 14_000  # lines of the package that a quickstart loads
MOST_WITH_RUN_CONFIG = 20  # files
# Rooms and modules that a quickstart has no use for.
PLUG_INS = (
    "engines/sglang/", "envs/bfcl/", "envs/database/", "envs/qa/", "envs/recorded/", "envs/tau2/", "envs/toolscale/",
    "evaluation/inspect", "models/checkpoint/gguf", "models/lora", "models/qwen3_moe", "money/paid", "money/replay",
    "planning/", "preparation/", "serve_mcp", "serving/", "synthesis/", "tools/experts/client", "tools/mcp/",
    "tools/search/web", "training/inspect/",
)  # fmt: skip  # a list of words

PACKAGE = house.sources()
OVERRIDE = '"""A."""\nclass A:\n  """A."""\n  def f(self):\n    """Run."""\nclass B(A):\n  """B."""\n  def f(self): ...'


def test_a_quickstart_loads_only_the_core() -> None:
    loaded = house.quickstart().lines
    assert sum(loaded.values()) > 5_000  # it did run
    assert [path for path in loaded if path.startswith(PLUG_INS)] == []
    assert sum(loaded.values()) <= MOST_LOADED, sorted(loaded.items(), key=lambda item: -item[1])[:20]


def test_a_public_class_name_exists_once() -> None:
    assert house.doubled_classes(PACKAGE) == {}


def test_few_files_know_the_whole_configuration() -> None:
    known = house.mentioning("RunConfig", PACKAGE | house.sources(house.ROOT / "experiments"))
    rooms = {path.removeprefix("orchestra_jax/").split("/")[0] for path in known}
    assert rooms <= {"config", "training", "planning", "experiments", "api.py"}
    assert len(known) <= MOST_WITH_RUN_CONFIG


def test_what_is_public_has_a_docstring() -> None:
    assert [each.place for each in house.docstrings(PACKAGE) if each.missing] == []


def test_no_docstring_begins_with_a_riddle() -> None:
    assert [f"{each.place}: {each.text.splitlines()[0]}" for each in house.docstrings(PACKAGE) if each.riddle] == []


def test_the_docstring_of_a_function_begins_with_a_verb() -> None:
    ours = {path: source for path, source in PACKAGE.items() if "/shipped/" not in path}  # those are read by policies
    assert [f"{each.place}: {each.text.splitlines()[0]}" for each in house.docstrings(ours) if each.verbless] == []


@pytest.mark.parametrize(
    ("source", "verbless"),
    [
        ('def f():\n    """Returns it."""', True),
        ('def f():\n    """The price."""', True),
        ('def f():\n    """Return it."""', False),
        ('def f():\n    """Pass it on."""', False),
        ('@property\ndef f():\n    """The price."""', False),
        ('class A:\n    """Prices."""', False),
    ],
)
def test_the_check_of_verbs_sees(source: str, verbless: bool) -> None:
    assert any(each.verbless for each in house.docstrings({"a.py": source})) is verbless


@pytest.mark.parametrize(
    ("source", "missing", "riddles"),
    [
        ('"""Prices."""\nclass A:\n    """A price."""\n    def f(self): ...', 1, 0),
        (OVERRIDE, 0, 0),
        ('"""Prices."""\ndef _hidden(): ...', 0, 0),
        ("x = 1", 1, 0),
        ('"""What it costs."""', 0, 1),
        ('"""Prices."""\ndef f():\n    """Return whether it is paid."""', 0, 0),
        ('"""Prices."""\nclass _A:\n    """Of a price."""', 0, 1),
    ],
)  # fmt: skip  # one case a line
def test_the_check_of_docstrings_sees(source: str, missing: int, riddles: int) -> None:
    found = house.docstrings({"a.py": source})
    assert (sum(each.missing for each in found), sum(each.riddle for each in found)) == (missing, riddles)
