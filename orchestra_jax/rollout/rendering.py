"""Prompts of every history but "keep": the template renders the whole conversation again at each turn.

The ids of a prompt are those of its whole text. Yet what stands before the last end of a turn is not tokenised again
while a trajectory grows, nor decoded: a control token is a border over which a tokenizer never looks (`_border`).
Nor is it rendered again by a template that is known to write each message by itself (`_writes_alone`).
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from orchestra_jax.config.choices import History
from orchestra_jax.rollout.parsing import END_THINK
from orchestra_jax.types import ToolSpec

if TYPE_CHECKING:  # importing transformers takes two seconds
    from transformers import PreTrainedTokenizerFast

Ids = tuple[int, ...]
Messages = Sequence[Mapping[str, Any]]
S = TypeVar("S", str, Ids)
R = TypeVar("R", str, Ids)
# SHA-256 of Qwen3's templates, the first and the later one.
_QWEN3 = {
    "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5",
    "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8",
}
_ASKED = {"role": "user", "content": ""}


class Rendering:
    """The prompts of one trajectory after the first.

    Args:
        stop_id: the template's end of a turn.
        history, tokenizer, render, encode, spelled: of the chat format.
    """

    def __init__(
        self,
        history: History,
        tokenizer: "PreTrainedTokenizerFast",
        stop_id: int,
        render: Callable[[Messages, Sequence[ToolSpec]], str],
        encode: Callable[[str], Ids],
        spelled: Callable[[Ids], str],
    ) -> None:
        self._history, self._stop_id, self._render_all, self._encode = history, stop_id, render, encode
        border, joins = _border(tokenizer, stop_id)
        stop = (stop_id,) if joins else None
        self._encoded = _Growing[str, Ids](encode, border)
        self._spelled = _Growing[Ids, str](spelled, stop)  # of the sequence so far
        self._respelled = _Growing[Ids, str](spelled, stop)  # of the conversation, rendered again
        # Before an assistant's words, if what is new can be rendered alone.
        self._opening = render([_ASKED], ()) if _writes_alone(tokenizer.chat_template) else ""
        self._said: list[tuple[str, str]] = []  # role and text of each message of the turn before
        self._tools: Sequence[ToolSpec] = ()
        self._text = ""  # of both, rendered

    def next_prompt(
        self, old_ids: Sequence[int], messages: Messages, tools: Sequence[ToolSpec] = ()
    ) -> tuple[Ids, bool]:
        """Return what `ChatFormat.next_prompt` does.

        It appends if the new ids start with `old_ids`, or if only the tokenization differs (the policy may sample
        another split of the same text): then the sampled ids stay.
        """
        old_ids = tuple(old_ids)
        if self._history is History.drop_thinking:
            messages = [_without_thinking(message) for message in messages]
        new_ids = self._encoded(self._render(messages, tools))
        if new_ids[: len(old_ids)] == old_ids:
            return new_ids[len(old_ids) :], True
        if old_ids and old_ids[-1] == self._stop_id:
            old_text, new_text = self._spelled(old_ids), self._respelled(new_ids)
            if new_text.startswith(old_text):
                return self._encode(new_text[len(old_text) :]), True
        self._spelled.known = self._respelled.known  # the sequence that starts here
        return new_ids, False

    def _render(self, messages: Messages, tools: Sequence[ToolSpec]) -> str:
        """Return the conversation as text: that of the turn before and the new messages, if `_writes_alone` holds."""
        count = len(self._said)
        said = [(message["role"], message["content"]) for message in messages]
        roles = [role for role, _ in said]
        if (
            self._opening
            and (said[:count], tools) == (self._said, self._tools)
            and roles[count - 1 : count + 1] in (["tool", "assistant"], ["user", "assistant"])
            and set(roles[count + 1 :]) in ({"tool"}, {"user"})
            and all(len(message) == 2 for message in messages)  # no calls or thoughts beside the text
            and not any(END_THINK in text for _, text in said)
        ):
            text = self._text + self._render_all([_ASKED, *messages[count:]], ())[len(self._opening) :]
        else:
            text = self._render_all(messages, tools)
        self._said, self._tools, self._text = said, tools, text
        return text


class _Growing(Generic[S, R]):
    """A function of a sequence that grows; what stands before the last border is not computed again.

    Args:
        function: `function(a + b) == function(a) + function(b)` for every b that begins with the border.
        border: a part of the sequence; None: there is none, and all is computed each time.

    Attributes:
        known: a beginning of the sequence, up to a border and with it, and the result of what stands before the border.
    """

    def __init__(self, function: Callable[[S], R], border: S | None) -> None:
        self._function: Callable[[S], R] = function
        self._border: S | None = border
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
            self.known = whole[: last + len(self._border)], done
        return done + self._function(whole[last:])


def _last(whole: S, border: S, start: int) -> int:
    """Return the last place of the border from `start` on, or -1."""
    if isinstance(whole, str):
        return whole.rfind(str(border), start)
    back = whole[start:][::-1]
    return len(whole) - 1 - back.index(border[0]) if border[0] in back else -1


@lru_cache(maxsize=8)
def _border(tokenizer: "PreTrainedTokenizerFast", stop_id: int) -> tuple[str | None, bool]:
    """Return the text of the end of a turn if it is a border of the tokenizer, and whether decoded ids join there.

    The tokenizers library first cuts the text at the added tokens that are not normalised, leftmost and longest first,
    and then works on each piece alone. So the end of a turn is a border wherever it stands if it is such a token and
    takes no space before it, and if no added token holds it or ends as it begins: none can begin before it and reach
    into it. Decoding joins if the decoder works on bytes, or replaces texts that have nothing to do with the border.
    """
    backend = tokenizer.backend_tokenizer
    added = backend.get_added_tokens_decoder()
    end = added.get(stop_id)
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


def _writes_alone(template: Any) -> bool:
    """Return whether a template is known to write new messages alike behind every conversation without thoughts.

    Qwen3's writes a message from its text, from the roles beside it and from whether it is the first or last. Where the
    last user message stands decides on thoughts alone. So new messages that begin with the assistant's and do not end
    with it are written as behind `_ASKED`, and the text before them ends in the same way.
    """
    return isinstance(template, str) and hashlib.sha256(template.encode()).hexdigest() in _QWEN3


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
