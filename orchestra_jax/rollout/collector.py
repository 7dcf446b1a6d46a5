"""Many episodes at once: an engine (tokens, or whole messages) times an environment (tools) gives trajectories.

One trajectory is in `run`, who speaks in it in `speakers`.

Rule 1 of the design: what was sampled is what is trained. Sampled ids go into the trajectory untouched; text is only
decoded to find calls and answers, and only what was newly observed is tokenised.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.engines.base import Engine, SamplingParams
from orchestra_jax.envs.base import Environment, Script
from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.money.prices import PriceList
from orchestra_jax.rollout.actors import Actor, EngineActor, ScriptActor
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.episode import Run
from orchestra_jax.rollout.speakers import MessageEngine, MessageSpeaker, ScriptSpeaker, Speaker, TokenSpeaker
from orchestra_jax.rollout.watchdog import Waiting, Watchdog
from orchestra_jax.types import OutOfTime, Task, Trajectory


@dataclass(frozen=True)
class OrchestratorPrice:
    """What the policy's own tokens cost.

    Attributes:
        prices: price list with an entry for `model`, in force where an episode has none of its own.
        model: name of the entry.
        seconds_per_token: simulated seconds per sampled token, or None to measure the wall clock.
    """

    prices: PriceList
    model: str = "orchestrator"
    seconds_per_token: float | None = None


class Collector:
    """Runs episodes concurrently and returns their trajectories in a fixed order.

    Args:
        environment: makes episodes.
        chat: renders, tokenises and parses; None: everybody speaks in whole messages.
        limits: bounds of one trajectory.
        price: what the policy's own tokens cost.
        allowance: what one trajectory may spend outside.
        on_slow, slow_after_s: see `Watchdog`; `watchdog.describe` makes one line of what is slow.
    """

    def __init__(
        self,
        environment: Environment,
        chat: ChatFormat | None,
        limits: RolloutLimits,
        price: OrchestratorPrice,
        *,
        allowance: Limits | None = None,
        on_slow: Callable[[list[Waiting]], None] | None = None,
        slow_after_s: float = 60.0,
    ) -> None:
        self.environment, self.chat, self.limits, self.price = environment, chat, limits, price
        self.allowance = allowance
        self.watchdog = Watchdog(on_slow, slow_after_s)
        self._under_way: set[asyncio.Future[list[Trajectory]]] = set()
        self._given_up: OutOfTime | None = None

    def give_up(self, reason: OutOfTime) -> None:
        """Has every collection raise this, those under way and all later ones; called in their loop."""
        self._given_up = reason
        for whole in self._under_way:
            if not whole.done():
                whole.set_exception(reason)

    async def collect(
        self,
        engine: Engine | MessageEngine,
        tasks: Sequence[Task],
        *,
        budget: Budget,
        group_size: int = 1,
        temperature: float = 1.0,
        seed: Sequence[int] = (0,),
        numbers: Sequence[int] | None = None,
        members: Sequence[int] | None = None,
        on_done: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Rolls every task out `group_size` times with the policy behind `engine`.

        Several calls may run at once. Cancelling one ends its trajectories and closes their sessions.

        Args:
            budget: parent of the trajectories' budgets: the run's, or a step's.
            temperature: sampling temperature; 0 is greedy.
            seed: reproducible: the same seed, groups, tasks and weights give the same trajectories.
            numbers: of the tasks' groups, None: 0, 1, ...; groups of one seed need different ones.
            members: which one of its group each task is rolled out as, once; None: as all `group_size`.
            on_done: called as each trajectory ends, for progress bars.

        Returns:
            Trajectories ordered by task, then member.
        """
        groups = list(zip(range(len(tasks)) if numbers is None else numbers, tasks, strict=True))
        wanted = [(p, m) for p in range(len(tasks)) for m in (range(group_size) if members is None else [members[p]])]
        if isinstance(engine, MessageEngine):

            def talker(place: int, member: int) -> Speaker:
                # Greedy, the same request is the same call, whoever asks.
                sample = (*seed, groups[place][0], member) if temperature else (member,)
                return MessageSpeaker(engine, self.limits, temperature, sample)

            return await self._collect(talker, groups, wanted, budget, on_done)
        params = SamplingParams(self.limits.max_new_tokens, temperature, self._tokens.stop_ids)

        def actor(group: int, member: int) -> Actor:
            return EngineActor(engine, params, (*seed, group, member), self.limits.max_length)

        return await self._collect(self._in_tokens(actor, groups, budget), groups, wanted, budget, on_done)

    async def play(
        self,
        script: Script,
        tasks: Sequence[Task],
        think: Callable[[Task], str] | None = None,
        *,
        budget: Budget,
        silent: bool = False,
        numbers: Sequence[int] | None = None,
        on_done: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Plays every task once with a script instead of a policy.

        Args:
            silent: its words are no tokens and cost nothing, as they are without a chat format.
            numbers, on_done: see `collect`.
        """
        groups = list(zip(range(len(tasks)) if numbers is None else numbers, tasks, strict=True))
        alone = [(place, 0) for place in range(len(groups))]
        if silent or self.chat is None:
            return await self._collect(
                lambda place, _: ScriptSpeaker(script, tasks[place]), groups, alone, budget, on_done
            )
        chat = self.chat
        speakers = self._in_tokens(lambda *_: ScriptActor(chat, script, think), groups, budget)
        return await self._collect(speakers, groups, alone, budget, on_done)

    @property
    def _tokens(self) -> ChatFormat:
        if self.chat is None:
            raise ValueError("A collector without a chat format takes engines that answer with whole messages.")
        return self.chat

    def _in_tokens(
        self, actor: Callable[[int, int], Actor], groups: Sequence[tuple[int, Task]], budget: Budget
    ) -> Callable[[int, int], Speaker]:
        """The speaker of (place, member) for actors of (group, member)."""
        chat, prompts = self._tokens, []
        if self._given_up is None:
            for _, task in groups:
                episode = self.environment.reset(task, budget)
                prompts.append(chat.prompt_ids(episode.messages, episode.tools))

        def speaker(place: int, member: int) -> Speaker:
            group, task = groups[place]
            return TokenSpeaker(chat, actor(group, member), task, prompts[place], self.limits, self.price.model)

        return speaker

    async def _collect(
        self,
        speaker: Callable[[int, int], Speaker],
        groups: Sequence[tuple[int, Task]],
        wanted: Sequence[tuple[int, int]],
        budget: Budget,
        on_done: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """The trajectories of numbered tasks: those that are wanted, by place and member, in their order."""
        if self._given_up is not None:
            raise self._given_up

        async def one(place: int, member: int, speaker: Speaker) -> Trajectory:
            group, task = groups[place]
            trajectory = await Run(self, task, speaker, group, member).trajectory(budget)
            if on_done is not None:
                on_done(trajectory)
            return trajectory

        # Speakers are made before any of them runs, so that a lockstep engine knows how many to wait for.
        todo = [(place, member, speaker(place, member)) for place, member in wanted]
        running = [asyncio.ensure_future(one(*item)) for item in todo]
        whole = asyncio.gather(*running)
        self._under_way.add(whole)
        try:
            return list(await whole)
        finally:
            self._under_way.discard(whole)
            # After an error nothing goes on in the background, and no session stays open for an engine to wait for:
            # a task that was cancelled before it began has not ended its speaker.
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for _, _, each in todo:
                each.end()
