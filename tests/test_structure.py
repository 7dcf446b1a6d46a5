"""The size of experiments and functions, and no circle between modules. The layers are in `test_layers.py`."""

import ast
from collections.abc import Iterator

import pytest

from tests.test_layers import PACKAGE, PRODUCT, modules_imported

LINES_AN_EXPERIMENT = 65  # beside its docstring
LINES_A_FUNCTION = 80


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def module_imports(files: dict[str, str]) -> dict[str, set[str]]:
    """module -> the modules of `files` that it imports, at its head, inside a function or for types alone."""
    names = {module_name(path) for path in files}
    found = {}
    for path, source in files.items():
        name = module_name(path)
        package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
        tree = ast.parse(source)
        # "package.module.name" stands for the module, unless it is one itself.
        wanted = (m if m in names else m.rpartition(".")[0] for m in modules_imported(tree, package))
        found[name] = {module for module in wanted if module in names} - {name}
    return found


def circle_violations(files: dict[str, str]) -> list[str]:
    """Takes away what imports nothing that is left, again and again: what stays is on a circle or leads to one."""
    left = module_imports(files)
    while free := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in free:
            del left[name]
    return [f"{name} imports {', '.join(sorted(found & left.keys()))} in a circle" for name, found in left.items()]


def file_violations(files: dict[str, str]) -> list[str]:
    found = []
    for path, source in files.items():
        help_lines = len((ast.get_docstring(ast.parse(source)) or "").splitlines())  # the command's examples
        if path.startswith("experiments/") and (lines := len(source.splitlines()) - help_lines) > LINES_AN_EXPERIMENT:
            found.append(f"{path}: {lines} lines; at most {LINES_AN_EXPERIMENT}")
    return found


def functions(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def function_violations(files: dict[str, str]) -> list[str]:
    return [
        f"{path}:{function.lineno}: {function.name} has {lines} lines; at most {LINES_A_FUNCTION}"
        for path, source in files.items()
        for function in functions(source)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > LINES_A_FUNCTION
    ]


@pytest.mark.parametrize(
    ("check", "files"),
    [
        (circle_violations, PRODUCT),
        (file_violations, PRODUCT),
        (function_violations, PRODUCT),
    ],
)
def test_the_tree_keeps_the_rule(check, files) -> None:
    assert files
    assert check(files) == []


A, B, C = (f"{PACKAGE}/rl/{name}.py" for name in "abc")
LONG_FUNCTION = "def f():\n" + "    x = 1\n" * LINES_A_FUNCTION


@pytest.mark.parametrize(
    ("check", "bad"),
    [
        (circle_violations, {A: "from orchestra_jax.rl.b import x", B: "import orchestra_jax.rl.a"}),
        (circle_violations, {A: "from orchestra_jax.rl import b", B: "from .c import x", C: "from . import a"}),
        (circle_violations, {A: "from .b import x", B: "def f():\n    from .a import y"}),
        (circle_violations, {A: "from .b import x", B: "if TYPE_CHECKING:\n    from .a import y"}),
        (circle_violations, {f"{PACKAGE}/rl/__init__.py": "from .a import x", A: "import orchestra_jax.rl"}),
        (file_violations, {"experiments/a.py": "x = 1\n" * (LINES_AN_EXPERIMENT + 1)}),
        (function_violations, {A: LONG_FUNCTION}),
        (function_violations, {A: f"class C:\n    async {LONG_FUNCTION}".replace("\n    x", "\n        x")}),
    ],
)
def test_the_check_sees_a_violation(check, bad) -> None:
    assert len(check(bad)) >= 1


@pytest.mark.parametrize(
    ("check", "good"),
    [
        (circle_violations, {A: "from .b import x\nfrom .c import y", B: "from . import c", C: "import os"}),
        (function_violations, {A: LONG_FUNCTION.removesuffix("    x = 1\n")}),
    ],
)
def test_the_check_lets_good_code_pass(check, good) -> None:
    assert check(good) == []
