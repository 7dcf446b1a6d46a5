"""Many episodes at once: an engine (tokens, or whole messages) times an environment gives trajectories.

Rule 1 of the design: what was sampled is what is trained. Sampled ids go into the trajectory untouched; text is only
decoded to find calls and answers, and only what was newly observed is tokenised.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.engines.base import Engine, SamplingParams
from orchestra_jax.envs.base import Environment, Script, Thoughts
from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.money.prices import PriceList
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.episode import EpisodePlayer, PlayerSettings
from orchestra_jax.rollout.speakers import EngineSpeaker, Opening, ScriptSpeaker, SilentSpeaker, Speaker
from orchestra_jax.rollout.watchdog import Watchdog
from orchestra_jax.types import OutOfTime, Task, Trajectory

if TYPE_CHECKING:  # loaded when such an engine is there
    from orchestra_jax.rollout.messages import MessageEngine


class Collector:
    """Plays episodes side by side and returns their trajectories in a fixed order.

    Args:
        chat: renders, tokenises and parses; None: everybody speaks in whole messages.
        limits: bounds of one trajectory.
        prices: what the policy's tokens cost where an episode has no price list of its own.
        seconds_per_token: simulated seconds per sampled token; None: the wall clock.
        allowance: budget of one trajectory for calls.
        watchdog: tells of long waits; None: one that only lists them.
    """

    def __init__(
        self,
        environment: Environment,
        chat: ChatFormat | None,
        limits: RolloutLimits,
        prices: PriceList,
        *,
        seconds_per_token: float | None = None,
        allowance: Limits | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self.environment, self.chat, self.limits = environment, chat, limits
        self.watchdog = watchdog or Watchdog()
        self.settings = PlayerSettings(environment, limits, prices, seconds_per_token, self.watchdog, allowance)
        self._under_way: set[asyncio.Future[list[Trajectory]]] = set()
        self._given_up: OutOfTime | None = None

    def give_up(self, reason: OutOfTime) -> None:
        """Have every collection raise `reason`, those under way and all later ones; call this in their loop."""
        self._given_up = reason
        for whole in self._under_way:
            if not whole.done():
                whole.set_exception(reason)

    async def collect(
        self,
        engine: "Engine | MessageEngine",
        tasks: Sequence[Task],
        *,
        budget: Budget,
        group_size: int = 1,
        temperature: float = 1.0,
        seed: Sequence[int] = (0,),
        numbers: Sequence[int] | None = None,
        members: Sequence[int] | None = None,
        speaker: Callable[..., EngineSpeaker] | None = None,
        on_done: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Roll every task out `group_size` times; return the trajectories ordered by task, then member.

        Several calls may run at once. Cancelling one ends its trajectories and closes their sessions.

        Args:
            budget: parent of the trajectories' budgets: the run's, or a step's.
            seed: seed of all; the same seed, groups, tasks and weights give the same trajectories.
            numbers: numbers of the tasks' groups, None: 0, 1, ...; groups of one seed need different ones.
            members: member of its group that each task is rolled out as, once; None: all `group_size` members.
            speaker: makes the policy of a trajectory; None: every turn is sampled.
            on_done: called as each trajectory ends.
        """
        self._check_going_on()
        groups = range(len(tasks)) if numbers is None else numbers
        wanted = [(p, m) for p in range(len(tasks)) for m in (range(group_size) if members is None else [members[p]])]
        speakers: Sequence[Speaker]
        if hasattr(engine, "converse"):
            from orchestra_jax.rollout.messages import message_speakers

            members_of = [(groups[place], member) for place, member in wanted]
            speakers = message_speakers(cast("MessageEngine", engine), self.limits, temperature, seed, members_of)
        else:
            if self.chat is None:
                raise ValueError("A collector without a chat format takes engines that answer with whole messages.")
            opened = self._openings(self.chat, tasks, budget)
            params = SamplingParams(self.limits.max_new_tokens, temperature, self.chat.stop_ids)
            # All are made before any of them speaks, so that a lockstep engine knows how many to wait for.
            speakers = [(speaker or EngineSpeaker)(opened[p], engine, params, (*seed, groups[p], m)) for p, m in wanted]
        todo = [(tasks[place], groups[place], member) for place, member in wanted]
        async with self._playing(todo, speakers, budget, on_done) as found:
            return await found

    async def play(
        self,
        script: Script,
        tasks: Sequence[Task],
        think: Thoughts | None = None,
        *,
        budget: Budget,
        silent: bool = False,
        numbers: Sequence[int] | None = None,
        on_done: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Play every task once with a script instead of a policy; `think` gives its thoughts before an action.

        Args:
            silent: its words are no tokens and cost nothing, as they are without a chat format.
        """
        self._check_going_on()
        speakers: list[Speaker]
        if silent or self.chat is None:
            speakers = [SilentSpeaker(script, task) for task in tasks]
        else:
            speakers = [ScriptSpeaker(each, script, think) for each in self._openings(self.chat, tasks, budget)]
        todo = [(task, group, 0) for task, group in zip(tasks, numbers or range(len(tasks)), strict=True)]
        async with self._playing(todo, speakers, budget, on_done) as found:
            return await found

    def _check_going_on(self) -> None:
        if self._given_up is not None:
            raise self._given_up

    def _openings(self, chat: ChatFormat, tasks: Sequence[Task], budget: Budget) -> list[Opening]:
        """Return the beginning of each task in tokens."""
        found = list[Opening]()
        for task in tasks:
            episode = self.environment.reset(task, budget)
            prompt = chat.prompt_ids(episode.messages, episode.tools)
            found.append(Opening(chat, task, prompt, self.limits))
        return found

    @asynccontextmanager
    async def _playing(
        self,
        todo: Sequence[tuple[Task, int, int]],
        speakers: Sequence[Speaker],
        budget: Budget,
        on_done: Callable[[Trajectory], None] | None,
    ) -> AsyncIterator["asyncio.Future[list[Trajectory]]"]:
        """Play the (task, group, member) of `todo`, each with its speaker, for as long as the block lasts."""
        running = [
            asyncio.ensure_future(EpisodePlayer(self.settings, task, speaker, group, member).play(budget, on_done))
            for (task, group, member), speaker in zip(todo, speakers, strict=True)
        ]
        whole = asyncio.gather(*running)
        self._under_way.add(whole)
        try:
            yield whole
        finally:
            self._under_way.discard(whole)
            # After an error nothing goes on in the background, and no session stays open for an engine to wait for:
            # a task that was cancelled before it began has not ended its speaker.
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for speaker in speakers:
                speaker.end()


def share_all(
    processes: Processes, work: Coroutine[Any, Any, list[Trajectory]]
) -> Coroutine[Any, Any, list[Trajectory]]:
    """Return a coroutine of the trajectories of all processes; `work` gives this process's share.

    Those of several processes come without ids and log-probs.
    """
    if processes.count == 1:
        return work

    async def sendable() -> list[Trajectory]:
        return [trajectory.without_ids() for trajectory in await work]

    return processes.merged(sendable())
