"""The libraries that a snippet names: its worker has imported them."""

import re

from orchestra_jax.tools.python.isolation import LIBRARIES

_IMPORT = re.compile(r"\b(?:from[ \t]+([\w.]+)[ \t]+)?import[ \t]+\(?([\w., \t]+)")
_SCIPY_PARTS = frozenset(
    "cluster fft integrate interpolate linalg ndimage optimize signal sparse spatial special stats".split()
)


def named_libraries(code: str) -> frozenset[str]:
    """Return the modules that a worker for this code has imported."""
    names = set()
    for source, things in _IMPORT.findall(code):
        first = [thing.split()[0] for thing in things.split(",") if thing.strip()]
        for path in [f"{source}.{thing}" for thing in first] if source else first:
            library, *parts = path.split(".")
            if library in LIBRARIES:
                names.add("numpy.random" if library == "numpy" else library)
            if library == "scipy" and parts and parts[0] in _SCIPY_PARTS:
                names.add(f"scipy.{parts[0]}")
    return frozenset(names)
