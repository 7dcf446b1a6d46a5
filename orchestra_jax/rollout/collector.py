"""Many episodes at once: an engine (tokens, or whole messages) times an environment (tools) gives trajectories.

An infrastructure failure costs what failed and nothing else: that generation, call or score is tried again alone, and
what the trajectory has paid for until then stays. Seconds are those of work, see `stopwatch`.

Rule 1 of the design: what was sampled is what is trained. Sampled ids go into the trajectory untouched; text is only
decoded to find calls and answers, and only new observations are tokenised.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.engines.base import Engine, SamplingParams
from orchestra_jax.envs.base import Environment, Episode, Message, Score, Script
from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.money.prices import PriceList
from orchestra_jax.rollout.actors import Actor, EngineActor, ScriptActor
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.parsing import final_answer
from orchestra_jax.rollout.speakers import MessageEngine, MessageSpeaker, Said, ScriptSpeaker, Speaker, TokenSpeaker
from orchestra_jax.rollout.watchdog import Waiting, Watchdog, within
from orchestra_jax.stopwatch import Stopwatch
from orchestra_jax.types import (
    InfrastructureError,
    OutOfTime,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Usage,
)
from orchestra_jax.types import work_seconds as seconds_of

T = TypeVar("T")


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
            trajectory = await _Run(self, task, speaker, group, member).trajectory(budget)
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


class _Run:
    """One trajectory.

    Attributes:
        sequences: finished turns; a fork starts a new list.
        turn: number of the turn, from 1.
        prices: the list in force: the instance's, or else the run's.
        worked_s: seconds of work so far, the longest of each turn's calls; measured or charged, whichever is more.
    """

    def __init__(self, collector: Collector, task: Task, speaker: Speaker, group: int, member: int) -> None:
        self.collector, self.task, self.speaker, self.group, self.member = collector, task, speaker, group, member
        self.sequences: list[list[Turn]] = [[]]
        self.ledger: list[Usage] = []
        self.results: list[ToolResult] = []
        self.solved = False
        self.turn = 0
        self.prices = collector.price.prices
        self.worked_s = 0.0

    async def trajectory(self, parent: Budget) -> Trajectory:
        """Plays to the end, whatever it is; it gets a part of its own of the budget `parent`.

        Raises:
            BudgetExceeded, ReplayMiss: the run cannot go on. Everything else that is raised is a bug.
        """
        answer: str | None = None
        budget = Budget(self.collector.allowance, name="trajectory", parent=parent)
        try:
            episode = self.collector.environment.reset(self.task, budget)
            own: PriceList | None = getattr(episode, "prices", None)
            if own is not None and self.collector.price.model in own.entries:
                self.prices = own
            # What the policy itself costs outside is no call of its, which its allowance is for.
            self.speaker.begin(episode, parent)
            status, reason, answer = await self._turns_until_end(episode)
        except InfrastructureError as error:
            status, reason = Status.FAILED, str(error)
        finally:
            self.speaker.end()
        sequences = tuple(tuple(sequence) for sequence in self.sequences if sequence)
        return Trajectory(
            task=self.task,
            group=self.group,
            member=self.member,
            sequences=sequences,
            status=status,
            reason=reason,
            answer=answer,
            solved=self.solved,
            ledger=tuple(self.ledger),
        )

    async def _turns_until_end(self, episode: Episode) -> tuple[Status, str, str | None]:
        limits = self.collector.limits
        full = Status.NO_ANSWER, f"the context limit of {limits.max_length} tokens was reached", None
        for self.turn in range(1, limits.max_turns + 1):
            if self.speaker.full:
                return full
            if end := self._no_time_left():
                return end
            said = await self._speak()
            calls = said.calls
            if said.full:
                self._record(said, [], [])
                return full
            if len(self.results) + len(calls) > limits.max_calls:
                self._record(said, [], [])
                return Status.NO_ANSWER, limits.calls_used_up, None
            if end := self._too_late(episode, calls):
                self._record(said, calls, [])
                return end
            results = await self._execute(episode, calls)
            self._record(said, calls, results)
            if said.problem:
                return Status.MALFORMED, said.problem, None
            # A terminal tool's answer, else that of a turn without calls.
            finals = [result.final for result in results if result.final is not None]
            if finals or not calls:
                answer = finals[0] if finals else final_answer(said.turn.text)
                if not answer:
                    return Status.NO_ANSWER, "the final answer is empty", None
                await self._score(episode, answer)
                return Status.COMPLETED, "", answer
            heard: list[Message] = [{"role": "tool", "content": result.text} for result in results]
            if not self.speaker.hear(said, heard):
                self.sequences.append([])
        return self._no_turn_left()

    def _too_late(self, episode: Episode, calls: Sequence[ToolCall]) -> tuple[Status, str, None] | None:
        """How the trajectory ends where the results of these calls could not be used: then none is made or paid."""
        limits, terminal = self.collector.limits, {spec.name for spec in episode.tools if spec.terminal}
        if not calls or any(call.name in terminal for call in calls):
            return None
        return self._no_turn_left() if self.turn == limits.max_turns else self._no_time_left()

    def _no_turn_left(self) -> tuple[Status, str, None]:
        return Status.NO_ANSWER, self.collector.limits.turns_used_up, None

    def _no_time_left(self) -> tuple[Status, str, None] | None:
        limit_s = self.collector.limits.deadline_s
        return (Status.NO_ANSWER, f"no answer within {limit_s:g} s of work", None) if self.worked_s > limit_s else None

    async def _score(self, episode: Episode, answer: str) -> None:
        found, _ = await self._wait("score", lambda _: episode.score(answer), None)
        score = found if isinstance(found, Score) else Score(found)
        self.solved = score.solved
        self.ledger += score.usage

    async def _wait(self, what: str, begin: Callable[[int], Awaitable[T]], deadline_s: float | None) -> tuple[T, float]:
        """What `begin` gives for one of its attempts 0, 1, ..., and the seconds of work that it took.

        Waits in sight of the watchdog. What fails or is overdue is tried again, until there is no retry left.

        Raises:
            InfrastructureError: of the last attempt.
        """
        limits, name = self.collector.limits, f"{what} turn {self.turn}"
        for attempt in itertools.count():
            watch = Stopwatch(min(deadline_s or limits.deadline_s, limits.deadline_s))
            try:
                with self.collector.watchdog.watch(self.group, self.member, self.turn, what):
                    return await within(begin(attempt), watch, name), watch.seconds
            except InfrastructureError:
                if attempt == limits.retries:
                    raise
        raise AssertionError

    def _record(self, said: Said, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> None:
        self.sequences[-1].append(replace(said.turn, calls=tuple(calls), results=tuple(results)))
        self.results += results
        self.ledger += [row for result in results for row in result.usage]

    async def _speak(self) -> Said:
        """The next turn and its ledger rows."""
        limits, price = self.collector.limits, self.collector.price

        def speak(attempt: int) -> Awaitable[Said]:
            return self.speaker.speak(self.results, self.turn, attempt)

        said, measured = await self._wait("engine", speak, limits.turn_deadline_s)
        worked = 0.0
        for row in said.usage:
            seconds = row.seconds or measured
            if price.seconds_per_token is not None:
                seconds = price.seconds_per_token * row.completion_tokens
            cost = self.prices.cost(
                price.model,
                prompt_tokens=row.prompt_tokens,
                cached_tokens=row.cached_tokens,
                completion_tokens=row.completion_tokens,
            )
            self.ledger.append(replace(row, cost_usd=cost, seconds=seconds, price_list=self.prices.id))
            worked += seconds
        self.worked_s += max(worked, measured)
        return said

    async def _execute(self, episode: Episode, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """The results of one turn's calls, which run side by side; an error is raised once all of them have ended."""
        limit_s = self.collector.limits.tool_deadline_s

        async def step(call: ToolCall) -> tuple[ToolResult, float]:
            return await self._wait(f"tool {call.name}", lambda _: episode.step(call), limit_s)

        results, seconds = list[ToolResult](), [0.0]
        for found in await asyncio.gather(*map(step, calls), return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
            result, measured = found
            results.append(result)
            seconds.append(max(seconds_of(result.usage), measured))
        self.worked_s += max(seconds)
        return results
