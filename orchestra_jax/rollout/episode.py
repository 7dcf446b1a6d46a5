"""One trajectory: the policy speaks, its calls are executed, the user answers where the world has one, until an end.

An infrastructure failure costs what failed and nothing else: that generation, call, user's turn or score is tried again
alone, and what the trajectory has paid for until then stays. Seconds are those of work, see `stopwatch`.

A turn without calls is the final answer where nobody answers it. In a `Conversation` it goes to the user:

- The user says None, or words that are `done` (a stop word, a hand-over): the conversation is over, and the policy's
  last words are its answer, which is scored.
- Other words open the policy's next turn. They are read, never sampled: they carry no loss.
- An empty turn is said to nobody: no answer. One that is malformed or cut off ends the trajectory as anywhere.
- A turn is one of the policy's: `max_turns` caps the conversation too. The user hears the last one as well, for only
  they know whether it was the end; if it was not, there is no answer, and nothing is scored.
- A user that fails, hangs or says nothing is an infrastructure failure: the sample is invalid, and nothing is scored.
- The user's rows are kept apart: they count neither in the trajectory's cost nor in its seconds or its deadline.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from orchestra_jax.envs.base import Conversation, Episode, Message, PricedEpisode, Score
from orchestra_jax.io.stopwatch import Stopwatch
from orchestra_jax.io.untrusted import valid_text
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.parsing import final_answer
from orchestra_jax.rollout.speakers import PolicyTurn, Speaker
from orchestra_jax.rollout.watchdog import within
from orchestra_jax.types import (
    InfrastructureError,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Usage,
)
from orchestra_jax.types import work_seconds as seconds_of

if TYPE_CHECKING:  # who makes runs
    from orchestra_jax.rollout.collector import Collector

T = TypeVar("T")


class Run:
    """One trajectory of one task.

    Attributes:
        sequences: finished turns; a fork starts a new list.
        observed: results of all calls, and the user's words among them.
        called: number of calls, refused ones included.
        turn: number of the turn, from 1.
        prices: the list in force: the instance's, or else the run's.
        worked_s: seconds of work so far, the longest of each turn's calls; measured or charged, whichever is more.
    """

    def __init__(self, collector: "Collector", task: Task, speaker: Speaker, group: int, member: int) -> None:
        self.collector, self.task, self.speaker, self.group, self.member = collector, task, speaker, group, member
        self.sequences: list[list[Turn]] = [[]]
        self.ledger: list[Usage] = []
        self.observed: list[ToolResult] = []
        self.called = 0
        self.solved = False
        self.criteria: Mapping[str, str] = {}
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
            own = episode.prices if isinstance(episode, PricedEpisode) else None
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
            criteria=self.criteria,
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
            if self.called + len(calls) > limits.max_calls:
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
                words = None if finals else await self._ask(episode, answer)
                if words is None:
                    await self._score(episode, answer)
                    return Status.COMPLETED, "", answer
                heard: list[Message] = [{"role": "user", "content": words}]
            else:
                heard = [{"role": "tool", "content": result.text} for result in results]
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

    async def _ask(self, episode: Episode, text: str) -> str | None:
        """What the user says to the turn that was just recorded; None: nothing more.

        Raises:
            InfrastructureError: the user failed, was overdue or said nothing.
        """
        if not isinstance(episode, Conversation):
            return None

        said, _ = await self._wait("user", lambda _: episode.respond(text), self.collector.limits.user_deadline_s)
        if said is None:
            return None
        words = valid_text(said.text)
        self.ledger += said.usage
        if not said.done and not words.strip():  # asking again would change the episode
            raise InfrastructureError("the user said nothing")
        self.sequences[-1][-1] = replace(self.sequences[-1][-1], heard=words)
        self.observed.append(ToolResult(words))
        return None if said.done else words

    async def _score(self, episode: Episode, answer: str) -> None:
        found, _ = await self._wait("score", lambda _: episode.score(answer), None)
        score = found if isinstance(found, Score) else Score(found)
        self.solved, self.criteria = score.solved, score.criteria
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

    def _record(self, said: PolicyTurn, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> None:
        self.sequences[-1].append(replace(said.turn, calls=tuple(calls), results=tuple(results)))
        self.observed += results
        self.called += len(results)
        self.ledger += [row for result in results for row in result.usage]

    async def _speak(self) -> PolicyTurn:
        """The next turn and its ledger rows."""
        limits, price = self.collector.limits, self.collector.price

        def speak(attempt: int) -> Awaitable[PolicyTurn]:
            return self.speaker.speak(self.observed, self.turn, attempt)

        said, measured = await self._wait("engine", speak, limits.turn_deadline_s)
        worked = 0.0
        for row in said.usage:
            seconds = row.seconds or measured
            if price.seconds_per_token is not None:
                seconds = price.seconds_per_token * row.completion_tokens
            priced = self.prices.priced(replace(row, seconds=0.0), price.model)  # its tokens cost, not its time
            self.ledger.append(replace(priced, seconds=seconds))
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
