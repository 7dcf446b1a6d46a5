"""The menu of tools in front of a chat template that leaves tools out, as SmolLM2's does.

It writes the tools and the form of a call into the system message. The tokenizer that a run saves keeps it, so that
other programs render as we do.
"""

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing transformers takes two seconds
    from transformers import PreTrainedTokenizerFast

# Goes before a template that knows nothing of tools; what it sets, the template reads.
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


def with_menu(tokenizer: "PreTrainedTokenizerFast") -> "PreTrainedTokenizerFast":
    """Return a copy of the tokenizer whose template shows tools."""
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = _MENU + tokenizer.chat_template
    return tokenizer
