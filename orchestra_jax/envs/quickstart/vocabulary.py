"""The words of the quickstart world: its tokenizer and chat template."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from orchestra_jax.envs.quickstart.world import CATALOGUE, EXPERTS, PHRASES, SKILLS, QuickstartWorld, wordings
from orchestra_jax.models.tokenizer import build_word_tokenizer

if TYPE_CHECKING:  # importing transformers takes two seconds
    from transformers import PreTrainedTokenizerFast

# Qwen3's conversation with spaces for newlines, and the menu as a table in one line: "python 1 2; local_search 0 9".
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|> system tool cents seconds"
    "{% for tool in tools %}{% set f = tool.function %}; {{ f.name }} {{ (f.price_usd * 100) | round | int }} "
    "{{ f.latency_s | round | int }}{% endfor %}<|im_end|>{% endif %}"
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
SCAFFOLDS = (
    '\n{"name": "',
    '", "arguments": {"code": "',
    '", "arguments": {"query": "',
    '", "arguments": {}}\n',
    '"}}\n',
)


def build_tokenizer(world: QuickstartWorld) -> "PreTrainedTokenizerFast":
    """The word-level tokenizer of the world: Qwen3's special tokens and every word that the world can say."""
    return build_word_tokenizer(world_texts(world), CHAT_TEMPLATE, SCAFFOLDS)


def world_texts(world: QuickstartWorld) -> Iterable[str]:
    """Texts that together hold every word of the world's questions, menus, preferences, tools and answers."""
    rng = np.random.default_rng(0)
    yield from world.local_corpus
    yield from world.web_corpus
    yield from (wording for kind in PHRASES for split in ("train", "eval") for wording in wordings(kind, split))
    for split in ("train", "eval"):
        for family in SKILLS[EXPERTS[0]]:
            for _ in range(1500):
                question = world.question(family, split, rng)
                yield from (question.text, question.answer, question.keywords, *question.distractors)
    yield " system user assistant tool cents seconds; " + " ".join(CATALOGUE)
    yield "unknown no results SyntaxError: invalid syntax. Perhaps you forgot a comma? (<string>, line 1)"
    yield " arithmetic lookup easy hard accurate cheap fast local free"
    yield "NameError: name 'seats' is not defined"
    yield "invalid decimal literal. leading zeros in decimal integer literals are not permitted; use an 0o prefix"
    yield "for octal"
    yield '{"name": "python", "arguments": {"code": "1 + 2"}}\n'
