"""The tokenizer of a policy's folder, with the chat template that the run wants."""

import copy
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra_jax.config.schema import ConfigError, ModelConfig
from orchestra_jax.io.shipped import CONF
from orchestra_jax.models import saved_tokenizer

# Goes before a template that knows nothing of tools, as SmolLM2's: it writes the tools and the form of a call into the
# system message. What it sets, the template reads. A saved tokenizer keeps it, so other programs render as we do.
_MENU = (
    "{%- if tools %}{%- set menu %}You may call these tools, one a line:\n"
    "{% for tool in tools %}{{ (tool.function if tool.function is defined else tool) | tojson }}\n{% endfor %}"
    "To call one, write\n<tool_call>\n"
    """{"name": "the tool's name", "arguments": {"an argument's name": "its value"}}\n</tool_call>\n"""
    "{% endset %}{%- set menu = menu | trim %}"
    "{%- if messages[0]['role'] == 'system' %}"
    "{%- set messages = [{'role': 'system', 'content': messages[0]['content'] + '\n\n' + menu}] + messages[1:] %}"
    "{%- else %}{%- set messages = [{'role': 'system', 'content': menu}] + messages %}{%- endif %}{%- endif -%}\n"
)
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


def with_menu(tokenizer: "PreTrainedTokenizerFast") -> "PreTrainedTokenizerFast":
    """Return a copy of the tokenizer whose template shows tools."""
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = _MENU + tokenizer.chat_template
    return tokenizer
