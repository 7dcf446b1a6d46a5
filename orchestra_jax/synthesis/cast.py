"""The models that take part, by role: asked in structured outputs, and asked again where a reply does not fit."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any

from orchestra_jax.config.choices import ReplayMode
from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.config.synthesis import SynthesisConfig
from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.untrusted import Unreadable
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.limits import Limiter
from orchestra_jax.money.price_book import price_book
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools.answers import without_thinking
from orchestra_jax.tools.experts.client import ExpertClient
from orchestra_jax.tools.experts.context import ChatMessage
from orchestra_jax.tools.experts.roles import messages
from orchestra_jax.tools.experts.run_experts import named_experts
from orchestra_jax.tools.schema import checker
from orchestra_jax.types import Usage

SYSTEM = (
    "You help to build data sets. Reply with one JSON value that fits the JSON schema of the request, and nothing "
    "else: no explanation, no code fence."
)
CUT = "the reply was cut at the model's token limit; write less"
_REPEATED = 4000  # characters of a reply that its writer is shown again
_SHOWN = 300  # characters of a fault
_DRAWN = ("writer", "evolver", "solver")  # answer at temperature 1, the others at 0

Check = Callable[[Any], str | None]  # returns a clause on the fault of a value that fits its schema, or None


class Rejected(Exception):  # noqa: N818  named like the fact it states
    """A row or an item cannot be kept.

    Attributes:
        reason: the kind of fault, which is counted.
    """

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(reason, why)
        self.reason, self.why = reason, why


@dataclass
class Tally:
    """Calls, tokens and dollars by model, and the number of replies that did not fit.

    Dollars are exact sums, so they do not depend on the order in which answers come.
    """

    models: dict[str, Counter[str]] = field(default_factory=dict)
    usd: dict[str, Fraction] = field(default_factory=dict)
    unfit: int = 0

    def add(self, rows: tuple[Usage, ...]) -> None:
        """Count ledger rows."""
        for row in rows:
            of_model = self.models.setdefault(row.name, Counter())
            of_model["calls"] += 1
            of_model["tokens"] += row.prompt_tokens + row.completion_tokens
            self.usd[row.name] = self.usd.get(row.name, Fraction()) + Fraction(row.cost_usd)

    def as_json(self) -> dict[str, Any]:
        """Return the counts by model, and `unfit`."""
        models = {name: {**each, "usd": float(self.usd[name])} for name, each in sorted(self.models.items())}
        return {"models": models, "unfit": self.unfit}


class Cast:
    """The models by role.

    Args:
        clients: by role; a role may share its model with another.
        tries: replies until one has to fit.

    Attributes:
        tally: counts the calls of a stage; each stage puts a new one here.
    """

    def __init__(self, clients: Mapping[str, ExpertClient], budget: Budget, tries: int) -> None:
        self._clients, self.budget, self._tries = clients, budget, tries
        self.tally = Tally()

    async def ask(
        self, role: str, prompt: str, schema: Mapping[str, Any], *, check: Check = lambda value: None, sample: int = 0
    ) -> Any:
        """Return a value that fits the schema and the check.

        Args:
            prompt: the request; the schema is appended to it, for servers that do not enforce one.
            sample: another number gives another answer to the same request.

        Raises:
            Rejected: no reply fits ("no fitting reply").
            InfrastructureError, BudgetExceeded, ReplayMiss: see `ExpertClient.chat`.
        """
        asked = f"{prompt}\n\nJSON schema of your reply:\n{json.dumps(schema, ensure_ascii=False)}"
        conversation: list[ChatMessage] = [*messages(SYSTEM, asked)]
        form = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
        problem = ""
        for number in range(self._tries):
            # A try of its own in the record: a model that repeats itself is asked afresh.
            text, cut = await self.say(role, conversation, sample=sample * self._tries + number, response_format=form)
            value, problem = _read(text, schema, check)
            if not problem:
                return value
            self.tally.unfit += 1
            problem = CUT if cut else problem
            again = f"This does not fit: {problem}. Reply with the corrected JSON value alone."
            shown = text[:_REPEATED] or "(nothing)"
            answered = {"role": "assistant", "content": shown}, {"role": "user", "content": again}
            conversation = [*conversation[:2], *answered]
        raise Rejected("no fitting reply", f"{problem[:1].upper()}{problem[1:]}.")

    async def say(
        self,
        role: str,
        conversation: list[ChatMessage],
        *,
        sample: int = 0,
        response_format: Mapping[str, Any] | None = None,
    ) -> tuple[str, bool]:
        """Return a plain reply without its reasoning, and whether it was cut; errors are those of `ask`."""
        completion = await self._clients[role].chat(
            conversation, budget=self.budget, sample=sample, response_format=response_format
        )
        self.tally.add(completion.usage)
        return without_thinking(completion.text), completion.finish_reason == "length"

    async def close(self) -> None:
        """Close the connections once requests under way have been paid."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))


def make_cast(cfg: WorldConfig, settings: SynthesisConfig, budget: Budget, replay: Replay) -> Cast:
    """Return the models of synthesis.models.

    Raises:
        MissingPrice, ValueError, FileNotFoundError: a model lacks something; one sentence.
        MissingKey, ImportError: a model cannot be called from here.
    """
    names = asdict(settings.models)
    experts = {expert.name: expert for expert in named_experts(cfg, sorted(set(names.values())))}
    prices, limiters, clients = price_book(cfg).base, dict[str, Limiter](), dict[str, ExpertClient]()
    for role, name in names.items():
        expert = experts[name]
        if expert.temperature is not None:  # the model takes a temperature
            expert = replace(expert, temperature=1.0 if role in _DRAWN else 0.0)
        limiter = limiters.setdefault(expert.provider, Limiter(expert.concurrency, expert.requests_per_minute))
        clients[role] = ExpertClient(expert, prices, replay=replay, limiter=limiter)
        if cfg.replay.mode is not ReplayMode.replay:
            clients[role].check()
    return Cast(clients, budget, settings.tries)


def _read(text: str, schema: Mapping[str, Any], check: Check) -> tuple[Any, str]:
    """Return the value of a reply, and a clause on its fault or ""."""
    problem = "it is empty"
    for candidate in _candidates(text):
        try:
            value = read_json(candidate.encode())
        except Unreadable as error:
            problem = str(error)[:_SHOWN]
            continue
        if (fault := schema_fault(value, schema)) is not None:
            return None, fault
        return value, (check(value) or "")[:_SHOWN]
    return None, problem


def schema_fault(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return a clause on where and how a value does not fit a JSON schema, or None if it fits."""
    error = checker(schema)(value)
    if error is None:
        return None
    where = ".".join(map(str, error.absolute_path))
    return f"{f'at {where}: ' if where else ''}{error.message}"[:_SHOWN]


def _candidates(text: str) -> list[str]:
    """Return texts that may be the JSON of a reply: all of it, then from the first bracket to the last of its kind."""
    found = [text] if text else []
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    if starts and (start := min(starts)) >= 0:
        end = text.rfind("}" if text[start] == "{" else "]")
        if end > start and (start, end + 1) != (0, len(text)):
            found.append(text[start : end + 1])
    return found
