"""Folders of files that come with the package: beside it in a checkout, inside it in an installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_HERE = _PACKAGE if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent

CONF = _HERE / "conf"
EXPERIMENTS = _HERE / "experiments"
