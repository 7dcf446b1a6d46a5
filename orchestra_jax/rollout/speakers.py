"""How the policy takes its turns in a conversation: in tokens, sampled by an engine, or in whole messages.

The collector's loop is the same for both: it knows turns, calls, results and ledger rows. What a turn is made of is
known here: a `TokenSpeaker` keeps the exact ids for the learner, a `MessageSpeaker` talks to a `MessageEngine`, such as
a model behind an endpoint (`rollout.endpoint`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.engines.base import Generation
from orchestra_jax.envs.base import Episode, Message, Script
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.actors import Actor, render_call
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.parsing import CLOSE, OPEN, ParseError, final_answer, parse_tool_calls
from orchestra_jax.types import InfrastructureError, Task, ToolCall, ToolResult, ToolSpec, Turn, Usage


@dataclass(frozen=True, slots=True)
class PolicyTurn:
    """One turn of the policy.

    Attributes:
        turn: as it is kept, without calls and results.
        calls: to be executed.
        problem: what is wrong with the output, "" if nothing is.
        usage: its ledger rows, without dollars; a row without seconds took those that the caller measured.
        full: the context ended it.
    """

    turn: Turn
    calls: Sequence[ToolCall]
    problem: str
    usage: tuple[Usage, ...]
    full: bool = False


class Speaker(Protocol):
    """The policy in one trajectory."""

    def begin(self, episode: Episode, budget: Budget) -> None:
        """The conversation starts with the episode's messages and tools; `budget` pays for what is paid for a turn."""
        ...

    @property
    def full(self) -> bool:
        """Whether the context has no room for another turn."""
        ...

    async def speak(self, results: Sequence[ToolResult], turn: int, attempt: int) -> PolicyTurn:
        """The next turn.

        Args:
            results: all that were observed so far; the user's words stand among them as a text alone.
            turn: its number, from 1.
            attempt: how often it was tried before and failed.

        Raises:
            InfrastructureError: nothing was said, through no fault of the policy.
        """
        ...

    def hear(self, said: PolicyTurn, heard: Sequence[Message]) -> bool:
        """What follows the turn: results of its calls, in their order, or the user's words.

        Returns:
            Whether the same sequence goes on; False where the history was rewritten.
        """
        ...

    def end(self) -> None:
        """The trajectory is over."""
        ...


class TokenSpeaker:
    """Speaks in tokens: an actor chooses them, what was sampled goes on untouched.

    Args:
        prompt: ids of the first prompt.
        model: name of the ledger's rows.
    """

    def __init__(
        self, chat: ChatFormat, actor: Actor, task: Task, prompt: tuple[int, ...], limits: RolloutLimits, model: str
    ) -> None:
        self._chat, self._actor, self._task, self._limits, self._model = chat, actor, task, limits, model
        # The sequence up to the next sample, and the part of it that was not sampled or shown before.
        self._ids, self._new = prompt, prompt
        self._messages: list[Message] = []
        self._tools: tuple[ToolSpec, ...] = ()

    def begin(self, episode: Episode, budget: Budget) -> None:
        self._messages, self._tools = list(episode.messages), episode.tools

    @property
    def full(self) -> bool:
        return len(self._ids) >= self._limits.max_length

    async def speak(self, results: Sequence[ToolResult], turn: int, attempt: int) -> PolicyTurn:
        found = await self._actor.act(self._task, self._ids, results, turn - 1, attempt)
        if found.finish_reason == "abort":
            raise InfrastructureError("the engine aborted the generation")
        text, length = self._chat.decode(found.token_ids), len(self._ids) + len(found.token_ids)
        calls, problem = _read(text, found)
        usage = Usage(
            self._model,
            "orchestrator",
            prompt_tokens=len(self._ids),
            cached_tokens=len(self._ids) - len(self._new),  # what the sequence held before this turn
            completion_tokens=len(found.token_ids),
        )
        turn_said = Turn(
            prompt_ids=self._new,
            sampled_ids=found.token_ids,
            logprobs=found.logprobs,
            weight_version=found.weight_version,
            finish_reason=found.finish_reason,
            text=text,
            version_spans=found.version_spans,
        )
        full = found.finish_reason == "length" and length >= self._limits.max_length
        return PolicyTurn(turn_said, calls, problem, (usage,), full)

    def hear(self, said: PolicyTurn, heard: Sequence[Message]) -> bool:
        self._messages += [{"role": "assistant", "content": said.turn.text}, *heard]
        ids = (*self._ids, *said.turn.sampled_ids)
        # The same sequence goes on, or a fork starts where the template rewrote the history.
        self._new, same = self._chat.next_prompt(ids, self._messages, self._tools)
        self._ids = (*ids, *self._new) if same else self._new
        return same

    def end(self) -> None:
        self._actor.end()


def _read(text: str, generation: Generation) -> tuple[list[ToolCall], str]:
    """The calls to execute, and what is wrong with the output ("" if nothing is)."""
    calls = parse_tool_calls(text)
    if isinstance(calls, ParseError):
        return [], calls.reason
    if generation.finish_reason != "stop":
        return [], "the output was cut off"
    return calls, ""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole message of a model.

    Attributes:
        text: what it says, calls left out.
        thought: its reasoning, where the server shows it.
        calls: (id, name, JSON of the arguments) of each call, as it wrote them.
        finish_reason: "stop" where it ended by itself, also with calls; "length", or what else the server says.
        usage: its ledger rows.
    """

    text: str
    thought: str
    calls: Sequence[tuple[str, str, str]]
    finish_reason: str
    usage: tuple[Usage, ...]


@runtime_checkable
class MessageEngine(Protocol):
    """Who answers with whole messages."""

    async def converse(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSpec],
        *,
        budget: Budget,
        max_tokens: int,
        temperature: float,
        sample: tuple[int, ...],
    ) -> Reply | None:
        """The answer to a conversation of chat completions; None: it is longer than the model's context.

        Args:
            budget: pays.
            max_tokens: most of the answer.
            temperature: of sampling, where the model takes one.
            sample: another one is another sample of the same request in the record.

        Raises:
            InfrastructureError: no answer.
            BudgetExceeded: it could cost more than is left.
        """
        ...


class MessageSpeaker:
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
        self._ids: list[str] = []  # of the last turn's calls

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
            {"id": name, "type": "function", "function": {"name": call.name, "arguments": _json(call)}}
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

    def end(self) -> None:
        pass

    def _name(self, turn: int, number: int, reply: Reply) -> str:
        """The id of a call: the server's own, where it gave each call one."""
        given = [call[0] for call in reply.calls]
        return given[number] if all(given) and len(set(given)) == len(given) > number else f"call-{turn}-{number}"


class ScriptSpeaker:
    """Says what a script says, and nobody speaks it: no tokens, no ledger row."""

    full = False

    def __init__(self, script: Script, task: Task) -> None:
        self._script, self._task = script, task

    def begin(self, episode: Episode, budget: Budget) -> None:
        pass

    async def speak(self, results: Sequence[ToolResult], turn: int, attempt: int) -> PolicyTurn:
        action = self._script(self._task, results)
        spoken = action if isinstance(action, str) else render_call(action)
        return PolicyTurn(Turn((), (), (), 0, "stop", spoken), [] if isinstance(action, str) else [action], "", ())

    def hear(self, said: PolicyTurn, heard: Sequence[Message]) -> bool:
        return True

    def end(self) -> None:
        pass


def _calls(reply: Reply) -> tuple[list[ToolCall], str]:
    """The calls of a message and what is wrong with them, by the rules for text (`parsing`).

    A server without a parser of its own leaves calls in the text.
    """
    made = [
        f'{OPEN}{{"name": {json.dumps(name)}, "arguments": {arguments.strip() or "{}"}}}{CLOSE}'
        for _, name, arguments in reply.calls
    ]
    calls = list[ToolCall]()
    for text in (reply.text, "".join(made)):
        found = parse_tool_calls(text)
        if isinstance(found, ParseError):
            return [], found.reason
        calls += found
    return calls, ""


def _json(call: ToolCall) -> str:
    return json.dumps(dict(call.arguments))
