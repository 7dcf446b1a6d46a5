"""Tokens of chat messages, and cutting them to a model's context."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from orchestra_jax.io import hub

ChatMessage = Mapping[str, str]
CHARS_PER_TOKEN = 3  # an estimate: English has about 4, code and other languages less
CUT = "\n[... cut ...]\n"
# What chat templates add: bounds over the templates of Qwen, Llama, Mistral, Gemma and OpenAI, a default system
# message included.
_PER_MESSAGE = 8
_PER_PROMPT = 64
_SMALLEST_CUT = 32  # tokens; a text is not cut to less
_QUESTION = 4 * _SMALLEST_CUT
LEAST_ROOM = _PER_PROMPT + 2 * _PER_MESSAGE + _QUESTION  # tokens into which every system message and question is cut


class TokenCounter:
    """Counts by the model's own tokenizer; without one it estimates.

    Attributes:
        control: its control strings; none without one.

    Args:
        path: of the model's tokenizer.json, or its folder or id on the hub; None estimates by characters.

    Raises:
        FileNotFoundError: no such file.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._tokenizer: Tokenizer | None = None
        if path is not None:
            found = hub.local(path, "model", hub.SMALL)
            file = found / "tokenizer.json" if found.is_dir() else found
            if not file.is_file():
                raise FileNotFoundError(f"No tokenizer at {str(file)!r}; give a tokenizer.json, or null to estimate.")
            self._tokenizer = Tokenizer.from_file(str(file))
            self._tokenizer.no_truncation()  # some files keep those of their training, and would count no further
            self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder().values() if self._tokenizer is not None else ()
        self.control = tuple(token.content for token in added if token.content.strip())  # not of blanks, as in code

    def count(self, text: str) -> int:
        """Count the tokens of a text; without a tokenizer a third of its characters, rounded up."""
        if self._tokenizer is None:
            return math.ceil(len(text) / CHARS_PER_TOKEN)
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def most(self, messages: Sequence[ChatMessage]) -> int:
        """Return the tokens that the prompt cannot exceed, template included.

        Without a tokenizer every byte counts: no byte-level vocabulary has tokens below one byte.
        """
        if self._tokenizer is not None:
            return self.estimate(messages)
        return _template(messages) + sum(len(message["content"].encode()) for message in messages)

    def estimate(self, messages: Sequence[ChatMessage]) -> int:
        """Return the tokens of the prompt by our own count, template included."""
        return _template(messages) + sum(self.count(message["content"]) for message in messages)

    def cut(self, text: str, tokens: int) -> str:
        """Return the text with its middle cut out, so that it counts at most `tokens` (at least 32)."""
        keep = max(tokens, _SMALLEST_CUT)
        if self.count(text) <= keep:
            return text
        room = keep - self.count(CUT)
        while True:
            short = self._ends(text, room)
            # Tokens at the seams may differ from those of the whole text.
            excess = self.count(short) - keep
            if excess <= 0 or room <= 0:
                return short
            room = max(0, room - excess)

    def _ends(self, text: str, tokens: int) -> str:
        """Return the beginning and the end of the text, `tokens` in all, joined by the mark."""
        head, tail = tokens - tokens // 2, tokens // 2
        if self._tokenizer is None:
            size = len(text)
            return text[: head * CHARS_PER_TOKEN] + CUT + text[size - tail * CHARS_PER_TOKEN :]
        spans = self._tokenizer.encode(text, add_special_tokens=False).offsets
        start = spans[head - 1][1] if head > 0 else 0
        stop = spans[len(spans) - tail][0] if tail > 0 else len(text)
        return text[:start] + CUT + text[stop:]


def fit(messages: Sequence[ChatMessage], tokens: int, counter: TokenCounter) -> list[dict[str, str]]:
    """Return the messages, cut so that the prompt counts at most `tokens`.

    The first system message and the last message (the question) stay. First the oldest of the others go, one by one;
    then the middle of the question is cut, and of a system message that takes more than half of the room.

    Raises:
        ValueError: no message, or a room in which no question fits.
    """
    if not messages:
        raise ValueError("There is no message to send.")
    kept = [dict(message) for message in messages]
    total = counter.estimate(kept)
    if total <= tokens:
        return kept
    system = kept[:1] if kept[0]["role"] == "system" and len(kept) > 1 else []
    rest = kept[len(system) :]
    # Templates want a user's message first: an answer without its question goes with it.
    while len(rest) > 1 and (total > tokens or rest[0]["role"] == "assistant"):
        total -= counter.count(rest.pop(0)["content"]) + _PER_MESSAGE
    if total > tokens:
        room = tokens - _template(system + rest)
        if room < _QUESTION:
            raise ValueError(f"No question fits into {tokens} tokens; raise context_tokens, or lower max_tokens.")
        if system:
            system[0]["content"] = counter.cut(system[0]["content"], room // 2)
            room -= counter.count(system[0]["content"])
        rest[0]["content"] = counter.cut(rest[0]["content"], room)
    return system + rest


def _template(messages: Sequence[ChatMessage]) -> int:
    return _PER_PROMPT + _PER_MESSAGE * len(messages)
