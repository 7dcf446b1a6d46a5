"""Measures the house: what a quickstart loads, lines, names, docstrings and call depths.

python benchmarks/house.py            # runs a short quickstart and a short evaluation, then prints tables
python benchmarks/house.py --no-run   # only what can be read from the source
python benchmarks/house.py --json
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "orchestra_jax"
SHORT_RUN = (
    "steps=1", "warm_start.steps=1", "warm_start.demonstrations=64", "warm_start.batch_size=16",
    "warm_start.min_copy_accuracy=1", "algorithm.tasks_per_step=2", "algorithm.group_size=4", "evaluation.questions=2",
    "evaluation.swap_questions=1", "rollout.slots=8", "rollout.widths=[64]", "algorithm.row_widths=[192]",
    "algorithm.micro_tokens=768", "model.family=tests.training.micro:OneLayer",  # compiles faster, loads the same
)  # fmt: skip  # shapes of tests/training/test_trainer.py: the tests compile these programs once
# Words that begin a riddle: they need the line above, or a question that nobody asked.
RIDDLES = ("Of", "What", "Whether", "That", "Who", "Whose", "Whom", "Where", "Whence", "How", "Why", "If", "Which")
NO_VERBS = ("The", "A", "An", "All", "Each", "Every", "It", "Its", "This", "These", "One", "First", "Last")

# Runs in a process of its own: one of the scripts of experiments/, observed.
OBSERVED = """
import asyncio, json, runpy, sys, threading
root, script, out, *arguments = sys.argv[1:]
sys.argv = [f"{root}/experiments/{script}.py", *arguments]
sys.path.insert(0, root)
depths = {}

def own(frame):
    name = frame.f_code.co_filename
    return name.startswith(root) and "site-packages" not in name and not frame.f_code.co_name.startswith("<")

def on_stack(frame):
    found = []
    while frame is not None:
        if own(frame):
            found.append(f"{frame.f_code.co_filename[len(root) + 1:]}:{frame.f_code.co_name}")
        frame = frame.f_back
    return found

def awaited(coroutine):
    found = []
    while coroutine is not None and getattr(coroutine, "cr_frame", None) is not None:
        if own(coroutine.cr_frame):
            found.append(f"{coroutine.cr_code.co_filename[len(root) + 1:]}:{coroutine.cr_code.co_name}")
        coroutine = coroutine.cr_await
    return found[::-1]

if script == "train":
    import jax
    plain = jax.grad
    def grad(*a, **k):
        frames = on_stack(sys._getframe(1))
        if not any("warm_start" in frame for frame in frames):
            depths.setdefault("grad", frames)
        return plain(*a, **k)
    jax.grad = grad
else:
    from orchestra_jax.envs.quickstart import environment
    score = environment.QuickstartEpisode.score
    async def scored(self, answer):
        if "score" not in depths:
            here = on_stack(sys._getframe(1))
            current = asyncio.current_task()
            for task in asyncio.all_tasks():
                if task is not current:
                    here += awaited(task.get_coro())
            main = sys._current_frames()[threading.main_thread().ident]
            depths["score"] = here + (on_stack(main) if threading.current_thread() is not threading.main_thread() else [])
        return await score(self, answer)
    environment.QuickstartEpisode.score = scored
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    if end.code:
        raise
files = {module.__file__ for module in list(sys.modules.values()) if (getattr(module, "__file__", None) or "").startswith(f"{root}/orchestra_jax/")}
json.dump({"files": sorted(files), "depths": depths}, open(out, "w"))
"""  # noqa: E501


@dataclass(frozen=True)
class Loaded:
    """Files of the package that a run loads, with their lines, and own stack frames at the end of the way."""

    lines: dict[str, int]
    frames: list[str]


def observe(script: str, *arguments: str) -> Loaded:
    """Run a script of experiments/ in a new process and return what it loaded.

    Raises:
        RuntimeError: the script failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        found, observer = Path(folder, "found.json"), Path(folder, "observer.py")
        observer.write_text(OBSERVED)
        done = subprocess.run(
            [sys.executable, str(observer), str(ROOT), script, str(found), f"output_dir={folder}/run", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        if not found.is_file():
            raise RuntimeError(
                f"experiments/{script}.py ended with status {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        said = json.loads(found.read_text())
    frames = next(iter(said["depths"].values()), [])
    return Loaded({str(Path(file).relative_to(PACKAGE)): _lines(Path(file)) for file in said["files"]}, frames)


def quickstart() -> Loaded:
    """Run a short quickstart: what it loads, and the own frames between experiments/train.py and the gradient."""
    return observe("train", *SHORT_RUN)


def sources(folder: Path = PACKAGE) -> dict[str, str]:
    """Return the source of every Python file by its path below the root."""
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(folder.rglob("*.py"))}


def doubled_classes(files: dict[str, str]) -> dict[str, list[str]]:
    """Return the public class names that more than one module defines, with these modules."""
    places = defaultdict(list)
    for path, source in files.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def mentioning(word: str, files: dict[str, str]) -> list[str]:
    """Return the files that mention a word."""
    return [path for path, source in files.items() if re.search(rf"\b{word}\b", source)]


@dataclass(frozen=True)
class Docstring:
    """A definition of the package and its docstring, "" where it has none; `acts`: a function that is no property."""

    place: str
    public: bool
    text: str
    acts: bool = False

    @property
    def missing(self) -> bool:
        """Return whether it is public and says nothing."""
        return self.public and not self.text

    @property
    def riddle(self) -> bool:
        """Return whether it begins with a word that needs the line above."""
        return self._first in RIDDLES

    @property
    def verbless(self) -> bool:
        """Return whether a function's docstring begins with no verb, or not as "Return" does: "Returns", "The"."""
        return self.acts and (self._first in NO_VERBS or re.fullmatch(r"[A-Z][a-z]*[a-rt-z]s", self._first) is not None)

    @property
    def _first(self) -> str:
        return self.text.split()[0].strip(",.:;`'\"") if self.text else ""


def docstrings(files: dict[str, str]) -> list[Docstring]:
    """Return every module, class and function with its docstring.

    Public are those without an underscore in their name or an enclosing one's; methods of a class with bases count only
    where no other class documents a method of that name: an override needs no second docstring.
    """
    trees = {path: ast.parse(source) for path, source in files.items()}
    documented = Counter(
        method.name
        for tree in trees.values()
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(method)
    )
    found = []
    for path, tree in trees.items():
        found.append(Docstring(path, bool(tree.body), ast.get_docstring(tree) or ""))
        found += _inside(path, tree, documented, public=True, overrides=False)
    return found


def _inside(
    path: str, owner: ast.Module | ast.ClassDef, documented: Counter[str], *, public: bool, overrides: bool
) -> Iterator[Docstring]:
    for node in owner.body:
        if isinstance(node, ast.ClassDef):
            shown = public and not node.name.startswith("_")
            yield Docstring(f"{path}:{node.lineno} {node.name}", shown, ast.get_docstring(node) or "")
            yield from _inside(path, node, documented, public=shown, overrides=True)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text, shown = ast.get_docstring(node) or "", public and not node.name.startswith("_")
            if overrides and not text and documented[node.name]:
                shown = False
            if any(ast.unparse(each).endswith((".setter", "overload")) for each in node.decorator_list):
                shown = False
            acts = not any(ast.unparse(each).endswith("property") for each in node.decorator_list)
            yield Docstring(f"{path}:{node.lineno} {node.name}", shown, text, acts)


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _rooms(lines: dict[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for path, count in lines.items():
        found[path.split("/")[0] if "/" in path else "(root)"] += count
    return dict(sorted(found.items()))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-run", "--smoke", action="store_true", help="start nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--list", choices=("missing", "riddles", "loaded", "frames"), help="print these one by one")
    options = parser.parse_args()
    files, told = sources(), docstrings(sources())
    if options.list in ("missing", "riddles"):
        for each in told:
            if each.missing if options.list == "missing" else each.riddle:
                print(each.place, "" if each.missing else each.text.splitlines()[0])
        return
    total = {path.removeprefix("orchestra_jax/"): len(source.splitlines()) for path, source in files.items()}
    figures: dict[str, object] = {
        "lines of the package": sum(total.values()),
        "lines of tests": sum(len(source.splitlines()) for source in sources(ROOT / "tests").values()),
        "public class names defined more than once": len(doubled_classes(files)),
        "files that mention RunConfig": len(mentioning("RunConfig", files | sources(ROOT / "experiments"))),
        "public without a docstring": sum(each.missing for each in told),
        "docstrings that begin with a riddle": sum(each.riddle for each in told),
        "# fmt: skip": sum(source.count("# fmt: skip") for source in files.values()),
    }
    rooms = {"package": _rooms(total)}
    if not options.no_run:
        trained = quickstart()
        judged = observe("evaluate", "policy=baseline:random", "evaluation.questions=1", "evaluation.swap_questions=0")
        if options.list:
            rows = trained.lines.items() if options.list == "loaded" else enumerate([*trained.frames, *judged.frames])
            print(*(f"{count}\t{name}" for count, name in rows), sep="\n")
            return
        figures |= {
            "files that a quickstart loads": len(trained.lines),
            "lines that a quickstart loads": sum(trained.lines.values()),
            "own frames from train.py to the gradient": len(trained.frames),
            "own frames from evaluate.py to Episode.score": len(judged.frames),
        }
        rooms["loaded"] = _rooms(trained.lines)
    if options.json:
        print(json.dumps({**figures, "rooms": rooms, "doubled": doubled_classes(files)}, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:48} {value:>8,}")
    print()
    for room, count in rooms["package"].items():
        print(
            f"{room:16} {count:>8,} lines"
            + (f"{rooms['loaded'].get(room, 0):>10,} loaded" if "loaded" in rooms else "")
        )
    for name, places in doubled_classes(files).items():
        print(f"twice: {name} in {', '.join(places)}")


if __name__ == "__main__":
    main()
