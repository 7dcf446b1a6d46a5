"""The check of generated functions. The sandbox is the second wall: tests/envs/database/test_remote.py."""

import pytest

from orchestra_jax.synthesis.worlds.functions import DEMO
from orchestra_jax.synthesis.worlds.static import fault
from tests.synthesis.rental import CODE, KINDS

HEAD = '@database_tool(Kind.READ)\ndef look(desk: Desk, name: str, count: int = 1) -> Any:\n    """Looks."""\n'


def body(text):
    return fault(HEAD + "".join(f"    {line}\n" for line in text.splitlines()), "look", "read")


def test_the_demonstration_and_honest_functions_pass():
    assert fault(DEMO, "book_appointment", "write") is None
    for name in CODE:
        assert (fault(CODE[name], name, KINDS[name]) is None) == (name != "export"), name
    assert body(
        "total = 0\nfor key, entry in desk.rows('things'):\n    if entry['name'].casefold() == name:\n"
        "        found: list[int] = list(entry['more']) if isinstance(entry['more'], list | dict) else []\n"
        "        total += len(found) + math.floor(max([entry['n'], *entry['more']], key=lambda each: each))\n"
        "try:\n    day = date.fromisoformat(name) + timedelta(days=1)\nexcept ValueError as error:\n"
        "    raise ValueError(f'{name} is no day: {error}') from None\n"
        "return {'day': day.isoformat(), 'seen': sorted(x for x in desk.get('a', name) if x), 'total': total}"
    ) is None  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "from os import system",
        "__import__('os')",
        "open('/etc/passwd')",
        "eval(name)",
        "exec(name)",
        "compile(name, 'f', 'exec')",
        "getattr(desk, name)",
        "setattr(desk, 'now', name)",
        "type(name)",
        "globals()",
        "vars(desk)",
        "input()",
        "print(name)",
        "breakpoint()",
        "return desk.__class__",
        "return ().__class__.__base__.__subclasses__()",
        "return desk._state",
        "return desk._edits",
        "desk.commit()",
        "desk.read.clear()",
        "other = desk\nother.changes.clear()",
        "dict.update(desk.get('a', name), {'b': 1})",
        "made = dict\nmade.update(desk.get('a', name), {'b': 1})",
        "for one in [list]:\n    one.append(desk.get('a', name)['b'], 1)",
        "other = desk\nother._may_write = True",
        "return '{0.__class__}'.format(desk)",
        "return name.format_map({'a': desk})",
        "return f'{desk.__dict__}'",
        "return (x for x in [1]).gi_frame.f_globals",
        "try:\n    raise ValueError\nexcept ValueError as e:\n    return e.__traceback__.tb_frame",
        "try:\n    return desk.get('a', name)\nexcept:\n    return 1",
        "try:\n    return 1\nexcept Exception:\n    return 2",
        "while True:\n    pass",
        "with desk as d:\n    pass",
        "global count",
        "class A:\n    pass",
        "def inner():\n    return 1",
        "async def inner():\n    return 1",
        "yield 1",
        "return datetime.now()",
        "return date.today()",
        "ValueError = 1",
        "__builtins__ = 1",
        "return math.__loader__",
        "(count := 1)",
        "return [desk := 1]",
        "assert name",
        "match name:\n    case _:\n        pass",
        "return Kind.WRITE",
        "database_tool(1)",
    ],
)
def test_what_is_unsafe_is_told(text):
    assert body(text) is not None


@pytest.mark.parametrize(
    "code",
    [
        "import os\n" + HEAD + "    return 1\n",
        HEAD + "    return 1\nopen('x')\n",
        HEAD.replace("READ", "WRITE") + "    return 1\n",
        "@print\n" + HEAD + "    return 1\n",
        HEAD.replace("Kind.READ", "Kind.READ, price_usd=open('x')") + "    return 1\n",
        HEAD.replace("count: int = 1", "count: int = open('x')") + "    return 1\n",
        HEAD.replace("count: int = 1", "count: open('x') = 1") + "    return 1\n",
        HEAD.replace("name: str", "name") + "    return 1\n",
        HEAD.replace("-> Any", "-> open('x')") + "    return 1\n",
        HEAD.replace("count: int = 1", "*count: int") + "    return 1\n",
        HEAD.replace("desk: Desk", "desk: Any") + "    return 1\n",
        HEAD.replace("def look", "def other") + "    return 1\n",
        HEAD.replace('    """Looks."""\n', "") + "    return 1\n",
        "def look(desk: Desk) -> str:\n    return ''\n",
        "x" * 7000,
        "def (",
        "(" * 3000,
        "",
        "\x00",
    ],
)
def test_a_head_that_does_something_is_told(code):
    assert fault(code, "look", "read") is not None
