"""Fetch models and data sets by their ids on the Hugging Face hub, such as "Qwen/Qwen3-8B", in place of a folder.

An id may end in "@REVISION" and, for some files of a repository, in ":PATTERN": "openai/gsm8k:main/train-*". Fetched
files stay in huggingface_hub's cache (HF_HOME) and are not fetched again; HF_HUB_OFFLINE=1 asks nobody.
"""

import fnmatch
import re
from functools import cache
from pathlib import Path
from typing import Literal

Kind = Literal["model", "dataset"]
# Folders of these names are ours, even if they do not exist yet: conf/ and docs/ name them.
_ID = re.compile(
    r"(?!(?:data|checkpoints|outputs)/)(?P<id>[A-Za-z0-9][\w-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?(:(?P<pattern>[^:]+))?"
)
# A model's code, other frameworks' weights and a data set's pictures are not fetched.
_WANTED = {
    "model": ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"],
    "dataset": ["*.json", "*.jsonl", "*.parquet", "*.tsv"],
}
SMALL = ("*.json", "*.jinja", "*.txt")  # files of a model except its weights


def is_id(name: str) -> bool:
    """Return whether a name is an id: it has the form of one, and neither it nor its parent folder exists here."""
    return bool(_ID.fullmatch(name)) and not Path(name).exists() and not Path(name).parent.is_dir()


def is_name(name: str) -> bool:
    """Return whether a repository of the hub may have this name."""
    found = _ID.fullmatch(name)
    return found is not None and found["id"] == name


def local(name: str | Path, kind: Kind, files: tuple[str, ...] | None = None) -> Path:
    """Return the path itself, or for an id its folder in the cache, fetched if it is not there.

    Args:
        files: patterns of the files that are needed; None: all that a model or data set is read from.

    Raises:
        FileNotFoundError: the hub does not have it, or it is neither in the cache nor can be fetched; one sentence.
    """
    return _fetched(str(name), kind, files) if is_id(str(name)) else Path(name)


def files_of(name: str | Path) -> list[Path]:
    """Return the files of a plain folder, or of an id those that match its pattern, if it has one."""
    if not is_id(str(name)):
        return [path for path in Path(name).glob("*") if path.is_file()]
    folder, found = local(name, "dataset"), _ID.fullmatch(str(name))
    pattern = (found and found["pattern"]) or "*"
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if fnmatch.fnmatch(path.relative_to(folder).as_posix(), pattern)]


def problem(key: str, name: str, kind: Kind, files: tuple[str, ...] | None = None) -> str | None:
    """Fetch an id; return a sentence with the fix if that fails, else None."""
    try:
        local(name, kind, files)
    except FileNotFoundError as error:
        return f"{key}={name}: {error}"
    return None


@cache
def _fetched(name: str, kind: Kind, files: tuple[str, ...] | None) -> Path:
    """Return the local copy of a model or data set of the hub, loaded once a process; each failure has its fix."""
    from huggingface_hub import errors, snapshot_download

    found = _ID.fullmatch(name)
    assert found is not None
    patterns = [found["pattern"]] if found["pattern"] else list(files or _WANTED[kind])
    try:
        folder = snapshot_download(found["id"], repo_type=kind, revision=found["revision"], allow_patterns=patterns)
    except errors.GatedRepoError:
        raise FileNotFoundError(
            f"the {kind} {found['id']} is gated: accept its terms on its page and run `hf auth login`, or name a "
            "folder."
        ) from None
    except errors.LocalEntryNotFoundError:
        raise FileNotFoundError(
            f"there is no such folder, and the {kind} {found['id']} is neither in the hub's cache nor to be fetched "
            "from here: fetch it where there is a network (`hf download`), or name a folder."
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise FileNotFoundError(
            f"there is no such folder, and the hub shows no {kind} of this id: correct it, or run `hf auth login` "
            "for a private one."
        ) from None
    return Path(folder)
