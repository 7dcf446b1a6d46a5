"""One question, played by the loop of training and evaluation: the world that poses it, and what it has cost so far."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from orchestra_jax.data.pipeline import TaskIterator
from orchestra_jax.engines.base import Engine, SamplingParams
from orchestra_jax.envs.base import Environment, Episode, Message
from orchestra_jax.io.stopwatch import queued, worked
from orchestra_jax.money.budgets import Budget, BudgetExceeded, Limits, Spending
from orchestra_jax.money.prices import POLICY, PriceList, policy_row
from orchestra_jax.money.reservations import Reservation, acquire
from orchestra_jax.rollout.messages import MessageEngine, WholeReply
from orchestra_jax.rollout.speakers import EngineSpeaker, Opening, PolicyTurn
from orchestra_jax.serving.answers import Answer, CallStep
from orchestra_jax.tools.entries import OUT_OF_BUDGET
from orchestra_jax.tools.relay import NO_RESULT, RELAY, can_relay
from orchestra_jax.tools.schema import validate_arguments
from orchestra_jax.types import (
    TRAJECTORY_ROLES,
    InfrastructureError,
    Status,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
    Trajectory,
    Usage,
    work_seconds,
)

REQUEST = "request"  # name of a request's budget
OWN_LIMITS = {REQUEST: "max_usd", "tokens": "max_tokens"}  # limits of a request, by their BudgetExceeded.scope
_PASSED = "passed on"  # what stands for the answer where the caller's tools are called


@dataclass(frozen=True)
class Surroundings:
    """The messages and tools around a question.

    Attributes:
        after: messages after it: calls of the caller's tools, and their results.
        tools: tools of the caller, beside those of the world.
    """

    before: Sequence[Message] = ()
    after: Sequence[Message] = ()
    tools: Sequence[ToolSpec] = ()


class QuestionError(ValueError):
    """A question that cannot be asked here; one sentence says why."""


class Purse:
    """The money of one question, and what is kept of it; this one limits nothing more and keeps nothing.

    Attributes:
        paid: budget of what is paid to others.
        own: budget of what nobody is paid for: the tokens of our own engine, simulated and recorded calls.
        limit: words about the most that the question may cost, with a place for its dollars.
    """

    limit = "max_usd is {:.6g}; raise it to go on"

    def __init__(self, paid: Budget) -> None:
        self.paid, self.own = paid, Budget(name="own")

    async def begin(self, max_usd: float | None) -> float | None:
        """Begin the question; return the most that it may cost."""
        return max_usd

    def end(self, answer: Answer, task: Task) -> "Future[None] | None":
        """End the question; return what has to be done before its answer is given."""
        return None


class Account:
    """The cost of one question so far, and its limit; every dollar of the trajectory counts, its own tokens too.

    Args:
        prices: of the policy's tokens, where an episode has no list of its own.
        told: is told each call, when it begins and when it has ended.
        seconds_per_token: see `policy_row`.
        max_tokens: most tokens that the policy may write in all its turns.

    Attributes:
        budget: of what is paid to others, within `purse.paid`; what nobody is paid for makes it smaller.
        ledger: rows of the policy's turns and of its calls, as they come.
        steps: the calls, those under way included.
        passed: calls that the caller has to make.
    """

    def __init__(
        self,
        max_usd: float | None,
        prices: PriceList,
        purse: Purse,
        told: Callable[[CallStep], None],
        seconds_per_token: float | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self.budget = Budget(Limits(usd=max_usd), name=REQUEST, parent=purse.paid)
        self._max_usd, self._seconds_per_token, self._own, self._told = max_usd, seconds_per_token, purse.own, told
        self._limit, self._max_tokens = purse.limit, max_tokens
        self.prices, self._unpaid, self._lock = prices, 0.0, asyncio.Lock()
        self.ledger: list[Usage] = []
        self.steps: list[CallStep] = []
        self.passed: list[ToolCall] = []

    @property
    def usd(self) -> float:
        """Dollars so far."""
        return self._unpaid + self.budget.spent.usd

    @property
    def seconds(self) -> float:
        """Seconds of work so far; parallel calls are added up."""
        return work_seconds(self.ledger)

    def begin(self, prices: PriceList | None) -> None:
        """Take over the price list of an episode, where that has one for the policy."""
        if prices is not None and POLICY in prices.entries:
            self.prices = prices

    def room(self, most: int) -> int:
        """Return how many tokens the policy may write now, at most `most`; raise BudgetExceeded if it is none."""
        if self._max_tokens is None:
            return most
        left = self._max_tokens - sum(row.completion_tokens for row in self.ledger if row.role == "orchestrator")
        if left < 1:
            raise BudgetExceeded(
                f"The answer needs more tokens than max_tokens={self._max_tokens}; raise it.", "tokens"
            )
        return min(most, left)

    async def reserve(self, worst: Usage) -> Reservation:
        """Set the most aside that the next turn of the policy can cost; raise BudgetExceeded if it is not left."""
        priced = self.prices.priced(worst, POLICY)
        could_be = self.usd + priced.cost_usd
        if self._max_usd is not None and could_be > self._max_usd:
            raise BudgetExceeded(
                f"With its next words the answer could come to {could_be:.6g} dollars, but "
                f"{self._limit.format(self._max_usd)}.",
                REQUEST,
            )
        return await acquire(self._own, priced)

    def spoke(self, rows: Iterable[Usage], seconds: float, turn: Reservation | None = None) -> None:
        """Note a turn of the policy; one that nobody is paid for is charged, as an amount was set aside for it."""
        for row in rows:
            priced = policy_row(row, self.prices, seconds, self._seconds_per_token)
            self.ledger.append(priced)
            if turn is not None:
                self._charge(priced.cost_usd)
                turn.settle(priced)

    def called(self, call: ToolCall) -> int:
        """Note that a call begins; return its number."""
        step = CallStep(len(self.steps), call.name, call.arguments)
        self.steps.append(step)
        self._told(step)
        return step.number

    async def answered(self, number: int, result: ToolResult, *, paid: bool) -> ToolResult:
        """Note the result of a call and return it; one that cost more than is left, and nobody was paid, is refused."""
        usd = _usd(result.usage)
        if not paid and self.too_dear(usd):
            result, usd = ToolResult(OUT_OF_BUDGET, is_error=True, refused=True), 0.0
        await self._charge_call(number, 0.0 if paid else usd)
        text = result.text if result.final is None else result.final
        step = self.steps[number]
        models = dict.fromkeys(row.name for row in result.usage if row.name != step.tool)
        self.steps[number] = replace(
            step,
            result=text,
            usd=usd,
            seconds=work_seconds(result.usage),
            refused=result.refused,
            model=", ".join(models),
        )
        self.ledger += result.usage
        self._told(self.steps[number])
        return result

    def paid(self, before: Mapping[str, Spending], rows: Iterable[Usage]) -> bool:
        """Return whether somebody was paid for a call; without a limit others may have been paid for beside it."""
        changed = {name for name, spent in self.budget.by_name().items() if spent != before.get(name)}
        return bool(changed if self._max_usd is not None else changed & {row.name for row in rows})

    def too_dear(self, usd: float) -> bool:
        """Return whether so many dollars do not fit beside what is spent."""
        return self._max_usd is not None and usd > 0 and self.usd + usd > self._max_usd

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Make one call after the other where there is a limit: prices per call and paid calls share it exactly."""
        if self._max_usd is None:
            yield
            return
        await queued(self._lock.acquire())
        try:
            yield
        finally:
            self._lock.release()

    async def _charge_call(self, number: int, usd: float) -> None:
        """Count the dollars of a call that nobody is paid."""
        if usd:
            row = Usage(self.steps[number].tool, cost_usd=usd)
            (await acquire(self._own, row)).settle(row)
            self._charge(usd)

    def _charge(self, usd: float) -> None:
        """Count dollars that nobody is paid."""
        self._unpaid += usd
        if self._max_usd is not None:
            self.budget.limits = Limits(usd=max(0.0, self._max_usd - self._unpaid))

    async def failed(self, number: int, error: InfrastructureError, *, paid: bool) -> None:
        """Note that a call failed through no fault of the policy; it may be tried again as another one."""
        usd = _usd(error.usage)
        await self._charge_call(number, 0.0 if paid else usd)
        self.ledger += error.usage
        self.steps[number] = replace(self.steps[number], result=f"failed: {error}", usd=usd, refused=True)
        self._told(self.steps[number])

    def answer(self, name: str, trajectory: Trajectory | None, status: Status, reason: str, limit: str) -> Answer:
        """Return what the question has come to; without a trajectory the ledger so far is what it cost."""
        told = name, None, status, reason, limit
        if trajectory is None:
            return Answer(*told, self.usd, self.seconds, tuple(self.steps), (), tuple(self.ledger))
        whole, passed = trajectory, tuple(self.passed)
        answer = Answer(*told, whole.cost_usd, whole.latency_s, tuple(self.steps), passed, whole.ledger, whole)
        return answer if passed else replace(answer, answer=whole.answer)


def _usd(rows: Iterable[Usage]) -> float:
    return sum(row.cost_usd for row in rows if row.role in TRAJECTORY_ROLES)


class AskedEpisode:
    """An episode of the world within a conversation; nobody judges the answer."""

    def __init__(self, episode: Episode, account: Account, said: Surroundings) -> None:
        first, last = episode.messages[:-1], episode.messages[-1:]
        self.messages: list[Message] = [*first, *said.before, *last, *said.after]
        self._own = {spec.name: replace(spec, terminal=True) for spec in said.tools}
        self.tools: tuple[ToolSpec, ...] = (*episode.tools, *self._own.values())
        self._prices_usd = {spec.name: spec.price_usd or 0.0 for spec in episode.tools}
        self._read = dict[str, bool]()  # whether the policy has read each tool's last result; the latest last
        self.prices: PriceList | None = getattr(episode, "prices", None)
        self._episode, self._account = episode, account
        account.begin(self.prices)

    async def step(self, call: ToolCall) -> ToolResult:
        account = self._account
        if (spec := self._own.get(call.name)) is not None:
            if (problem := validate_arguments(spec, call.arguments)) is not None:
                return ToolResult(problem, is_error=True, refused=True)
            account.passed.append(call)
            return ToolResult("", final=_PASSED)
        async with account.alone():
            return await self._made(call)

    async def _made(self, call: ToolCall) -> ToolResult:
        """Make a call of a tool of the world, within the account."""
        account = self._account
        before, number = account.budget.by_name(), account.called(call)
        try:
            if account.too_dear(self._prices_usd.get(call.name, 0.0)):
                result = ToolResult(OUT_OF_BUDGET, is_error=True, refused=True)
            elif (made := self._of_read(call)) is None:
                result = ToolResult(NO_RESULT, is_error=True, refused=True)
            else:
                result = await self._episode.step(made)
        except InfrastructureError as error:
            await account.failed(number, error, paid=account.paid(before, error.usage))
            raise
        except BudgetExceeded as error:
            if error.scope != REQUEST:
                raise
            result = ToolResult(OUT_OF_BUDGET, error.usage, is_error=True, refused=True)
        shown = await account.answered(number, result, paid=account.paid(before, result.usage))
        if can_relay(result):
            self._read.pop(call.name, None)
            self._read[call.name] = can_relay(shown)
        return shown

    def _of_read(self, call: ToolCall) -> ToolCall | None:
        """Return a call such that `relay` hands over what the policy has read, no refused result; None: it cannot."""
        if call.name != RELAY.name or all(self._read.values()):
            return call
        last = next((name for name, read in reversed(self._read.items()) if read), None)
        name = call.arguments.get("tool", last)
        known = isinstance(name, str) and self._read.get(name, False)
        return replace(call, arguments={"tool": name}) if known else None

    async def score(self, answer: str) -> bool:
        return False


class AskedWorld(Environment):
    """The world of one question."""

    def __init__(self, world: Environment, account: Account, said: Surroundings) -> None:
        self._world, self._account, self._said = world, account, said

    def reset(self, task: Task, budget: Budget) -> AskedEpisode:
        return AskedEpisode(self._world.reset(task, budget), self._account, self._said)

    def train_tasks(self, batch_size: int) -> TaskIterator:
        raise NotImplementedError("A world of one question has nothing to train on.")

    def held_out(self, count: int) -> Sequence[Task]:
        return ()


class AccountedSpeaker(EngineSpeaker):
    """The policy behind our engine; each of its turns has to fit into the account."""

    def __init__(
        self, account: Account, opening: Opening, engine: Engine, params: SamplingParams, seed: tuple[int, ...]
    ) -> None:
        super().__init__(opening, engine, params, seed)
        self._account = account

    async def speak(self, results: Sequence[ToolResult], turn: int, attempt: int) -> PolicyTurn:
        account = self._account
        self._params = replace(self._params, max_new_tokens=account.room(self._params.max_new_tokens))
        room = min(self._params.max_new_tokens, self.opening.limits.max_length - len(self._ids))
        worst = Usage(POLICY, "orchestrator", len(self._ids), completion_tokens=room)
        reserved = await account.reserve(worst)
        try:
            start = worked()
            said = await super().speak(results, turn, attempt)
            account.spoke(said.usage, worked() - start, reserved)
        finally:
            reserved.release()
        if said.turn.finish_reason == "length":
            account.room(1)
        return said


class AccountedMessages:
    """The policy behind an address; its turns, which `MessageEngine.converse` pays for, stand in the account."""

    def __init__(self, engine: MessageEngine, account: Account) -> None:
        self._engine, self._account = engine, account

    async def converse(self, *conversation: Any, max_tokens: int, **options: Any) -> WholeReply | None:
        start, most = worked(), self._account.room(max_tokens)
        said = await self._engine.converse(*conversation, max_tokens=most, **options)
        if said is not None:
            self._account.spoke(said.usage, worked() - start)
            if said.finish_reason == "length":
                self._account.room(1)
        return said
