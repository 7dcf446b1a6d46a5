"""Prompts of every history but "keep": the template renders the whole conversation again at each turn.

The ids of a prompt are those of its whole text. Yet what stands before the last end of a turn is not tokenised again
while a trajectory grows, nor decoded: a control token is a border over which a tokenizer never looks (`_border`).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from orchestra_jax.config.choices import History
from orchestra_jax.rollout.parsing import END_THINK
from orchestra_jax.types import ToolSpec

if TYPE_CHECKING:  # it imports this module
    from orchestra_jax.rollout.chat import ChatFormat

Ids = tuple[int, ...]
S = TypeVar("S", str, Ids)
R = TypeVar("R", str, Ids)


class Rendering:
    """The prompts of one trajectory after the first."""

    def __init__(self, chat: "ChatFormat") -> None:
        self._chat = chat
        border, joins = _border(chat)
        stop = chat.stop_ids[:1] if joins else None
        self._encode = _Growing[str, Ids](chat.encode, border)
        self._spelled = _Growing[Ids, str](chat.spelled, stop)  # of the sequence so far
        self._respelled = _Growing[Ids, str](chat.spelled, stop)  # of the conversation, rendered again

    def next_prompt(
        self, old_ids: Sequence[int], messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec] = ()
    ) -> tuple[Ids, bool]:
        """Return what `ChatFormat.next_prompt` does.

        It appends if the new ids start with `old_ids`, or if only the tokenization differs (the policy may sample
        another split of the same text): then the sampled ids stay.
        """
        chat, old_ids = self._chat, tuple(old_ids)
        if chat.history is History.drop_thinking:
            messages = [_without_thinking(message) for message in messages]
        new_ids = self._encode(chat.render(messages, tools))
        if new_ids[: len(old_ids)] == old_ids:
            return new_ids[len(old_ids) :], True
        if old_ids and old_ids[-1] == chat.stop_ids[0]:
            old_text, new_text = self._spelled(old_ids), self._respelled(new_ids)
            if new_text.startswith(old_text):
                return chat.encode(new_text[len(old_text) :]), True
        self._spelled.known = self._respelled.known  # the sequence that starts here
        return new_ids, False


class _Growing(Generic[S, R]):
    """A function of a sequence that grows; what stands before the last border is not computed again.

    Args:
        function: `function(a + b) == function(a) + function(b)` for every b that begins with the border.
        border: a part of the sequence; None: there is none, and all is computed each time.

    Attributes:
        known: a beginning of the sequence, up to a border and with it, and the result of what stands before the border.
    """

    def __init__(self, function: Callable[[S], R], border: S | None) -> None:
        self._function, self._border = function, border
        self.known: tuple[S, R] | None = None

    def __call__(self, whole: S) -> R:
        if self._border is None:
            return self._function(whole)
        start, done = 0, None
        if self.known is not None and whole[: len(self.known[0])] == self.known[0]:
            start, done = len(self.known[0]) - len(self._border), self.known[1]
        last = _last(whole, self._border, start)
        if last < 1:
            return self._function(whole)
        if done is None or last > start:
            more = self._function(whole[start:last])
            done = more if done is None else done + more
            self.known = whole[:last] + self._border, done
        return done + self._function(whole[last:])


def _last(whole: S, border: S, start: int) -> int:
    """Return the last place of the border from `start` on, or -1."""
    if isinstance(whole, str):
        return whole.rfind(str(border), start)
    back = whole[start:][::-1]
    return len(whole) - 1 - back.index(border[0]) if border[0] in back else -1


@lru_cache(maxsize=8)
def _border(chat: "ChatFormat") -> tuple[str | None, bool]:
    """Return the text of the end of a turn if it is a border of the tokenizer, and whether decoded ids join there.

    The tokenizers library first cuts the text at the added tokens that are not normalised, leftmost and longest first,
    and then works on each piece alone. So the end of a turn is a border wherever it stands if it is such a token and
    takes no space before it, and if no added token holds it or ends as it begins: none can begin before it and reach
    into it. Decoding joins if the decoder works on bytes, or replaces texts that have nothing to do with the border.
    """
    backend = chat.tokenizer.backend_tokenizer
    added = backend.get_added_tokens_decoder()
    end = added.get(chat.stop_ids[0])
    if end is None or end.normalized or end.single_word or end.lstrip:
        return None, False
    if backend.truncation or backend.padding or backend.encode_special_tokens:
        return None, False
    text, others = end.content, [token.content for token in added.values() if token.content != end.content]
    beginnings = tuple(text[:length] for length in range(1, len(text)))
    overlap = text.endswith(beginnings) or any(text in other or other.endswith(beginnings) for other in others)
    if overlap or text[0].isspace() or not text[0].isascii():
        return None, False
    return text, _joins(json.loads(backend.decoder.__getstate__()) if backend.decoder else {}, text[0])


def _joins(decoder: Mapping[str, Any], first: str) -> bool:
    """Return whether the text of ids is that of two parts, where the second one's text begins with `first`."""
    if decoder.get("type") == "Sequence":
        return all(_joins(each, first) for each in decoder["decoders"])
    if decoder.get("type") == "Replace":
        return first not in decoder["pattern"].get("String", first)
    return decoder.get("type") in ("Fuse", "ByteLevel")


def _without_thinking(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an assistant's message as Qwen3's template shows those before the last user message."""
    if message["role"] != "assistant":
        return message
    return {**message, "content": message["content"].rpartition(END_THINK)[2].lstrip("\n")}
