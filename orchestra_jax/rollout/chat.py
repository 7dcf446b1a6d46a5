"""Rendering of conversations to ids; the one place that knows the chat format.

**Tokens.** Everything that depends on a template is read off the tokenizer's own chat template by rendering sentinels,
so no control token is written here. In `history: keep` a sequence only grows: sampled ids, then `observation_ids`.

**Untrusted text.** Tool outputs, user turns and the menu may contain the tokenizer's own control strings
("<|im_end|>", "</tool_response>"). `ChatFormat` writes a space after the first character of each ("< |im_end|>"), so
that it stays readable and can neither end a turn nor open a tool call. System text is ours and is left alone; assistant
text keeps the tags (thinking, tool calls, tool responses), its protocol, and loses every other control string.

**Tools.** A template that leaves tools out, as SmolLM2's does, gets one in front of it (`folder_tokenizer.with_menu`).

`parsing` reads calls and answers from the sampled text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from orchestra_jax.config.choices import History
from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.envs.registry import environment_class
from orchestra_jax.rollout.parsing import CLOSE, END_THINK, OPEN, THINK, ParseError, parse_tool_calls
from orchestra_jax.tools.schema import to_openai
from orchestra_jax.types import ToolSpec

if TYPE_CHECKING:  # importing transformers takes two seconds
    from transformers import PreTrainedTokenizerFast

__all__ = ["ChatFormat", "ParseError", "make_chat", "parse_tool_calls"]  # one place to import the chat format from

_PROTOCOL = frozenset((OPEN, CLOSE, THINK, END_THINK, "<tool_response>", "</tool_response>"))
_USER, _ASSISTANT, _FIRST, _SECOND = (f"sentinel{letter}" for letter in "abcd")


class ChatFormat:
    """Turns messages into ids and ids into text for one tokenizer and its chat template.

    A message is `{"role": "system" | "user" | "assistant" | "tool", "content": str}`; an assistant's content is the
    text that `decode` gave for its sampled ids. Further keys reach the template unchanged.

    Args:
        tokenizer: Hugging Face fast tokenizer with a chat template, which may leave tools out.
        history: "keep" appends to one sequence; the others re-render every turn (docs/rollouts.md).
        compact_menu: show price_usd, latency_s and local as keys of the tool's "function" instead of in words at the
            end of its description.

    Attributes:
        tokenizer: the same, with a template that shows tools.
        stop_ids: ids that end a turn, the template's end of turn first, then the tokenizer's eos and pad. After a turn
            that ended on another id than the first, the template's end of turn is missing from the history.

    Raises:
        ValueError: no chat template, or one that does not show assistant and tool text literally.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerFast",
        *,
        history: Literal["keep", "strip_thinking", "drop_thinking"] | History = "keep",
        compact_menu: bool = False,
    ) -> None:
        if tokenizer.chat_template is None:
            raise ValueError("The tokenizer has no chat template; use the tokenizer of a chat model.")
        if history not in list(History):
            raise ValueError(f"history must be one of {', '.join(History)}, not {history!r}.")
        if not _shows_tools(tokenizer):
            from orchestra_jax.rollout.folder_tokenizer import with_menu

            tokenizer = with_menu(tokenizer)
        self.tokenizer = tokenizer
        self.history = History(history)
        self._compact_menu = compact_menu
        self._backend = tokenizer.backend_tokenizer
        added = sorted((token.content for token in tokenizer.added_tokens_decoder.values()), key=lambda s: (-len(s), s))
        self._control = _alternatives(added)
        self._assistant_control = _alternatives([token for token in added if token not in _PROTOCOL])
        self._read_template()

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec] = ()) -> str:
        """Return the conversation as text up to where the policy speaks next, untrusted text neutralised."""
        safe = [{**message, "content": self.safe_content(message)} for message in messages]
        menu = [self._tool(spec) for spec in tools] or None
        return str(self.tokenizer.apply_chat_template(safe, tools=menu, add_generation_prompt=True, tokenize=False))

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        """Return the ids of `render(messages, tools)`: the first prompt, or a re-rendered whole conversation."""
        return self.encode(self.render(messages, tools))

    def observation_ids(self, texts: Sequence[str]) -> tuple[int, ...]:
        """Return the ids after a sampled turn: the results of its calls in order, then the opening of the next turn."""
        if not texts:
            raise ValueError("An observation needs the text of at least one tool result.")
        start, between, end = self._tool_frame
        return self.encode(start + between.join([self.neutralise(text) for text in texts]) + end)

    def user_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids after a sampled turn when the user speaks next."""
        start, end = self._user_frame
        return self.encode(start + self.neutralise(text) + end)

    def next_prompt(
        self, old_ids: Sequence[int], messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec] = ()
    ) -> tuple[tuple[int, ...], bool]:
        """Return what to feed before the next sample: `(suffix, True)` to append, `(whole prompt, False)` to fork.

        "keep" always appends; the others are in `rendering`.

        Args:
            old_ids: ids of the sequence so far, the last sampled turn and its stop id included.
            messages: the whole conversation; the messages after the last assistant turn are new.

        Raises:
            ValueError: with "keep", if the new messages are neither tool results nor one user message.
        """
        if self.history is not History.keep:
            return self.prompts()(old_ids, messages, tools)
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        new = messages[last + 1 :]
        if new and all(message["role"] == "tool" for message in new):
            return self.observation_ids([message["content"] for message in new]), True
        if [message["role"] for message in new] == ["user"]:
            return self.user_ids(new[0]["content"]), True
        raise ValueError("After an assistant turn, history 'keep' takes tool results or one user message.")

    def prompts(self) -> Callable[..., tuple[tuple[int, ...], bool]]:
        """Return `next_prompt` of one trajectory, which reads only what is new of a conversation that grows."""
        if self.history is History.keep:
            return self.next_prompt
        from orchestra_jax.rollout.rendering import Rendering

        known = self.tokenizer, self.stop_ids[0]
        return Rendering(self.history, *known, self.render, self.encode, self.spelled).next_prompt

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of rendered text; control strings in it become control tokens."""
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids without the stop id at their end, other control tokens spelled out."""
        return self.spelled(ids[:-1] if ids and ids[-1] in self.stop_ids else ids)

    def neutralise(self, text: str) -> str:
        """Return the text with a space after the first character of every control string of the tokenizer."""
        return self._control.sub(_split, text)

    def spelled(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens spelled out."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def safe_content(self, message: Mapping[str, Any]) -> str:
        """Return a message's text without the control strings that its role may not write."""
        role, content = message["role"], message["content"]
        if not isinstance(content, str):
            raise ValueError(f"The content of a {role} message must be text, not {type(content).__name__}.")
        if role == "system":
            return content
        return self._assistant_control.sub(_split, content) if role == "assistant" else self.neutralise(content)

    def _tool(self, spec: ToolSpec) -> Any:
        tool = to_openai(spec, show_price=not self._compact_menu)
        if self._compact_menu:
            tool["function"] |= {"price_usd": spec.price_usd, "latency_s": spec.latency_s, "local": spec.local}
        return self._safe_tree(tool)

    def _safe_tree(self, node: Any) -> Any:
        if isinstance(node, str):
            return self.neutralise(node)
        if isinstance(node, Mapping):
            return {self.neutralise(key): self._safe_tree(value) for key, value in node.items()}
        return [self._safe_tree(value) for value in node] if isinstance(node, list | tuple) else node

    def _read_template(self) -> None:
        """Read off rendered sentinels what the template puts after each turn."""
        first_turns = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _ASSISTANT}]
        one_result = [*first_turns, {"role": "tool", "content": _FIRST}]
        two_results = [*one_result, {"role": "tool", "content": _SECOND}]
        user = [*first_turns, {"role": "user", "content": _FIRST}]
        start, between, end = _cut(self.render(two_results), _ASSISTANT, _FIRST, _SECOND)
        self._user_frame = _cut(self.render(user), _ASSISTANT, _FIRST)
        turn_end = self._control.match(start)
        if turn_end is None or not self._user_frame[0].startswith(turn_end[0]):
            raise ValueError("The chat template does not end assistant turns with a control token of the tokenizer.")
        if _cut(self.render(one_result), _ASSISTANT, _FIRST) != (start, end):
            raise ValueError("The chat template renders one tool result otherwise than the first of two.")
        skip = len(turn_end[0])
        self._tool_frame = (start[skip:], between, end)
        self._user_frame = (self._user_frame[0][skip:], self._user_frame[1])
        ends = [self.tokenizer.convert_tokens_to_ids(turn_end[0]), self.tokenizer.eos_token_id]
        ids = dict.fromkeys([*ends, self.tokenizer.pad_token_id])
        self.stop_ids: tuple[int, ...] = tuple(index for index in ids if index is not None)


def _shows_tools(tokenizer: "PreTrainedTokenizerFast") -> bool:
    if not isinstance(tokenizer.chat_template, str):  # several, one of them for tools
        return True
    tool = to_openai(ToolSpec(_FIRST, _SECOND, {"type": "object", "properties": {}}), show_price=False)
    return _FIRST in tokenizer.apply_chat_template([{"role": "user", "content": _USER}], tools=[tool], tokenize=False)


def _split(match: re.Match[str]) -> str:
    token = match[0]
    return f"{token[0]} {token[1:]}"


def _alternatives(tokens: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tokens)) or r"(?!)")


def _cut(text: str, *marks: str) -> tuple[str, ...]:
    """Return the texts between the marks and after the last one; each mark must occur once and in order."""
    parts = []
    rest = text
    for mark in marks:
        if text.count(mark) != 1 or mark not in rest:
            raise ValueError("The chat template does not show assistant, tool and user messages literally, in order.")
        before, _, rest = rest.partition(mark)
        parts.append(before)
    return (*parts[1:], rest)


def make_chat(cfg: WorldConfig) -> ChatFormat:
    """Return the chat format of a run, with its tokenizer.

    Raises:
        ConfigError: the tokenizer cannot be read, or the environment has none.
    """
    if cfg.model.tokenizer != "environment":
        from orchestra_jax.rollout.folder_tokenizer import folder_tokenizer

        return ChatFormat(folder_tokenizer(cfg.model), history=cfg.rollout.history)
    if (own := environment_class(cfg).chat(cfg)) is None:
        raise ConfigError(f"The environment {cfg.env.name} has no tokenizer of its own: set model.tokenizer=FOLDER.")
    return ChatFormat(own.tokenizer, history=cfg.rollout.history, compact_menu=own.compact_menu)
