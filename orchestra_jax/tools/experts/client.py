"""Language models as experts: any endpoint that speaks OpenAI's chat completions.

The `openai` client carries the requests, each once; retries, limits, budgets and the record are in money/paid.py, since
every single request is counted.
"""

import json
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from orchestra_jax.io.http_json import retry_after
from orchestra_jax.io.untrusted import Unreadable, valid_text
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.limits import Limiter
from orchestra_jax.money.paid import CLOSE_S, GRACE_S, Lost, Outcome, PaidCalls, Refused, read_key
from orchestra_jax.money.prices import PriceList
from orchestra_jax.money.replay import Recorded, Replay
from orchestra_jax.tools.experts.context import LEAST_ROOM, ChatMessage, TokenCounter, fit
from orchestra_jax.tools.experts.endpoint import (
    INTERRUPTED,
    ChatAnswer,
    connect,
    counted_reply,
    read_refusal,
    read_reply,
    thought_of,
)
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.tools.experts.quoting import Neutraliser
from orchestra_jax.types import InfrastructureError, Usage

if TYPE_CHECKING:
    import openai

_RETRIED = {408, 409, 429}  # and every 5xx
_UNSUPPORTED = {400, 404, 422, 501}
_FORMAT = re.compile(r"response_format|json_schema|grammar|guided|structured", re.I)  # a server may fall over it
_NEVER_SENT = {"ConnectError", "ConnectTimeout", "PoolTimeout"}  # of httpx, under whatever name openai ships it
_TOO_LONG = re.compile(  # OpenAI, vLLM, SGLang, llama.cpp, Anthropic, Gemini, xAI, TGI
    r"context.?(length|window|size|limit)|too many tokens|prompt is too long|maximum number of tokens allowed"
    r"|maximum prompt length|inputs.{0,5} tokens \+ .{0,5}max_new_tokens",
    re.I,
)
_RECORDED = ("text", "finish_reason")
_TIERS = {"flex", "priority"}  # with prices of their own
_SHORTER = 0.75  # what is kept of the prompt when the server finds it too long
_SHOWN = 200  # characters of a server's own error text that a message repeats

_log = logging.getLogger(__name__)
for _name in ("httpx", "httpx2"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # a line for every request otherwise


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply of an expert.

    Attributes:
        text: the reply, "" where there is none.
        usage: a row for the answer, after those of requests whose answer was lost and that may have been billed.
        finish_reason: "stop" | "length" | "content_filter" | another word of the server.
    """

    text: str
    usage: tuple[Usage, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class PromptTooLong(Refused):
    """A request that the server refused because the prompt is longer than its context."""

    def final(self) -> "PromptTooLong":
        """Return the same outcome without a retry: the prompt is not cut, so no further request does better."""
        return replace(self, retry=False)


@dataclass(frozen=True, slots=True)
class _Unsupported(Refused):
    """A request that the server refused because of its fields."""


class ExpertClient:
    """Calls one expert. It needs neither key nor network as long as every answer is in the record.

    A ledger row's seconds are those of the request that was answered, without the wait for a place at the provider.

    Attributes:
        counter: counts the tokens of its prompts.
        least_room: tokens of a context that must be left beside a reply.

    Args:
        replay: the record; None: calls are neither recorded nor replayed.
        limiter: limits of the provider, shared with its other experts; None makes them. `expert_clients` shares them.
        backoff_s: see `PaidCalls`.

    Raises:
        ValueError: a long question would not fit into its context.
        MissingPrice: no price for the expert.
        FileNotFoundError: no tokenizer where `expert.tokenizer` says.
    """

    least_room = LEAST_ROOM

    def __init__(
        self,
        expert: Expert,
        prices: PriceList,
        *,
        replay: Replay | None = None,
        limiter: Limiter | None = None,
        backoff_s: float = 0.5,
    ) -> None:
        if expert.context_tokens - expert.max_tokens < self.least_room:
            raise ValueError(
                f"Expert {expert.name!r} has context_tokens={expert.context_tokens}, max_tokens={expert.max_tokens}: "
                f"a question needs {self.least_room} tokens beside the reply; raise the one or lower the other."
            )
        prices.cost(expert.name)
        self.expert, self.prices = expert, prices
        self.counter = TokenCounter(expert.tokenizer)
        self._calls = PaidCalls(
            limiter or Limiter(expert.concurrency, expert.requests_per_minute),
            replay=replay,
            timeout_s=expert.timeout_s,
            retries=expert.retries,
            backoff_s=backoff_s,
            prepare=self._connect,
        )
        self._key = ""
        self._formats = True  # the server takes response_format, as far as we know
        self._tier_told = False
        self._neutralise = Neutraliser(self.counter.control)
        self._client: openai.AsyncOpenAI | None = None

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        budget: Budget,
        role: str = "tool",
        response_format: Mapping[str, Any] | None = None,
        sample: int = 0,
    ) -> Completion:
        """Ask for one completion.

        Args:
            messages: {"role", "content"} each. Too long ones are cut: see `context.fit`; control strings of chat
                templates are broken up: see `quoting`.
            role: role of the ledger rows: "tool", "judge" or "user_simulator".
            response_format: format of a structured output. A server that refuses it is asked without from then on.
            sample: another number is another sample of the same request in the record.

        Raises:
            BudgetExceeded: the worst case does not fit into the budget.
            InfrastructureError: no answer, one sentence with the server and the status.
            MissingKey, ImportError: the expert cannot be called from here at all.
            ValueError: no message, or no room for one.
        """
        expert = self.expert
        most, room = expert.max_tokens, expert.context_tokens - expert.max_tokens
        # Texts that every tokenizer takes, and none takes for a turn's beginning or end.
        safe = [{key: self._neutralise(valid_text(value)) for key, value in each.items()} for each in messages]
        fitted = fit(safe, room, self.counter)
        body = {"model": expert.model, "messages": fitted, expert.max_tokens_field: most, **expert.extra}
        if expert.temperature is not None:
            body["temperature"] = expert.temperature
        if response_format:
            body["response_format"] = response_format
        # The address is no part of it, nor what the server takes: a record made with one serves for another.
        request = {"expert": expert.name, "role": role, "sample": sample, **body}
        # Some servers bill the format as a part of the prompt.
        told = [*fitted, {"content": json.dumps(response_format)}] if response_format else fitted
        tokens: dict[str, Any] = {"prompt_tokens": self.counter.most(told), "completion_tokens": most}
        worst = self.prices.priced(Usage(expert.name, role, seconds=expert.timeout_s + GRACE_S, **tokens))

        async def send() -> Outcome:
            nonlocal room
            outcome = await self._send_formatted(body, role)
            if isinstance(outcome, PromptTooLong):
                room = int(min(room, self.counter.estimate(body["messages"])) * _SHORTER)
                try:
                    body["messages"] = fit(body["messages"], room, self.counter)
                except ValueError:
                    return outcome.final()
            return outcome

        recorded = await self._calls.call("chat", request, worst, send, budget=budget)
        return self._completion(recorded)

    def spare(self, text: str, messages: int) -> int:
        """Count the tokens that are left for a prompt of so many messages beside this text of it."""
        room = self.expert.context_tokens - self.expert.max_tokens
        return room - self.counter.estimate([{"content": ""}] * messages) - self.counter.count(text)

    def check(self) -> None:
        """Check that the expert can be called: raise now what `chat` would raise later.

        Raises:
            MissingKey: the environment has no key.
            ImportError: `openai` is not installed.
        """
        _openai()
        variable = self.expert.api_key_env
        self._key = read_key(variable, f"Expert {self.expert.name!r}") if variable else ""

    async def close(self, patience_s: float = CLOSE_S) -> None:
        """Wait for requests whose callers gave up, until `patience_s`, and drop the connections."""
        await self._calls.close(patience_s)
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _send_formatted(self, body: dict[str, Any], role: str) -> Outcome:
        """Send a request, and once more without the format of the answer if the server refuses it because of that."""
        if not self._formats:
            body.pop("response_format", None)
        outcome = await self._send(body, role)
        if "response_format" in body and isinstance(outcome, _Unsupported):
            form = body.pop("response_format")
            plain = await self._send(body, role)
            if isinstance(plain, Recorded):
                self._formats = False
            elif isinstance(plain, _Unsupported):
                body["response_format"] = form  # it was not that
                return outcome
            return plain
        return outcome

    async def _send(self, body: Mapping[str, Any], role: str) -> Outcome:
        """Make one request and return its outcome. The client's errors hold the key and are never raised."""
        client, openai = self._connect(), _openai()
        server = f"{self.expert.name} at {self.expert.provider}"
        start = time.perf_counter()
        try:
            fields = {key: value for key, value in body.items() if key not in ("model", "messages")}
            response = await client.chat.completions.with_raw_response.create(
                model=body["model"], messages=body["messages"], extra_body=fields
            )
            content = response.http_response.content
        except openai.APIStatusError as error:
            return self._refused(server, error)
        except openai.APIConnectionError as error:
            cause = type(error.__cause__).__name__
            if cause in _NEVER_SENT:
                return Refused(f"{server} cannot be reached ({cause}).", retry=True)
            return Lost(f"The connection to {server} broke ({cause}).")
        except ValueError as error:  # what is no HTTP, or has no end
            said = str(error) if isinstance(error, Unreadable) else type(error).__name__
            return Lost(f"The answer of {server} cannot be read: {said}.")
        seconds = time.perf_counter() - start
        try:
            reply = read_reply(content)
            value = self._answer(reply)
        except Unreadable as problem:
            kind = response.http_response.headers.get("content-type", "")
            if kind.startswith("text/html") and content.lstrip().startswith(b"<"):
                return Refused(f"{server} answered with a web page; correct base_url.")
            return Lost(f"The answer of {server} cannot be read: {problem}.")
        self._check_tier(reply.tier)
        billed = reply.tokens or {**self._counted(body, value, reply), "estimated": True}
        row = Usage(self.expert.name, role, seconds=seconds, **billed)
        if value["finish_reason"] in INTERRUPTED:
            return Lost(f"{server} aborted the generation ({value['finish_reason']}).", self.prices.priced(row))
        return Recorded(value, (self.prices.priced(row),))

    def _answer(self, reply: ChatAnswer) -> dict[str, Any]:
        """Return what is recorded of an answer; raise Unreadable."""
        return {"text": reply.text, "finish_reason": reply.finish_reason}

    def _check_tier(self, tier: str) -> None:
        """Tell once that the server took another tier than the one that was asked for, as its prices are others."""
        asked = self.expert.extra.get("service_tier", "default")
        if tier and tier != asked and not self._tier_told and _TIERS & {tier, asked}:
            self._tier_told = True
            _log.warning(
                "%s answered with service_tier=%s, not %s, and is booked at the price list all the same: set the tier "
                "with `extra` of the expert or in the provider's project, and its prices in the price list.",
                self.expert.name, tier, asked,
            )  # fmt: skip  # the values in the order of the text

    def _counted(self, body: Mapping[str, Any], value: Mapping[str, Any], reply: ChatAnswer) -> dict[str, Any]:
        """Count the tokens of a request whose answer names none; reasoning is completion."""
        written = self.counter.count(thought_of(reply.message) + value["text"])
        written = counted_reply(written, value["finish_reason"], body[self.expert.max_tokens_field])
        return {"prompt_tokens": self.counter.estimate(body["messages"]), "completion_tokens": written}

    def _completion(self, recorded: Recorded) -> Completion:
        """Return the completion, also from a record that others wrote."""
        value = recorded.value
        if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in _RECORDED):
            raise InfrastructureError(
                f"What is recorded of a call of {self.expert.name} is no completion; record to another replay.path."
            )
        return Completion(valid_text(value["text"]), recorded.usage, value["finish_reason"])

    def _refused(self, server: str, error: "openai.APIStatusError") -> Refused:
        status, (said, code) = error.status_code, read_refusal(error)
        if self._key:
            said = said.replace(self._key, "***")  # some servers repeat what they were sent
        reason = f"{server} answered with status {status}: {said[:_SHOWN]}"
        if 300 <= status < 400:
            reason = f"{reason}; it has moved, correct base_url"
        if status in (401, 403) and self.expert.api_key_env:
            reason = f"{reason}; check the key in {self.expert.api_key_env}"
        if status in (400, 413, 422) and _TOO_LONG.search(f"{code} {said}"):
            return PromptTooLong(f"{reason}; lower context_tokens={self.expert.context_tokens}.", retry=True)
        retry = (status in _RETRIED or status >= 500) and code != "insufficient_quota"
        kind = _Unsupported if status in _UNSUPPORTED or _FORMAT.search(said) else Refused
        return kind(f"{reason}.", retry, retry_after(error.response.headers) if retry else None)

    def _connect(self) -> "openai.AsyncOpenAI":
        """Return the client, made when it is first needed: a run that is replayed needs neither key nor package."""
        if self._client is None:
            self.check()
            expert = self.expert
            self._client = connect(_openai(), expert.provider, self._key, expert.timeout_s + GRACE_S)
        return self._client


def expert_clients(
    experts: Iterable[Expert], prices: PriceList, *, replay: Replay | None = None, backoff_s: float = 0.5
) -> dict[str, ExpertClient]:
    """Make a client per expert, by name; those of one server share its limits.

    Raises:
        ValueError: two experts of one name, or with different limits for one server.
        MissingPrice, FileNotFoundError: see `ExpertClient`.
    """
    clients: dict[str, ExpertClient] = {}
    limiters: dict[str, Limiter] = {}
    for expert in experts:
        if expert.name in clients:
            raise ValueError(f"Two experts are named {expert.name!r}.")
        limiter = limiters.setdefault(expert.provider, Limiter(expert.concurrency, expert.requests_per_minute))
        if (limiter.concurrency, limiter.requests_per_minute) != (expert.concurrency, expert.requests_per_minute):
            raise ValueError(
                f"The experts at {expert.provider} share its limits: give all of them the same concurrency and "
                f"requests_per_minute ({expert.name!r} differs)."
            )
        clients[expert.name] = ExpertClient(expert, prices, replay=replay, limiter=limiter, backoff_s=backoff_s)
    return clients


def _openai() -> ModuleType:
    try:
        import openai
    except ImportError:
        raise ImportError("Experts need the openai package; pip install orchestra-jax[tools].") from None
    return openai
