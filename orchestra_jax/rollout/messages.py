"""The policy that speaks in whole messages, such as a model behind an endpoint (`rollout.endpoint`)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.envs.base import Episode, Message
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.parsing import CLOSE, OPEN, ParseError, final_answer, parse_tool_calls
from orchestra_jax.rollout.speakers import PolicyTurn, Speaker
from orchestra_jax.types import InfrastructureError, ToolCall, ToolResult, ToolSpec, Turn, Usage


@dataclass(frozen=True, slots=True)
class WholeReply:
    """A whole message of a model.

    Attributes:
        text: the words without calls.
        thought: the reasoning, where the server shows it.
        calls: (id, name, JSON of the arguments) of each call, as the model wrote them.
        finish_reason: "stop" where the model ended by itself, also with calls; "length", or what else the server says.
        usage: ledger rows.
    """

    text: str
    thought: str
    calls: Sequence[tuple[str, str, str]]
    finish_reason: str
    usage: tuple[Usage, ...]


class MessageEngine(Protocol):
    """A model that answers with whole messages. The collector knows it by its `converse`."""

    async def converse(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSpec],
        *,
        budget: Budget,
        max_tokens: int,
        temperature: float,
        sample: tuple[int, ...],
    ) -> WholeReply | None:
        """Return the answer to a conversation of chat completions; None: it is longer than the model's context.

        Args:
            budget: budget that pays.
            max_tokens: most tokens of the answer.
            temperature: sampling temperature, where the model takes one.
            sample: number of the sample; each is recorded as an answer of its own to the same request.

        Raises:
            InfrastructureError: there is no answer.
            BudgetExceeded: the answer could cost more than is left.
        """


def message_speakers(
    engine: MessageEngine,
    limits: RolloutLimits,
    temperature: float,
    seed: Sequence[int],
    members: Sequence[tuple[int, int]],
) -> "list[MessageSpeaker]":
    """Return a speaker for each (group, member). At temperature 0 equal requests of several groups are one call."""
    samples = [(*seed, *place) if temperature else place[1:] for place in members]
    return [MessageSpeaker(engine, limits, temperature, sample) for sample in samples]


class MessageSpeaker(Speaker):
    """Speaks in whole messages.

    Args:
        temperature, sample: see `MessageEngine.converse`.
    """

    def __init__(
        self, engine: MessageEngine, limits: RolloutLimits, temperature: float, sample: tuple[int, ...]
    ) -> None:
        self._engine, self._limits, self._temperature, self._sample = engine, limits, temperature, sample
        self._messages: list[dict[str, Any]] = []
        self._length = 0  # tokens of the conversation up to the last turn, as they were counted for it
        self._ids: list[str] = []  # the ids of the last turn's calls

    def begin(self, episode: Episode, budget: Budget) -> None:
        self._messages, self._episode, self._budget = list(episode.messages), episode, budget

    @property
    def full(self) -> bool:
        return self._length >= self._limits.max_length

    async def speak(self, results: Sequence[ToolResult], turn: int, attempt: int) -> PolicyTurn:
        limits = self._limits
        room = min(limits.max_new_tokens, limits.max_length - self._length)
        reply = await self._engine.converse(
            self._messages,
            self._episode.tools,  # a user may bring more of them
            budget=self._budget,
            max_tokens=room,
            temperature=self._temperature,
            sample=self._sample,
        )
        if reply is None:
            return PolicyTurn(Turn((), (), (), 0, "length"), [], "", (), full=True)
        if reply.finish_reason == "abort":
            raise InfrastructureError("the endpoint aborted the generation")
        calls, problem = _calls(reply)
        if not problem and reply.finish_reason != "stop":
            cut = reply.finish_reason == "length"
            calls, problem = [], "the output was cut off" if cut else f"the output ended with {reply.finish_reason}"
        shown = f"<think>\n{reply.thought}\n</think>\n\n{reply.text}" if reply.thought else reply.text
        last = reply.usage[-1]
        self._length = last.prompt_tokens + last.completion_tokens
        self._ids = [self._name(turn, n, reply) for n in range(len(calls))]
        spans = ((0, last.completion_tokens),)
        full = reply.finish_reason == "length" and self.full
        return PolicyTurn(
            Turn((), (), (), 0, reply.finish_reason, shown, version_spans=spans), calls, problem, reply.usage, full
        )

    def hear(self, said: PolicyTurn, heard: Sequence[Message]) -> bool:
        made = [
            {"id": name, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
            for name, call in zip(self._ids, said.calls, strict=True)
        ]
        # Reasoning is not sent back: servers take none, and templates drop it.
        text = final_answer(said.turn.text).partition(OPEN)[0].strip() if made else final_answer(said.turn.text)
        spoken: dict[str, Any] = {"role": "assistant", "content": text or (None if made else "")}
        self._messages.append(spoken | ({"tool_calls": made} if made else {}))
        names = iter(self._ids)
        for message in heard:
            more = {"tool_call_id": next(names)} if message["role"] == "tool" else {}
            self._messages.append({**message, **more})
        return True

    def _name(self, turn: int, number: int, reply: WholeReply) -> str:
        """Return the id of a call: the server's own, where it gave each call one."""
        given = [call[0] for call in reply.calls]
        return given[number] if all(given) and len(set(given)) == len(given) > number else f"call-{turn}-{number}"


def _calls(reply: WholeReply) -> tuple[list[ToolCall], str]:
    """Return the calls of a message and what is wrong with them ("" if nothing is), by the rules of `parsing`.

    A server without a parser of its own leaves calls in the text.
    """
    made = [
        f'{{"name": {json.dumps(name)}, "arguments": {arguments.strip() or "{}"}}}'
        for _, name, arguments in reply.calls
    ]
    # A closing tag in an argument is a part of it, and JSON lets a slash be escaped.
    told = [OPEN + call.replace("</", "<\\/") + CLOSE for call in made]
    calls = list[ToolCall]()
    for text in (reply.text, "".join(told)):
        found = parse_tool_calls(text)
        if isinstance(found, ParseError):
            return [], found.reason
        calls += found
    return calls, ""
