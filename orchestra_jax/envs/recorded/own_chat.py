"""The chat of a small policy from random weights: a tokenizer of the training questions and a short template.

The menu stands behind the question and the wish, as in conf/chat_template/compact.jinja. There is no system message,
which is the same for every question, and no description of the sandbox and the relay: a policy without earlier
knowledge learns nothing from them. A price is one token, so that it is learned as a whole, and so is each word of a
wish, as a wish hangs on a word or two. A tool's name ends its line, where a policy that reads from left to right knows
what the line said of it. With Qwen3's 151,936 pieces a small policy would be mostly embeddings.
"""

from collections.abc import Iterable

from orchestra_jax.data.preferences import WORDINGS
from orchestra_jax.envs.base import OwnChat
from orchestra_jax.envs.recorded.offer import NO_CODE, PYTHON, SAME, all_prices, tool_name
from orchestra_jax.envs.recorded.wishes import wordings_of
from orchestra_jax.models.byte_tokenizer import build_byte_tokenizer
from orchestra_jax.tools.relay import RELAY

_TEMPLATE = (
    "{%- set shown = namespace(tools=false) -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'tool' -%}<tool_response>{{ message.content }}</tool_response>"
    "{%- elif message.role == 'assistant' -%}{{ message.content }}<|im_end|>"
    "{%- elif message.role == 'user' -%}<|im_start|>{{ message.content }}"
    "{%- if tools and not shown.tools -%}{%- set shown.tools = true -%}"
    "{%- for tool in tools if tool.function.name != 'relay' -%}"
    "{{- '\n' -}}{%- if tool.function.name != 'python' -%}{{- tool.function.description + ':' -}}{%- endif -%}"
    "{{- tool.function.name -}}"
    "{%- endfor -%}{%- endif -%}<|im_end|>"
    "{%- endif -%}"
    "{%- endfor -%}"
)
_BEFORE, _AFTER = '<tool_call>\n{"name": "', '", "arguments": {}}\n</tool_call>'  # of a call's name


def own_chat(questions: Iterable[str], models: Iterable[str]) -> OwnChat:
    """Return the chat whose pieces are those of these questions, of the wishes and of a refusal, and the models."""
    wishes = [words for kind in WORDINGS for words in wordings_of(kind, "train")]
    scaffolds = (_BEFORE, _AFTER, f"{_BEFORE}{RELAY.name}{_AFTER}")
    texts = [*questions, NO_CODE, *wishes * 64]  # so often that no word of a wish is left in parts
    names = [PYTHON, SAME.strip(), *map(tool_name, models)]
    tokenizer = build_byte_tokenizer(texts, _TEMPLATE, scaffolds, names=names, prices=all_prices(), size=2600)
    return OwnChat(tokenizer=tokenizer)
