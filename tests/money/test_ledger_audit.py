"""The audit: what the budgets say was spent is what the server billed, to the token, whatever goes wrong on the way.

The stub keeps books of its own and checks them, and the budgets, against the limits at every single bill.
"""

import asyncio
import random
from collections import Counter, defaultdict
from contextlib import suppress
from fractions import Fraction

from orchestra_jax.money.budgets import Budget, BudgetExceeded, Limits, Spending
from orchestra_jax.tools.experts.client import ExpertClient, expert_clients
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.types import InfrastructureError, Usage
from tests.tools import openai_stub
from tests.tools.openai_stub import PRICES, Bill, Fault, StubOpenAI, status

STEPS = 4
CALLS = 4


class Books:
    """What was billed to the run, its steps and trajectories, and whether any limit was ever exceeded."""

    def __init__(self, budgets: dict[str, Budget]) -> None:
        self.budgets = budgets
        self.billed: dict[str, list[Bill]] = defaultdict(list)
        self._usd: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self.broken: list[str] = []

    def add(self, bill: Bill) -> None:
        trajectory = self.budgets[bill.book]
        for budget in trajectory._chain:
            name = bill.book if budget is trajectory else budget.name
            self.billed[name].append(bill)
            self._usd[name] += Fraction(bill.usd)  # type: ignore[assignment]  # exact
            self._tokens[name] += bill.prompt + bill.completion
            for spent in (Spending(float(self._usd[name]), self._tokens[name], len(self.billed[name])), used(budget)):
                for what in ("usd", "tokens", "calls"):
                    limit = getattr(budget.limits, what)
                    if limit is not None and getattr(spent, what) > limit:
                        self.broken.append(f"{name}: {spent} is beyond {budget.limits}")

    def total(self, name: str) -> Spending:
        return Spending(float(self._usd[name]), self._tokens[name], len(self.billed[name]))


def used(budget: Budget) -> Spending:
    """Spent and reserved together, as exact as the budget itself."""
    return (budget._spent + budget._reserved).rounded()


def amounts(rows) -> Counter:
    """Rows or bills as (model, prompt, cached, completion)."""
    return Counter(
        (row.name, row.prompt_tokens, row.cached_tokens, row.completion_tokens)
        if isinstance(row, Usage)
        else (row.model, row.prompt, row.cached, row.completion)
        for row in rows
    )


def tree(limits: Limits, step_limits: list[Limits], trajectory_limits: Limits, episodes: int) -> dict[str, Budget]:
    """Budgets by book: one run, its steps, their trajectories in turn."""
    run = Budget(limits, name="run")
    steps = [Budget(limit, name=f"step{i}", parent=run) for i, limit in enumerate(step_limits)]
    budgets = {budget.name: budget for budget in (run, *steps)}
    for i in range(episodes):
        budgets[f"t{i}"] = Budget(trajectory_limits, name="trajectory", parent=steps[i % len(steps)])
    return budgets


class Crowd:
    """Episodes at once, some of which are cancelled, or give up at a deadline.

    Attributes:
        rows: of all completions that reached their episode.
        ends: how often what ended a call or an episode.
    """

    def __init__(self, clients: dict[str, ExpertClient], budgets: dict[str, Budget], impatient: bool) -> None:
        self.clients, self.budgets, self.impatient = clients, budgets, impatient
        self.rows: list[Usage] = []
        self.ends: Counter[str] = Counter()

    async def run(self, episodes: int) -> None:
        tasks = [asyncio.create_task(self._episode(i)) for i in range(episodes)]
        loop = asyncio.get_running_loop()
        for i, task in enumerate(tasks):
            if self.impatient and i % 10 == 0:
                loop.call_later(random.Random(i).uniform(0.05, 3.0), task.cancel)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, asyncio.CancelledError):
                self.ends["cancelled"] += 1
            elif result is not None:
                raise result
        for client in self.clients.values():
            await client.close()

    async def _episode(self, i: int) -> None:
        rng = random.Random(i)
        budget = self.budgets[f"t{i}"]
        for call in range(CALLS):
            client = self.clients[rng.choice(list(self.clients))]
            deadline = rng.uniform(0.01, 0.5) if self.impatient and rng.random() < 0.1 else None
            question = {"role": "user", "content": f"[t{i}] call {call} " + "word " * rng.randrange(40)}
            try:
                async with asyncio.timeout(deadline):
                    completion = await client.chat([question], budget=budget)
                self.rows.extend(completion.usage)
                self.ends["answered"] += 1
            except BudgetExceeded as error:
                self.ends[f"over {error.scope}"] += 1
                return
            except InfrastructureError as error:
                self.ends["timed out" if "did not answer" in str(error) else "failed"] += 1
            except TimeoutError:
                self.ends["deadline"] += 1


def check(budgets: dict[str, Budget], books: Books) -> None:
    for name, budget in budgets.items():
        assert budget.reserved == Spending()
        assert budget.spent == books.total(name), name


async def test_hundreds_of_episodes_cost_what_the_server_billed(stub: StubOpenAI):
    """Refusals, slow answers, client time-outs, deadlines and cancellations: the ledger is the bill."""

    def chaos(number: int) -> Fault | None:
        return rng.choices(
            [None, status(429, "0.01"), status(429), status(500), status(503), openai_stub.slow(0.4)],
            [80, 2, 5, 5, 3, 5],
        )[0]

    rng = random.Random(0)
    experts = [
        Expert("small", "small", stub.url, max_tokens=30, timeout_s=60, concurrency=64, retries=6),
        Expert("big", "big", stub.url, max_tokens=20, timeout_s=0.3, concurrency=64, retries=6),
    ]
    clients = expert_clients(experts, PRICES, backoff_s=0.005)
    whole = Limits(usd=0.105, tokens=75_000, calls=1200)
    budgets = tree(whole, [Limits(usd=0.012), Limits(calls=90), Limits(tokens=9000), Limits()], Limits(0.002), 300)
    books = Books(budgets)
    stub.chaos, stub.on_bill = chaos, books.add
    crowd = Crowd(clients, budgets, impatient=True)
    await crowd.run(300)

    check(budgets, books)
    assert books.broken == []
    bills = amounts(stub.bills)
    for name, spent in budgets["run"].by_name().items():
        mine = [bill for bill in stub.bills if bill.model == name]
        assert spent.calls == len(mine)
        assert spent.tokens == sum(bill.prompt + bill.completion for bill in mine)
    # Every row that an episode got is a bill, and no bill is two rows; the rest belongs to those who gave up.
    assert not any(row.estimated for row in crowd.rows)
    assert amounts(crowd.rows) <= bills
    abandoned = len(stub.bills) - len(crowd.rows)
    assert 0 < abandoned <= sum(crowd.ends[end] for end in ("cancelled", "deadline", "timed out", "failed"))
    # The test is only worth something if all of this happened.
    for end in (
        "answered",
        "cancelled",
        "deadline",
        "timed out",
        "over trajectory",
        "over step0",
        "over step1",
        "over step2",
    ):
        assert crowd.ends[end] > 0, crowd.ends
    assert len(stub.bodies) > len(stub.bills) > 240


async def test_where_the_bill_is_unknown_the_ledger_is_never_below_it(stub: StubOpenAI):
    """Connections that break before and after the bill, answers cut in half, answers without usage."""

    def chaos(number: int) -> Fault | None:
        return rng.choices(
            [
                None,
                openai_stub.RESET_BEFORE,
                openai_stub.RESET_AFTER,
                openai_stub.TRUNCATED,
                openai_stub.NO_USAGE,
                status(500),
            ],
            [80, 4, 4, 4, 4, 4],
        )[0]

    rng = random.Random(1)
    experts = [Expert(name, name, stub.url, max_tokens=30, concurrency=32) for name in ("small", "big")]
    clients = expert_clients(experts, PRICES, backoff_s=0.001)
    budgets = tree(Limits(usd=0.35), [Limits(usd=0.012)] + [Limits()] * (STEPS - 1), Limits(usd=0.01), 200)
    books = Books(budgets)
    stub.chaos, stub.on_bill = chaos, books.add
    crowd = Crowd(clients, budgets, impatient=False)
    await crowd.run(200)

    assert books.broken == []
    for name, budget in budgets.items():
        assert budget.reserved == Spending()
        spent, billed = budget.spent, books.total(name)
        assert spent.usd >= billed.usd
        assert spent.tokens >= billed.tokens
        assert spent.calls >= billed.calls
    exact = [row for row in crowd.rows if not row.estimated]
    assert amounts(exact) <= amounts(stub.bills)
    assert len(crowd.rows) > len(exact) > 300
    assert crowd.ends["over step0"] > 0


async def test_a_thousand_calls_at_once_on_one_small_budget(stub: StubOpenAI):
    """All at the same moment: the money goes as far as it can, and no further."""
    client = ExpertClient(Expert("big", "big", stub.url, max_tokens=20, concurrency=128), PRICES)
    run = Budget(Limits(usd=0.05))
    budgets = {"a": Budget(name="trajectory", parent=run), "run": run}
    books = Books(budgets)
    stub.on_bill = books.add
    budget = budgets["a"]

    async def call(number: int) -> None:
        with suppress(BudgetExceeded):
            await client.chat([{"role": "user", "content": f"[a] {number}"}], budget=budget)

    await asyncio.gather(*map(call, range(1000)))
    await client.close()
    check(budgets, books)
    assert books.broken == []
    worst = 1.5 * 20 * 16 / 1e6
    assert run.limits.usd - 2 * worst < run.spent.usd <= run.limits.usd
