"""Shares of a step's phases in which devices had nothing to do, by the generations that were under way."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.rollout import RolloutConfig
from orchestra_jax.engines.base import Engine, Generation, SamplingParams

_SAMPLING = {"time/rollout": "idle/generate", "time/evaluate": "idle/evaluate"}
_BESIDE = ("time/score", "time/update", "time/save", "time/other")  # the servers' own work, `time/sync`, is not idle


class WatchedEngine:
    """Notes when a generation is under way; everything else goes to the engine that it holds."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._open = engine, 0
        self._since = 0.0
        self._spans = deque[tuple[float, float]]()

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Generation:
        """Sample a continuation, as the engine does."""
        if not self._open:
            self._since = time.monotonic()
        self._open += 1
        try:
            return await self._engine.generate(prompt_ids, params, session=session)
        finally:
            self._open -= 1
            if not self._open:
                self._spans.append((self._since, time.monotonic()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def busy(self, begin: float, end: float) -> float:
        """Return the seconds between two times with a generation under way, and forget those before the first."""
        while self._spans and self._spans[0][1] <= begin:
            self._spans.popleft()
        spans = [*self._spans, *([(self._since, end)] if self._open else [])]
        return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in spans)


def idle_shares(engine: Any, times: Mapping[str, float], ended: float, rollout: RolloutConfig) -> dict[str, float]:
    """Return idle shares of the phases of a step, in [0, 1], by "idle/NAME".

    In all layouts: of rollout and evaluation the share without any generation under way. Where servers have devices of
    their own: the same share of the phases that the trainer works in, and the share of the step without an update.

    Args:
        times: seconds of the step's phases by "time/NAME", one after the other.
        ended: time at which the last of them ended.
    """
    if not isinstance(engine, WatchedEngine):
        return {}
    beside = rollout.engine is EngineName.sglang and not rollout.server.share_gpus
    names = _SAMPLING | ({name: name.replace("time/", "idle/") for name in _BESIDE} if beside else {})
    total, found = sum(times.values()), dict[str, float]()
    begin = ended - total
    for name, seconds in times.items():
        if name in names and seconds > 0:
            found[names[name]] = min(1.0, max(0.0, 1.0 - engine.busy(begin, begin + seconds) / seconds))
        begin += seconds
    if beside:
        found["idle/trainer"] = 1.0 - times["time/update"] / total
    return found
