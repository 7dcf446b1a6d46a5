"""The tokenizer of a policy that has one, with the chat template that the run wants."""

from pathlib import Path
from typing import TYPE_CHECKING

from orchestra_jax.config.schema import ConfigError, ModelConfig
from orchestra_jax.io.shipped import CONF
from orchestra_jax.models import saved_tokenizer

if TYPE_CHECKING:  # importing transformers takes two seconds
    from transformers import PreTrainedTokenizerFast


def folder_tokenizer(model: ModelConfig) -> "PreTrainedTokenizerFast":
    """Load the tokenizer of model.tokenizer or model.path, with model.chat_template if one is named.

    Raises:
        ConfigError: there is none, or it or the template cannot be read.
    """
    folder = model.tokenizer or model.path
    if folder is None:
        raise ConfigError("There is no tokenizer: set model.tokenizer=FOLDER, or model.path to a policy that has one.")
    try:
        tokenizer = saved_tokenizer.load(folder)
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from error
    if model.chat_template is not None:
        tokenizer.chat_template = _template(model.chat_template)
    return tokenizer


def _template(name: str) -> str:
    path = CONF / "chat_template" / f"{name}.jinja"
    try:
        return (path if path.is_file() else Path(name)).read_text()
    except OSError as error:
        known = ", ".join(sorted(each.stem for each in path.parent.glob("*.jinja")))
        raise ConfigError(f"model.chat_template={name} is no Jinja file and none of {known} ({error}).") from error
