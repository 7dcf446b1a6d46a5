"""The layer rule of the design, what the pure core may not touch, circles, sizes, and what imports may not start.

Layers: experiments, serve_mcp > api, serving > training, planning, synthesis, preparation > evaluation > rollout >
envs > tools > rl > engines > money > models > data > processes > config > io > types. A module imports
from its own layer or one below; packages that share a layer may not import each other in a circle.
"""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "orchestra_jax"
LAYERS = (
    ("types", ""),  # "": the package's own __init__
    ("io",),
    ("config",),
    ("processes",),
    ("data",),
    ("models",),
    ("money",),
    ("engines",),
    ("rl",),
    ("tools",),
    ("envs",),
    ("rollout",),
    ("evaluation",),
    ("training", "planning", "synthesis", "preparation"),
    ("api", "serving"),
    ("experiments", "__main__", "serve_mcp"),
)
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units}
PURE = ("rl", "models")
READS_FILES = {
    "models/checkpoint/__init__.py", "models/checkpoint/gguf.py", "models/checkpoint/reading.py",
    "models/checkpoint/safetensors.py", "models/checkpoint/together.py", "models/lora.py", "models/saved_tokenizer.py",
}  # fmt: skip
IMPURE_MODULES = {
    "asyncio", "datetime", "glob", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "shutil",
    "socket", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input"}
LINES_AN_EXPERIMENT = 65  # beside its docstring
LINES_A_FUNCTION = 80


@functools.cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def modules_imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Every module that a file imports, lazily or not, as absolute names; `package` is the file's own package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ""
            if node.level:
                base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
            module = ".".join(part for part in (base, node.module) if part)
            # `from package import name`: the name may be a module.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def unit_of(module: str) -> str | None:
    """The layer unit of an absolute module name: its subpackage or top module; None outside the project."""
    parts = module.split(".")
    if parts[0] == "experiments":
        return "experiments"
    if parts[0] != PACKAGE:
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LEVEL else ""


def edges(files: dict[str, str]) -> dict[tuple[str, str], str]:
    """(importing unit, imported unit) -> the first file that does it. `files`: source by path below the root."""
    found: dict[tuple[str, str], str] = {}
    for path, source in files.items():
        module = path.removesuffix(".py").replace("/", ".")
        package = module.removesuffix(".__init__") if path.endswith("__init__.py") else module.rpartition(".")[0]
        importer = unit_of(module)
        for name in modules_imported(parsed(source), package):
            if importer is not None and (imported := unit_of(name)) not in (None, importer):
                found.setdefault((importer, imported), path)
    return found


def layer_violations(files: dict[str, str]) -> list[str]:
    found = []
    imports = edges(files)
    for (importer, imported), path in imports.items():
        if LEVEL[imported] > LEVEL[importer]:
            found.append(f"{path}: {importer} may not import {imported}, which is above it")
        elif LEVEL[imported] == LEVEL[importer] > 0 and (imported, importer) in imports:
            found.append(f"{path}: {importer} and {imported} import each other")
    return found


def nnx_violations(files: dict[str, str]) -> list[str]:
    found = []
    for path, source in files.items():
        if "nnx" not in source:
            continue
        tree = parsed(source)
        names = [*modules_imported(tree, ""), *(ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute))]
        if any(name == "flax.nnx" or name.startswith("flax.nnx.") for name in names):
            found.append(f"{path}: uses flax.nnx; use flax.linen")
    return found


def purity_violations(files: dict[str, str]) -> list[str]:
    """Clocks, files, processes, randomness without a key and global state in the pure core."""
    found = []
    for path, source in files.items():
        inner = path.removeprefix(f"{PACKAGE}/")
        if inner.partition("/")[0] not in PURE or inner in READS_FILES:
            continue
        tree = parsed(source)
        roots = {name.partition(".")[0] for name in modules_imported(tree, "")}
        found += [f"{path}: imports {name}" for name in sorted(roots & IMPURE_MODULES)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
                found.append(f"{path}:{node.lineno}: calls {node.func.id}()")
            elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "numpy.random"):
                found.append(f"{path}:{node.lineno}: uses numpy's global randomness")
            elif isinstance(node, ast.Global):
                found.append(f"{path}:{node.lineno}: has global state")
    return found


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def module_imports(files: dict[str, str]) -> dict[str, set[str]]:
    """module -> the modules of `files` that it imports, at its head, inside a function or for types alone."""
    names = {module_name(path) for path in files}
    found = {}
    for path, source in files.items():
        name = module_name(path)
        package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
        tree = parsed(source)
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
        help_lines = len((ast.get_docstring(parsed(source)) or "").splitlines())  # the command's examples
        if path.startswith("experiments/") and (lines := len(source.splitlines()) - help_lines) > LINES_AN_EXPERIMENT:
            found.append(f"{path}: {lines} lines; at most {LINES_AN_EXPERIMENT}")
    return found


def functions(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in ast.walk(parsed(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def function_violations(files: dict[str, str]) -> list[str]:
    return [
        f"{path}:{function.lineno}: {function.name} has {lines} lines; at most {LINES_A_FUNCTION}"
        for path, source in files.items()
        for function in functions(source)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > LINES_A_FUNCTION
    ]


def sources(*folders: str) -> dict[str, str]:
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(paths)}


PRODUCT = sources(PACKAGE, "experiments")


def test_every_subpackage_has_a_layer() -> None:
    units = {path.split("/")[1].removesuffix(".py") for path in PRODUCT if path.startswith(PACKAGE)}
    assert units - {"__init__"} <= set(LEVEL)


@pytest.mark.parametrize(
    ("check", "files"),
    [
        (layer_violations, PRODUCT),
        (nnx_violations, PRODUCT),
        (purity_violations, PRODUCT),
        (circle_violations, PRODUCT),
        (file_violations, PRODUCT),
        (function_violations, PRODUCT),
    ],
)
def test_the_tree_keeps_the_rule(check, files) -> None:
    assert files
    assert check(files) == []


RL, ENVS = f"{PACKAGE}/rl/a.py", f"{PACKAGE}/envs/a.py"
A, B, C = (f"{PACKAGE}/rl/{name}.py" for name in "abc")
LONG_FUNCTION = "def f():\n" + "    x = 1\n" * LINES_A_FUNCTION


@pytest.mark.parametrize(
    ("check", "bad"),
    [
        (layer_violations, {RL: "from orchestra_jax.tools import menu"}),
        (layer_violations, {RL: "from orchestra_jax import tools"}),
        (layer_violations, {RL: "from ..tools.menu import Menu"}),
        (layer_violations, {RL: "def f():\n    import orchestra_jax.envs.base"}),
        (layer_violations, {f"{PACKAGE}/types.py": "from .models import qwen3"}),
        (layer_violations, {f"{PACKAGE}/__init__.py": "from .rl import losses"}),
        (layer_violations, {f"{PACKAGE}/training/run.py": "import experiments.train"}),
        (
            layer_violations,
            {
                f"{PACKAGE}/training/a.py": "import orchestra_jax.planning",
                f"{PACKAGE}/planning/a.py": "from .. import training",
            },
        ),
        (nnx_violations, {RL: "from flax import nnx"}),
        (nnx_violations, {RL: "import flax.nnx as n"}),
        (nnx_violations, {RL: "import flax\nflax.nnx.Module"}),
        (purity_violations, {RL: "import time"}),
        (purity_violations, {RL: "from os import path"}),
        (purity_violations, {RL: "import numpy as np\nnp.random.rand()"}),
        (purity_violations, {RL: "def f():\n    open('x')"}),
        (purity_violations, {f"{PACKAGE}/models/a.py": "def f():\n    global x\n    x = 1"}),
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
        (
            layer_violations,
            {ENVS: "from orchestra_jax.tools import menu\nfrom . import base\nimport orchestra_jax.types"},
        ),
        (layer_violations, {ENVS: "import orchestra_jax.data.sources"}),
        (layer_violations, {"experiments/a.py": "import orchestra_jax.training.main"}),
        (nnx_violations, {RL: "import flax.linen as nn"}),
        (purity_violations, {RL: "import jax\njax.random.key(0)"}),
        (purity_violations, {f"{PACKAGE}/tools/a.py": "import time, os"}),
        (purity_violations, {f"{PACKAGE}/models/checkpoint/safetensors.py": "import os"}),
        (circle_violations, {A: "from .b import x\nfrom .c import y", B: "from . import c", C: "import os"}),
        (function_violations, {A: LONG_FUNCTION.removesuffix("    x = 1\n")}),
    ],
)
def test_the_check_lets_good_code_pass(check, good) -> None:
    assert check(good) == []


def test_no_import_starts_jax() -> None:
    # A run says first which devices it wants, how many, and who else takes part; a started backend would not listen.
    modules = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / PACKAGE).rglob("*.py")
    )
    script = f"""
import importlib
for name in {modules}:
    importlib.import_module(name)
    from jax._src import xla_bridge
    assert not xla_bridge.backends_are_initialized(), name
"""

    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
