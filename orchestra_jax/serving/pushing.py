"""Hand a run's policy on: write its model card, and upload both to the Hugging Face hub."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra_jax.config.exit_status import USAGE_ERROR
from orchestra_jax.config.schema import POLICY_FOLDER, ConfigError, WorldConfig
from orchestra_jax.envs.base import Environment
from orchestra_jax.envs.registry import environment_class, make_environment
from orchestra_jax.io import hub
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.io.whole import write_whole
from orchestra_jax.serving.opened import settings_in_force

if TYPE_CHECKING:
    from orchestra_jax.training.subject import Subject

_CARD, _ADAPTERS, _MERGED = "README.md", "adapter_config.json", "merged"
_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", _CARD)


def push(run: Path, name: str, licence: str | None, *, merge: bool, dry_run: bool, private: bool) -> int:
    """Push a policy; return the status to exit with. What a user can mend is one sentence.

    Args:
        name: id of the repository on the hub, which is made if it is not there.
        licence: of the policy, as the hub writes it.
        merge: push adapters as one model with their base.
        dry_run: write the card and show the folder, and upload nothing.
    """
    try:
        folder = _written(run, name, licence, merge=merge)
        files = sorted(file for pattern in _FILES for file in folder.glob(pattern))
        for file in files:
            print(f"{file.stat().st_size:>15,}  {file.name}")
        if dry_run:
            print(f"This is {folder}; nothing was uploaded.", file=sys.stderr)
        else:
            print(f"Uploaded to {_upload(folder, name, private=private)}", file=sys.stderr)
    except (ConfigError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    return 0


def _written(run: Path, name: str, licence: str | None, *, merge: bool) -> Path:
    """Return the folder to push, with its card."""
    folder = run / POLICY_FOLDER
    if not folder.is_dir():
        raise ConfigError(f"{str(run)!r} has no folder {POLICY_FOLDER}: name the folder of a run that has ended.")
    if not hub.is_name(name):
        raise ConfigError(f"{name!r} is no id of the hub: write ORGANISATION/NAME.")
    from orchestra_jax.models.lora import adapter_base  # only now: a mistake needs no JAX
    from orchestra_jax.serving.card import MARK, card
    from orchestra_jax.training.subject import subject_of

    with contextlib.redirect_stdout(sys.stderr):
        cfg = settings_in_force(str(run), [])
        adapted = (folder / _ADAPTERS).is_file()
        if merge and not adapted:
            raise ConfigError(f"{str(folder)!r} has no adapters to merge: leave --merge out.")
        if adapted and not merge and not hub.is_id(base := adapter_base(folder)):
            raise ConfigError(
                f"The base of the adapters is the folder {base!r}, which nobody else has: push with --merge."
            )
        if merge:
            folder = _merge(subject_of(cfg), run)
        with _world(cfg) as environment:
            written = card(run, name, licence, cfg, environment, folder)
    file = folder / _CARD
    if file.is_file() and MARK not in file.read_text(encoding="utf-8"):
        print(f"{file} was changed by hand and stays as it is.", file=sys.stderr)
    else:
        write_whole(file, written)
    return folder


@contextlib.contextmanager
def _world(cfg: WorldConfig) -> Iterator[Environment]:
    if problems := environment_class(cfg).problems(cfg):
        raise ConfigError("\n".join(problems))
    with LoopThread("push") as loop:
        environment = make_environment(cfg)
        try:
            yield environment
        finally:
            loop.run(environment.close())


def _merge(subject: "Subject", run: Path) -> Path:
    """Write the adapters and their base as one model; return its folder."""
    from orchestra_jax.models import checkpoint
    from orchestra_jax.models.lora import load_peft
    from orchestra_jax.rollout.chat import make_chat
    from orchestra_jax.training.adapters import merged
    from orchestra_jax.training.build import make_policy

    assert subject.adapters is not None
    chat, folder = make_chat(subject.cfg), run / _MERGED
    model, params = make_policy(subject.cfg, chat)
    lora, adapters = load_peft(subject.adapters, model)
    checkpoint.save(folder, model, merged(params, adapters, lora), tokenizer=chat.tokenizer, overwrite=True)
    return folder


def _upload(folder: Path, name: str, *, private: bool) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = HfApi()
    try:
        made = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=list(_FILES), commit_message="Pushed by orchestra-jax"
        )
    except (HfHubHTTPError, LocalTokenNotFoundError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403) or isinstance(error, LocalTokenNotFoundError):
            raise ConfigError(
                f"The hub does not let you write to {name}: run `hf auth login` with a token that may write there."
            ) from error
        raise ConfigError(f"The hub did not take {name}: {str(error).strip().splitlines()[0]}") from error
    return str(made)
