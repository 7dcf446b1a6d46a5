"""Who speaks in a trajectory: the policy behind an engine, or a script."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from orchestra_jax.engines.base import Engine, Generation, SamplingParams
from orchestra_jax.envs.base import Script
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.types import Task, ToolCall, ToolResult


class Actor(Protocol):
    """Chooses the next output of one trajectory."""

    async def act(
        self, task: Task, ids: Sequence[int], results: Sequence[ToolResult], turn: int, attempt: int
    ) -> Generation:
        """The next generation, given the whole sequence so far and the results observed so far.

        Args:
            attempt: how often it was tried before and failed.
        """
        ...

    def end(self) -> None:
        """The trajectory is over."""
        ...


class EngineActor:
    """The policy behind an engine; `seed` makes every generation of the trajectory reproducible.

    Args:
        max_length: tokens of one sequence: what is left of them bounds a generation, whatever the engine itself holds.
    """

    def __init__(self, engine: Engine, params: SamplingParams, seed: tuple[int, ...], max_length: int) -> None:
        self._engine, self._params, self._seed, self._max_length = engine, params, seed, max_length
        self._session = engine.open_session()

    async def act(
        self, task: Task, ids: Sequence[int], results: Sequence[ToolResult], turn: int, attempt: int
    ) -> Generation:
        room = min(self._params.max_new_tokens, self._max_length - len(ids))
        params = replace(self._params, max_new_tokens=room, seed=_seed64(*self._seed, attempt, turn))
        return await self._engine.generate(ids, params, session=self._session)

    def end(self) -> None:
        self._engine.close_session(self._session)


class ScriptActor:
    """Says what a function of (task, results so far) says: demonstrations and baselines.

    Args:
        script: the next action.
        think: what to think aloud before the first action, or None.
    """

    def __init__(self, chat: ChatFormat, script: Script, think: Callable[[Task], str] | None = None) -> None:
        self._chat, self._script, self._think = chat, script, think

    async def act(
        self, task: Task, ids: Sequence[int], results: Sequence[ToolResult], turn: int, attempt: int
    ) -> Generation:
        action = self._script(task, results)
        text = action if isinstance(action, str) else render_call(action)
        if self._think is not None and turn == 0:
            text = f"<think> {self._think(task)}</think>{text}"
        sampled = (*self._chat.encode(text), self._chat.stop_ids[0])
        return Generation(sampled, (0.0,) * len(sampled), "stop", 0)

    def end(self) -> None:
        pass


def render_call(call: ToolCall) -> str:
    """The call as Qwen3's template writes it."""
    return f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': dict(call.arguments)})}\n</tool_call>"


def _seed64(*parts: int) -> int:
    """A 64-bit seed that differs in every part, stable across processes."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest())
