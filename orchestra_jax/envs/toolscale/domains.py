"""The ten domains: databases and policies as they were released, tools from a clone of the authors' repository."""

import os
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.database.remote import RemoteWorld
from orchestra_jax.envs.database.workers.pool import WorkerLimits, Workers
from orchestra_jax.io.foreign_json import own_file, read_json

CLONE = "git clone https://github.com/NVlabs/ToolOrchestra"
DOMAINS = tuple("bank basketball ecommerce medicine movie railway restaurant school travel weather".split())
_CODE = ("evaluation/tau2-bench/tau2/domains", "training/rollout/tau2/domains", "tau2/domains", "")
_DATA = ("evaluation/data_dir/tau2/domains", "evaluation/data_dir/tau2", "data/tau2/domains", "data/tau2")
_FILES = (
    *(f"orchestra_jax/envs/toolscale/{name}.py" for name in ("__init__", "clone", "stand_ins")),
    "orchestra_jax/envs/database/objects.py",
)
_ADAPTER = "orchestra_jax.envs.toolscale.clone:CloneTools"
# Most policies say "The current time is 2024-05-15 15:00:00 EST."; it also holds for those that name no time.
_TIME = re.compile(r"current time is (\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) EST")
_NOW = "2024-05-15T15:00:00-05:00"
_MOST_BYTES = 1 << 30
_POINTER = b"version https://git-lfs"


def code_folder(repo: str | Path) -> Path:
    """Return the folder of the domains' code in a clone.

    Raises:
        ConfigError: there is none.
    """
    for part in _CODE:
        folder = Path(repo).expanduser() / part
        if any(folder.glob("*/tools.py")):
            return folder
    raise ConfigError(
        f"There is no code of ToolScale's domains in {str(repo)!r}: env.options.repo must be a clone of the authors' "
        f"repository ({CLONE})."
    )


def data_folders(data: str | Path | None, repo: str | Path) -> list[Path]:
    """Return the folders of databases and policies: `data`, else those in the clone, else in ORCHESTRA_DATA.

    Raises:
        ConfigError: there is none.
    """
    places = [Path(repo).expanduser() / part for part in _DATA]
    if os.environ.get("ORCHESTRA_DATA"):
        places.append(Path(os.environ["ORCHESTRA_DATA"]) / "toolscale_domains")
    folders = [place for place in ([Path(data).expanduser()] if data else places) if any(place.glob("*/db.json"))]
    if folders:
        return folders
    raise ConfigError(
        f"There are no databases of ToolScale's domains (<domain>/db.json, policy.md) in {str(data or repo)!r}: set "
        "env.options.data to a folder of them, such as toolscale_domains in ORCHESTRA_DATA."
    )


def data_of(domain: str, folders: Sequence[Path]) -> Path | None:
    """Return the folder with a domain's database and policy, or None; a file that Git LFS left out counts as none."""
    for folder in folders:
        database = folder / domain / "db.json"
        if database.is_file() and (folder / domain / "policy.md").is_file():
            with database.open("rb") as file:
                if not file.read(len(_POINTER)).startswith(_POINTER):
                    return folder / domain
    return None


def world(
    domain: str,
    code: Path,
    data: Sequence[Path],
    *,
    count: int = 1,
    isolation: str = "auto",
    limits: WorkerLimits | None = None,
) -> RemoteWorld:
    """Start a domain in the sandbox; its database is the file's entries with what its types fill in.

    Args:
        code: see `code_folder`.
        data: see `data_folders`.
        count: worker processes at most.

    Raises:
        ConfigError: the domain's files are not there, or cannot be read.
        WorldError: its code cannot be loaded.
    """
    folder = data_of(domain, data)
    if folder is None:
        raise ConfigError(f"There is no database of the ToolScale domain {domain!r} in {', '.join(map(str, data))}.")
    try:
        tables = read_json(own_file(folder / "db.json").read_bytes(), _MOST_BYTES)
        policy = own_file(folder / "policy.md").read_text(encoding="utf-8")
        sources = _sources(code, domain)
    except (OSError, ValueError) as error:
        raise ConfigError(f"The ToolScale domain {domain!r} cannot be read: {error}.") from error
    now = time_of(policy)
    payload: dict[str, Any] = {"domain": domain, "sources": sources, "tables": tables, "now": now.isoformat()}
    workers = Workers(_ADAPTER, payload, _FILES, count=count, isolation=isolation, limits=limits)
    return RemoteWorld(domain, workers, now=now, policy=policy)


def time_of(policy: str) -> datetime:
    """Return the time at which a domain plays: the one that its policy names."""
    found = _TIME.search(policy)
    return datetime.fromisoformat(f"{found[1]}T{found[2]}-05:00" if found else _NOW)


def _sources(code: Path, domain: str) -> dict[str, str]:
    """Return the source of the domain's modules, and of the paths that other domains define, by name."""
    files = [*(code / domain).glob("*.py"), *code.glob("*/utils.py")]
    return {
        f"tau2.domains.{path.parent.name}.{path.stem}": own_file(path, code).read_text(encoding="utf-8")
        for path in files
        if path.stem not in ("__init__", "environment")
    }
