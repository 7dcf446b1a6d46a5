"""The command line of an installed package: `orchestra-jax NAME ...` is `python experiments/NAME.py ...`."""

import ast
import runpy
import sys
from difflib import get_close_matches
from pathlib import Path

from orchestra_jax import __version__
from orchestra_jax.io.shipped import EXPERIMENTS


def main() -> None:
    """Run the script that the first argument names, as Python itself would.

    Raises:
        SystemExit: with status 2 and one sentence where there is no such script; else what the script raises.
    """
    scripts = {file.stem.replace("_", "-"): file for file in sorted(EXPERIMENTS.glob("*.py"))}
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print("Usage: orchestra-jax NAME [ARGUMENT ...]; `orchestra-jax NAME --help` tells more.\n")
        for known, file in scripts.items():
            print(f"  {known:16}{_about(file)}")
        return
    if name == "--version":
        print(__version__)
        return
    name = name.replace("_", "-")
    if name not in scripts:
        near = get_close_matches(name, scripts, 1)
        wanted = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(scripts)}."
        print(f"There is no command {name!r}; {wanted}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [str(scripts[name]), *arguments]
    runpy.run_path(str(scripts[name]), run_name="__main__")


def _about(file: Path) -> str:
    """Return the first sentence of a script's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return text.splitlines()[0].partition(". ")[0].rstrip(".") + "."


if __name__ == "__main__":
    main()
