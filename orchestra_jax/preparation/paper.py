"""All data of the paper's run in one folder: each part is made whole or not at all, and is not made twice."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.io import hub
from orchestra_jax.io.whole import whole_folder, write_whole
from orchestra_jax.preparation import questions, toolscale
from orchestra_jax.preparation.index import index
from orchestra_jax.preparation.made import Made, Wanted
from orchestra_jax.processes.lock import alone_in

ACCOUNT = "prepared.json"
_MOST_SAID = 5  # sentences of a part that are printed


@dataclass(frozen=True)
class Part:
    """One part of the data.

    Attributes:
        name: what `--only` calls it, and its folder's name.
        source: its id on the Hugging Face hub, or the address of a repository.
        licence: as its page named it when this was written, else where to find it.
        make: writes it into a folder.
        choices: the fields of `Wanted` that it depends on.
    """

    name: str
    source: str
    licence: str
    make: Callable[[Path, Path, Wanted], Made]
    choices: tuple[str, ...] = ("limit",)

    @property
    def repository(self) -> str:
        """The last part of the source's name, as a clone or download of it is called."""
        return self.source.rstrip("/").rpartition("/")[2]


PARTS = (
    Part(
        "general_thought",
        "GeneralReasoning/GeneralThought-430K",
        "MIT",
        questions.general_thought,
        ("limit", "pass_rate", "passed"),
    ),
    Part("toolscale", "nvidia/ToolScale", "see its card", toolscale.toolscale),
    Part("toolscale_tools", "https://github.com/NVlabs/ToolOrchestra", "Apache-2.0", toolscale.tools, ()),
    Part("hle", "cais/hle", "MIT; gated", questions.hle),
    Part("frames", "google/frames-benchmark", "Apache-2.0", questions.frames),
    Part("retrieval_index", "multi-train/index", "see its card", index, ("index", "embedder_url")),
)
NAMES = tuple(part.name for part in PARTS)


def sources(parts: Sequence[Part], given: Path | None) -> Iterator[tuple[Part, Path | None]]:
    """Yield each part with its copy in the folder `given`, by the part's name or its repository's; None: no copy."""
    for part in parts:
        places = [given / name for name in (part.name, part.repository)] if given is not None else []
        yield part, next((place for place in places if place.exists()), None)


def overview(parts: Sequence[Part], given: Path | None, folder: Path) -> Iterator[str]:
    """Yield a line on the source, size and licence of each part, and one on the room there is."""
    yield f"{'part':16} {'size':>10}  {'licence':14} source"
    for part, copy in sources(parts, given):
        size = _size(copy) if copy is not None else _hub_size(part)
        shown = "not known" if size is None else f"{size / 1e6:,.1f} MB"
        yield f"{part.name:16} {shown:>10}  {part.licence:14} {copy or part.source}"
    there = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    yield f"Free at {folder}: {shutil.disk_usage(there).free / 1e9:,.1f} GB."


def prepare(
    parts: Sequence[Part], folder: Path, given: Path | None, wanted: Wanted, say: Callable[[str], None] = print
) -> list[str]:
    """Make the parts that are not there yet; return a sentence for each that cannot be made.

    A part that was made of the same source under the same choices is kept. A killed preparation leaves whole parts
    only, and the same call goes on with the others.
    """
    problems = list[str]()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone_in(folder):
            _account(folder)  # a damaged one is told before anything is fetched
            for part, copy in sources(parts, given):
                try:
                    _prepare(part, folder, copy if copy is not None else _fetched(part), wanted, say)
                except (OSError, ValueError, ImportError) as error:
                    problems.append(f"{part.name}: {error}")
                    say(f"{part.name} was not made: {error}")
    except OSError as error:
        problems.append(f"the folder {str(folder)!r} cannot be written ({error.strerror}): name another.")
    except ConfigError as error:
        problems.append(str(error))
    return problems


def _prepare(part: Part, folder: Path, source: Path, wanted: Wanted, say: Callable[[str], None]) -> None:
    """Make one part, unless it is there."""
    account = _account(folder)
    chosen = {name: str(value) for name, value in asdict(wanted).items() if name in part.choices}
    if "passed" in chosen and wanted.passed is not None:
        chosen["passed"] = _fingerprint(wanted.passed)
    stamp = {"source": str(source), "content": _fingerprint(source), "choices": chosen}
    target, earlier = folder / part.name, account.get(part.name)
    if earlier is not None and earlier["made_of"] == stamp and _sizes(target) == _sizes_of(earlier):
        say(f"{part.name} is there: {_counts(earlier['counts'])}.")
        return
    if target.exists() and earlier is None:
        raise ValueError(f"{str(target)!r} was not made by this command: move it away, or choose another folder.")
    with whole_folder(target.absolute(), overwrite=True) as partial:
        made = part.make(source, partial, wanted)
        files = {
            path.relative_to(partial).as_posix(): {"bytes": path.stat().st_size, "sha256": _digest(path)}
            for path in _files(partial)
        }
    entry = {"licence": part.licence, "made_of": stamp, "counts": dict(made.counts), "files": files, "said": made.said}
    write_whole(folder / ACCOUNT, json.dumps({**account, part.name: entry}, indent=1, sort_keys=True) + "\n")
    say(f"{part.name} made: {_counts(made.counts)}.")
    for sentence in made.said[:_MOST_SAID]:
        say(f"  {sentence}")
    if len(made.said) > _MOST_SAID:
        say(f"  {len(made.said) - _MOST_SAID} more such sentences are in {folder / ACCOUNT}.")


def _fetched(part: Part) -> Path:
    """Return the part's source as the hub's cache has it, fetched where it does not.

    Raises:
        FileNotFoundError: it cannot be had; one sentence with the fix.
    """
    if part.source.startswith("https://"):
        raise FileNotFoundError(
            f"it is a repository: git clone {part.source}, and name the folder that holds the clone with --from."
        )
    try:
        return hub.local(part.source, "dataset", ("*",) if part.make is index else None)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} A folder that holds {part.name}/ or {part.repository}/: --from.") from None


def _hub_size(part: Part) -> int | None:
    """Return the bytes of a data set on the hub, or None where the hub does not tell."""
    if part.source.startswith("https://") or os.environ.get("HF_HUB_OFFLINE"):
        return None
    from huggingface_hub import HfApi

    try:
        found = HfApi().dataset_info(part.source, files_metadata=True, timeout=10.0)
    except Exception:  # a figure for the user, on which nothing depends; the fetch says what is wrong
        return None
    return sum(file.size or 0 for file in found.siblings or ())


def _account(folder: Path) -> dict[str, Any]:
    path = folder / ACCOUNT
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{str(path)!r}, the account of what was made, cannot be read: name another folder.")
    return found


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    return sorted(path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder))


def _sizes(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in _files(folder)}


def _sizes_of(entry: dict[str, Any]) -> dict[str, int]:
    return {name: file["bytes"] for name, file in entry["files"].items()}


def _fingerprint(source: Path) -> str:
    """Return what tells a source from another state of it: names, sizes and times of its files."""
    said = [(str(path.relative_to(source)), path.stat().st_size, path.stat().st_mtime_ns) for path in _files(source)]
    return hashlib.sha256(repr(said).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in counts.items())
