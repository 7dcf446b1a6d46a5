"""First turns that are not sampled: the tools of the menu in turn (`algorithm.enumerate_calls`).

A group then compares every tool, however improbable it is for the policy. What follows the first call is sampled.

The first token of such a turn has the log-prob `log(share of the group that has this call)`, its other tokens have 0.
So the importance weight of the loss, exp(learner - rollout) over the sequence, is the policy's probability of the call
divided by that share, and the group's mean is the expectation under the policy.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from orchestra_jax.config.algorithm import AlgorithmConfig
from orchestra_jax.config.choices import Importance, RatioLevel
from orchestra_jax.config.ranges import ConfigError
from orchestra_jax.engines.base import Engine, Generation, SamplingParams
from orchestra_jax.envs.copying import copied_call
from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.rollout.speakers import EngineSpeaker, Opening, turn_seed
from orchestra_jax.types import ToolResult


def first_call_speaker(algorithm: AlgorithmConfig) -> Callable[..., EngineSpeaker]:
    """Return the function that makes the speaker of each trajectory of a run.

    Raises:
        ConfigError: the loss does not weigh the first calls by the policy's probability, so that it would learn to call
            every tool alike.
    """
    loss = algorithm.loss
    weighted = loss.importance is Importance.tis and loss.importance_level is RatioLevel.sequence
    if not weighted or loss.importance_cap < algorithm.group_size or algorithm.advantage.centre:
        raise ConfigError(
            "algorithm.enumerate_calls=true needs algorithm.loss.importance=tis importance_level=sequence, an "
            f"importance_cap of {algorithm.group_size} (group_size) or more, and algorithm.advantage.centre=false: set "
            "them, or enumerate_calls=false."
        )
    return partial(FirstCallSpeaker, group_size=algorithm.group_size)


class FirstCallSpeaker(EngineSpeaker):
    """The policy of a trajectory whose first call is given.

    Args:
        seed: its last number is the trajectory's place in its group; the others draw the order of the tools.
        group_size: trajectories of the group. On a menu with more tools than that, all tools are equally probable.
    """

    def __init__(
        self, opening: Opening, engine: Engine, params: SamplingParams, seed: tuple[int, ...], *, group_size: int
    ) -> None:
        super().__init__(opening, engine, params, seed)
        task, chat = opening.task, opening.chat
        # Nothing can be handed over or ended before the first call.
        names = [spec.name for spec in task.tools if not spec.terminal]
        order = np.random.default_rng(seed[:-1]).permutation(len(names))
        given = [names[order[member % len(names)]] for member in range(group_size)] if names else []
        self._given: tuple[tuple[int, ...], float] | None = None
        if given:
            name = given[seed[-1]]
            share = Counter(given)[name] / max(group_size, len(names))
            ids = chat.encode(render_call(copied_call(task, name)))
            self._given = (*ids, chat.stop_ids[0]), math.log(share)

    async def generate(self, ids: Sequence[int], results: Sequence[ToolResult], turn: int, attempt: int) -> Generation:
        if turn > 1 or self._given is None:
            return await super().generate(ids, results, turn, attempt)
        # One token is sampled, for the engine to read the prompt once for the whole group, and given up.
        sampled, share = self._given
        params = replace(self._params, max_new_tokens=1, seed=turn_seed(*self._seed, attempt, 0))
        read = await self._engine.generate(ids, params, session=self._session)
        kept = sampled[: self.opening.limits.max_length - len(ids)]
        ended = "stop" if len(kept) == len(sampled) else "length"
        return Generation(kept, (share, *[0.0] * (len(kept) - 1)), ended, read.weight_version)
