"""Speakers, which take the turns of the policy in one trajectory.

`EngineSpeaker` samples exact ids for the learner, `ScriptSpeaker` writes a script's words as ids, `SilentSpeaker` has
no tokens, and `messages.MessageSpeaker` whole messages. Calls and ledger are the business of `episode.EpisodePlayer`.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.engines.base import Engine, Generation, SamplingParams
from orchestra_jax.envs.base import Episode, Message, Script, Thoughts
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import POLICY
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.parsing import ParseError, parse_tool_calls, render_call
from orchestra_jax.types import InfrastructureError, Task, ToolCall, ToolResult, Turn, Usage


@dataclass(frozen=True, slots=True)
class PolicyTurn:
    """One turn of the policy.

    Attributes:
        turn: the turn as it is kept, without calls and results.
        problem: what is wrong with the output, "" if nothing is.
        usage: ledger rows without dollars; the caller fills in its measured seconds where a row has none.
        full: the context ended the turn.
    """

    turn: Turn
    calls: Sequence[ToolCall]
    problem: str
    usage: tuple[Usage, ...]
    full: bool = False


class Speaker(ABC):
    """The policy in one trajectory."""

    def begin(self, episode: Episode, budget: Budget) -> None:  # noqa: B027  a script begins with nothing
        """Start the conversation with the episode's messages and tools; `budget` pays for what a turn costs outside."""

    @property
    def full(self) -> bool:
        """True if the context has no room for another turn."""
        return False

    @abstractmethod
    async def speak(self, results: Sequence[ToolResult], turn: int, attempt: int) -> PolicyTurn:
        """Return the next turn.

        Args:
            results: all results so far; the user's words stand among them as a text alone.
            turn: number of the turn, from 1.
            attempt: number of earlier tries that failed.

        Raises:
            InfrastructureError: nothing was said, through no fault of the policy.
        """

    def hear(self, said: PolicyTurn, heard: Sequence[Message]) -> bool:
        """Take in what follows the turn: the results of its calls, in their order, or the user's words.

        Returns:
            Whether the same sequence goes on; False where the history was rewritten.
        """
        return True

    def end(self) -> None:  # noqa: B027  a script holds nothing
        """Free what the trajectory held; it may be called twice."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning of a trajectory in tokens."""

    chat: ChatFormat
    task: Task
    prompt: tuple[int, ...]
    limits: RolloutLimits


class TokenSpeaker(Speaker):
    """Speaks in token ids, which are kept as they are; a subclass makes them."""

    def __init__(self, opening: Opening) -> None:
        self.opening, self._chat = opening, opening.chat
        # The sequence up to the next sample, and the part of it that was not sampled or shown before.
        self._ids, self._new = opening.prompt, opening.prompt

    @abstractmethod
    async def generate(self, ids: Sequence[int], results: Sequence[ToolResult], turn: int, attempt: int) -> Generation:
        """Return the next generation after the whole sequence `ids`; for the rest see `Speaker.speak`."""

    def begin(self, episode: Episode, budget: Budget) -> None:
        self._messages, self._tools = list(episode.messages), episode.tools
        self._next_prompt = self._chat.prompts()

    @property
    def full(self) -> bool:
        return len(self._ids) >= self.opening.limits.max_length

    async def speak(self, results: Sequence[ToolResult], turn: int, attempt: int) -> PolicyTurn:
        found = await self.generate(self._ids, results, turn, attempt)
        if found.finish_reason == "abort":
            raise InfrastructureError("the engine aborted the generation")
        text, length = self._chat.decode(found.token_ids), len(self._ids) + len(found.token_ids)
        calls, problem = parse_tool_calls(text), ""
        if isinstance(calls, ParseError):
            problem, calls = calls.reason, []
        elif found.finish_reason != "stop":
            calls, problem = [], "the output was cut off"
        usage = Usage(
            POLICY,
            "orchestrator",
            prompt_tokens=len(self._ids),
            cached_tokens=len(self._ids) - len(self._new),  # what the sequence held before this turn
            completion_tokens=len(found.token_ids),
        )
        kept = Turn(
            prompt_ids=self._new,
            sampled_ids=found.token_ids,
            logprobs=found.logprobs,
            weight_version=found.weight_version,
            finish_reason=found.finish_reason,
            text=text,
            version_spans=found.version_spans,
        )
        full = found.finish_reason == "length" and length >= self.opening.limits.max_length
        return PolicyTurn(kept, calls, problem, (usage,), full)

    def hear(self, said: PolicyTurn, heard: Sequence[Message]) -> bool:
        self._messages += [{"role": "assistant", "content": said.turn.text}, *heard]
        ids = (*self._ids, *said.turn.sampled_ids)
        # The same sequence goes on, or a fork starts where the template rewrote the history.
        self._new, same = self._next_prompt(ids, self._messages, self._tools)
        self._ids = (*ids, *self._new) if same else self._new
        return same


class EngineSpeaker(TokenSpeaker):
    """The policy behind an engine; every turn and attempt has a seed of its own, made from the trajectory's."""

    def __init__(self, opening: Opening, engine: Engine, params: SamplingParams, seed: tuple[int, ...]) -> None:
        super().__init__(opening)
        self._engine, self._params, self._seed = engine, params, seed
        self._session = engine.open_session()

    async def generate(self, ids: Sequence[int], results: Sequence[ToolResult], turn: int, attempt: int) -> Generation:
        room = min(self._params.max_new_tokens, self.opening.limits.max_length - len(ids))
        # Seeds count turns from 0.
        params = replace(self._params, max_new_tokens=room, seed=turn_seed(*self._seed, attempt, turn - 1))
        return await self._engine.generate(ids, params, session=self._session)

    def end(self) -> None:
        self._engine.close_session(self._session)


class ScriptSpeaker(TokenSpeaker):
    """Says in tokens what a script says: demonstrations, which `think` aloud, and baselines."""

    def __init__(self, opening: Opening, script: Script, think: Thoughts | None = None) -> None:
        super().__init__(opening)
        self._script, self._think = script, think

    async def generate(self, ids: Sequence[int], results: Sequence[ToolResult], turn: int, attempt: int) -> Generation:
        action = self._script(self.opening.task, results)
        text = action if isinstance(action, str) else render_call(action)
        if self._think is not None and (thoughts := self._think(self.opening.task, results)):
            text = f"<think> {thoughts}</think>{text}"
        sampled = (*self._chat.encode(text), self._chat.stop_ids[0])
        return Generation(sampled, (0.0,) * len(sampled), "stop", 0)


class SilentSpeaker(Speaker):
    """Makes the calls of a script without a model: there are no tokens and no ledger rows."""

    def __init__(self, script: Script, task: Task) -> None:
        self._script, self._task = script, task

    async def speak(self, results: Sequence[ToolResult], turn: int, attempt: int) -> PolicyTurn:
        action = self._script(self._task, results)
        words, calls = (action, []) if isinstance(action, str) else (render_call(action), [action])
        return PolicyTurn(Turn((), (), (), 0, "stop", words), calls, "", ())


def turn_seed(*parts: int) -> int:
    """Return a 64-bit seed that differs in every part and is the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest())
