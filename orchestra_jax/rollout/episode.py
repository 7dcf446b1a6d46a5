"""The player of one trajectory: the policy speaks, its calls run, a user answers if there is one, until an end.

A turn without calls is the final answer where nobody answers it. In a `Conversation` it goes to the user
(`envs.conversation` has the rules).

An infrastructure failure costs what failed and nothing else: that generation, call, user's turn or score is tried again
alone, and what the trajectory has paid for until then stays. docs/rollouts.md ("Failures") tells who tries again how
often, and what follows from each end for the learner and the figures.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.envs.base import Environment, Episode, Message, Score
from orchestra_jax.io.stopwatch import Stopwatch
from orchestra_jax.money.budgets import Budget, Limits
from orchestra_jax.money.prices import POLICY, PriceList, policy_row
from orchestra_jax.rollout.parsing import final_answer
from orchestra_jax.rollout.speakers import PolicyTurn, Speaker
from orchestra_jax.rollout.watchdog import Watchdog
from orchestra_jax.types import (
    InfrastructureError,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Usage,
    work_seconds,
)

T = TypeVar("T")


@dataclass(frozen=True)
class PlayerSettings:
    """The settings that all episodes of a collector share; see `Collector`."""

    environment: Environment
    limits: RolloutLimits
    prices: PriceList
    seconds_per_token: float | None
    watchdog: Watchdog
    allowance: Limits | None


class EpisodePlayer:
    """Plays one trajectory of one task.

    Attributes:
        sequences: finished turns; a fork starts a new list.
        observed: results of all calls, and the user's words among them.
        prices: price list in force: the instance's, or else the run's.
        worked_s: seconds of work so far, the longest of each turn's calls; measured or charged, whichever is more.
    """

    def __init__(self, settings: PlayerSettings, task: Task, speaker: Speaker, group: int, member: int) -> None:
        self.settings, self.limits = settings, settings.limits
        self.task, self.speaker, self.group, self.member = task, speaker, group, member
        self.sequences: list[list[Turn]] = [[]]
        self.ledger: list[Usage] = []
        self.observed: list[ToolResult] = []
        self.called = 0
        self.turn = 0
        self.prices = settings.prices
        self.worked_s = 0.0

    async def play(self, parent: Budget, on_done: Callable[[Trajectory], None] | None = None) -> Trajectory:
        """Play the trajectory, however it ends; its budget is a part of `parent`.

        Raises:
            BudgetExceeded, ReplayMiss: the run cannot go on. Everything else that is raised is a bug.
        """
        answer, score = None, Score(False)
        budget = Budget(self.settings.allowance, name="trajectory", parent=parent)
        try:
            episode = self.settings.environment.reset(self.task, budget)
            own: PriceList | None = getattr(episode, "prices", None)
            if own is not None and POLICY in own.entries:
                self.prices = own
            # The allowance is for calls; what the policy itself costs outside is none.
            self.speaker.begin(episode, parent)
            status, reason, said = await self._turns_until_end(episode)
            if said is not None:
                found, _ = await self.wait("score", lambda _: episode.score(said), None)
                score = found if isinstance(found, Score) else Score(found)
                self.ledger += score.usage
            answer = said  # one that could not be scored is none
        except InfrastructureError as error:
            status, reason = Status.FAILED, str(error)
        finally:
            self.speaker.end()
        trajectory = Trajectory(
            task=self.task,
            group=self.group,
            member=self.member,
            sequences=tuple(tuple(sequence) for sequence in self.sequences if sequence),
            status=status,
            reason=reason,
            answer=answer,
            solved=score.solved,
            ledger=tuple(self.ledger),
            criteria=score.criteria,
        )
        if on_done is not None:
            on_done(trajectory)
        return trajectory

    async def _turns_until_end(self, episode: Episode) -> tuple[Status, str, str | None]:
        limits = self.limits
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
                respond = getattr(episode, "respond", None)  # of a `Conversation`
                words = None
                if respond is not None and not finals:
                    from orchestra_jax.rollout.user_words import ask_user

                    words = await ask_user(self, respond, answer)
                if words is None:
                    return Status.COMPLETED, "", answer
                heard: list[Message] = [{"role": "user", "content": words}]
            else:
                heard = [{"role": "tool", "content": result.text} for result in results]
            if not self.speaker.hear(said, heard):
                self.sequences.append([])
        return Status.NO_ANSWER, limits.turns_used_up, None

    def _too_late(self, episode: Episode, calls: Sequence[ToolCall]) -> tuple[Status, str, None] | None:
        """Return the end of a trajectory that has no turn or time left for results; no call is made or paid then."""
        terminal = {spec.name for spec in episode.tools if spec.terminal}
        if not calls or any(call.name in terminal for call in calls):
            return None
        if self.turn == self.limits.max_turns:
            return Status.NO_ANSWER, self.limits.turns_used_up, None
        return self._no_time_left()

    def _no_time_left(self) -> tuple[Status, str, None] | None:
        limit_s = self.limits.deadline_s
        return (Status.NO_ANSWER, f"no answer within {limit_s:g} s of work", None) if self.worked_s > limit_s else None

    async def _speak(self) -> PolicyTurn:
        """Have the policy speak, and charge its tokens."""

        def speak(attempt: int) -> Awaitable[PolicyTurn]:
            return self.speaker.speak(self.observed, self.turn, attempt)

        said, measured = await self.wait("engine", speak, self.limits.turn_deadline_s)
        rows = [policy_row(row, self.prices, measured, self.settings.seconds_per_token) for row in said.usage]
        self.ledger += rows
        self.worked_s += max(sum(row.seconds for row in rows), measured)
        return said

    async def _execute(self, episode: Episode, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run one turn's calls side by side; an error is raised once all of them have ended."""

        async def step(call: ToolCall) -> tuple[ToolResult, float]:
            return await self.wait(f"tool {call.name}", lambda _: episode.step(call), self.limits.tool_deadline_s)

        found = await asyncio.gather(*map(step, calls), return_exceptions=True)
        done = [each for each in found if not isinstance(each, BaseException)]
        for each in found:
            if isinstance(each, BaseException):
                self.ledger += [row for result, _ in done for row in result.usage]
                raise each
        self.worked_s += max((max(work_seconds(result.usage), measured) for result, measured in done), default=0.0)
        return [result for result, _ in done]

    async def wait(self, what: str, begin: Callable[[int], Awaitable[T]], deadline_s: float | None) -> tuple[T, float]:
        """Wait for the result of `begin(attempt)`; return it with the seconds of work of that attempt.

        The watchdog sees the wait. What fails or is overdue is tried again, until no retry is left.

        Raises:
            InfrastructureError: of the last attempt; too late is no answer, not a wrong one.
        """
        for attempt in itertools.count():
            watch = Stopwatch(min(deadline_s or self.limits.deadline_s, self.limits.deadline_s))
            try:
                with self.settings.watchdog.watch(self.group, self.member, self.turn, what):
                    return await watch.run(begin(attempt)), watch.seconds
            except TimeoutError as error:
                # Without the turn, so that the commonest failure of an evaluation is counted whatever its turn.
                words = f"{what} timed out: {error}" if str(error) else f"{what} timed out"
                if watch.expired:
                    words = f"{what} took longer than its deadline of {watch.limit_s:g} s"
                failure = InfrastructureError(words)
                failure.__cause__ = error
            except InfrastructureError as error:
                failure = error
                self.ledger += error.usage
            if attempt == self.limits.retries:
                raise failure
        raise AssertionError

    def _record(self, said: PolicyTurn, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> None:
        self.sequences[-1].append(replace(said.turn, calls=tuple(calls), results=tuple(results)))
        self.observed += results
        self.called += len(results)
        self.ledger += [row for result in results for row in result.usage]
