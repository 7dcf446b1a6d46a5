"""Prints the packages of the interpreter that runs it, but for this project and what installs packages."""

from importlib.metadata import distributions

found = {(package.name.lower().replace("_", "-"), package.version) for package in distributions()}
for name, version in sorted(found):
    if name not in ("orchestra-jax", "pip", "setuptools", "wheel"):
        print(f"{name}=={version}")
