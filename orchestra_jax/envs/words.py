"""Conversations in the words of one environment, for small policies that start from random weights.

Such a policy learns to copy names and numbers within minutes where every word is one token; see `models.tokenizer`.
"""

from collections.abc import Iterable, Sequence

from orchestra_jax.envs.base import OwnChat
from orchestra_jax.models.tokenizer import build_word_tokenizer

# Qwen3's conversation with spaces for newlines, and the menu as a table in one line: "python 1 2; local_search 0 9".
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|> system tool cents seconds"
    "{% for tool in tools %}{% set f = tool.function %}; {{ f.name }} {{ ((f.price_usd or 0) * 100) | round | int }} "
    "{{ (f.latency_s or 0) | round | int }}{% endfor %}<|im_end|>{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|> user{% endif %}"
    "<tool_response> {{ message.content }}</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>{% endif %}"
    "{% elif message.role == 'assistant' %}<|im_start|> assistant{{ message.content }}<|im_end|>"
    "{% else %}<|im_start|> {{ message.role }} {{ message.content }}<|im_end|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant{% endif %}"
)
# Words of every conversation beside the environment's own.
_FRAME = " system user assistant tool cents seconds; 0"
_CALL = '\n{"name": "", "arguments": {"": ""}}\n'


def word_chat(texts: Iterable[str], scaffolds: Sequence[str] = ()) -> OwnChat:
    """Return a chat whose tokenizer has one token for every word of `texts`, and none for other words.

    Args:
        texts: all questions, answers and calls, names of tools and arguments included.
        scaffolds: literal strings that become one token each. If there are any, they and `texts` hold every part of a
            call that is not an argument.
    """
    said = [*texts, _FRAME, *([] if scaffolds else [_CALL])]
    return OwnChat(tokenizer=build_word_tokenizer(said, CHAT_TEMPLATE, scaffolds), compact_menu=True)
