"""A model behind any OpenAI-compatible endpoint as the policy: chat completions with tools, paid and recorded.

Requests, retries, limits, budgets and the record are those of experts (`tools.experts.client`). A conversation is never
cut: what is longer than the model's context ends the trajectory, as it does for a policy of our own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestra_jax.config.schema import ConfigError, PricingConfig, WorldConfig
from orchestra_jax.io.fields import text_of
from orchestra_jax.io.untrusted import Unreadable, valid_text
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.paid import GRACE_S, Outcome
from orchestra_jax.money.price_book import price_book
from orchestra_jax.money.prices import POLICY, MissingPrice, PriceList
from orchestra_jax.money.replay import CLOSE_S, Replay
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.messages import WholeReply
from orchestra_jax.tools.experts.cards import api_fields
from orchestra_jax.tools.experts.client import ExpertClient, PromptTooLong
from orchestra_jax.tools.experts.endpoint import THOUGHTS, ChatAnswer, counted_reply
from orchestra_jax.tools.experts.expert import Expert
from orchestra_jax.tools.schema import to_openai
from orchestra_jax.types import InfrastructureError, ToolSpec, Usage

_TEMPLATE = 1024  # tokens that a template may add to a prompt with tools
_ENDED = ("stop", "tool_calls", "function_call", "eos", "eos_token", "end_turn", "stop_sequence")


class EndpointPolicy(ExpertClient):
    """A `MessageEngine` whose model is behind an endpoint.

    Args:
        expert: the model to call; its ledger rows bear the expert's name.
        prices: price list with an entry of that name.
        replay: records and replays; it is closed with this.
    """

    least_room = 1  # a conversation is not cut

    def __init__(self, expert: Expert, prices: PriceList, *, replay: Replay, backoff_s: float = 0.5) -> None:
        super().__init__(expert, prices, replay=replay, backoff_s=backoff_s)
        self._replay = replay

    async def close(self, patience_s: float = CLOSE_S) -> None:
        """Wait for requests whose callers gave up, until `patience_s`, and drop the connections."""
        try:
            await super().close(patience_s)
            await self._replay.drain(patience_s)
        finally:
            self._replay.close()

    async def converse(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSpec],
        *,
        budget: Budget,
        max_tokens: int,
        temperature: float,
        sample: tuple[int, ...],
    ) -> WholeReply | None:
        """See `MessageEngine.converse`."""
        expert = self.expert
        most = min(max_tokens, expert.max_tokens)
        body: dict[str, Any] = {"model": expert.model, "messages": [self._told(message) for message in messages]}
        if tools:
            body["tools"] = [to_openai(spec) for spec in tools]
        body |= {expert.max_tokens_field: most, **expert.extra}
        if expert.temperature is not None:
            body["temperature"] = temperature
        request = {"expert": expert.name, "role": "orchestrator", "sample": list(sample), **body}
        size = len(json.dumps([body["messages"], body.get("tools")], ensure_ascii=False).encode())
        row = Usage(
            POLICY,
            "orchestrator",
            prompt_tokens=size + _TEMPLATE,  # no byte-level vocabulary has tokens below one byte
            completion_tokens=most,
            seconds=expert.timeout_s + GRACE_S,
        )
        too_long = False

        async def send() -> Outcome:
            nonlocal too_long
            outcome = await self._send(body, "orchestrator")
            too_long = isinstance(outcome, PromptTooLong)
            return outcome.final() if isinstance(outcome, PromptTooLong) else outcome

        try:
            recorded = await self._calls.call("converse", request, self.prices.priced(row), send, budget=budget)
        except InfrastructureError:
            if too_long:
                return None
            raise
        value = recorded.value
        try:
            calls = [(str(name), str(tool), str(text)) for name, tool, text in value["calls"]]
            return WholeReply(value["text"], value["thought"], calls, value["finish_reason"], recorded.usage)
        except (LookupError, TypeError, ValueError):
            raise InfrastructureError(
                f"What is recorded of a turn of {expert.model} is none; record to another replay.path."
            ) from None

    def _told(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the message with texts that every tokenizer takes; foreign text in it opens no turn."""
        content = message["content"]
        if content is not None:
            content = valid_text(content)
            content = self._neutralise(content) if message["role"] in ("user", "tool") else content
        return {**message, "content": content}

    def _answer(self, reply: ChatAnswer) -> dict[str, Any]:
        """Return what is kept of an answer."""
        message = reply.message
        try:
            thought = next((text_of(message[key]) for key in THOUGHTS if message.get(key)), "")
            calls = [
                [text_of(call.get("id")), text_of(call["function"]["name"]), text_of(call["function"].get("arguments"))]
                for call in message.get("tool_calls") or []
            ]
        except (LookupError, TypeError, AttributeError):
            raise Unreadable("its tool calls are none") from None
        finish = "stop" if reply.finish_reason in _ENDED else reply.finish_reason
        texts = {"text": valid_text(reply.text), "thought": valid_text(thought), "finish_reason": finish}
        return {**texts, "calls": [[valid_text(part) for part in call] for call in calls]}

    def _counted(self, body: Mapping[str, Any], value: Mapping[str, Any], reply: ChatAnswer) -> dict[str, Any]:
        """Return the tokens of a request whose answer names none, by our own count."""
        count = self.counter.count
        prompt = count(json.dumps([body["messages"], body.get("tools")], ensure_ascii=False))
        written = count("".join([value["text"], value["thought"], *(part for call in value["calls"] for part in call)]))
        written = counted_reply(written, value["finish_reason"], body[self.expert.max_tokens_field])
        return {"prompt_tokens": prompt, "completion_tokens": written}


def endpoint_pricing(cfg: WorldConfig) -> PricingConfig:
    """Return pricing.* with the price of the endpoint's tokens: its own settings, or an entry of the price list.

    Raises:
        ConfigError: neither is there.
    """
    given = cfg.evaluation.endpoint
    own = {"input": given.input, "output": given.output, "cached_input": given.cached_input}
    if given.input is None or given.output is None:
        name = str(given.price or given.model)
        free = replace(cfg.pricing, orchestrator_input=0.0, orchestrator_output=0.0)
        prices = price_book(replace(cfg, pricing=free)).base
        if name not in prices.entries:
            raise ConfigError(
                f"Price list {prices.id!r} has no price for {name}: set evaluation.endpoint.price to one of its "
                "entries, or evaluation.endpoint.input and evaluation.endpoint.output to dollars per million tokens."
            )
        own = {key: getattr(prices.entries[name], key) for key in own}
    return replace(
        cfg.pricing,
        orchestrator_input=own["input"],
        orchestrator_output=own["output"],
        orchestrator_cached_input=own["cached_input"],
    )


def asked_model(cfg: WorldConfig, url: str) -> str:
    """Return the name of the model behind `url`; raise ConfigError: evaluation.endpoint names none."""
    if cfg.evaluation.endpoint.model is None:
        raise ConfigError(f"The endpoint {url} may serve several models: set evaluation.endpoint.model=NAME.")
    return cfg.evaluation.endpoint.model


def make_endpoint(cfg: WorldConfig, url: str, prices: PriceList, processes: Processes | None = None) -> EndpointPolicy:
    """Return the policy behind `url`, asked as evaluation.endpoint says; its answers are recorded as replay.* says.

    Args:
        prices: has its price as "orchestrator".

    Raises:
        ConfigError: it cannot be called.
    """
    given, limits, model = cfg.evaluation.endpoint, cfg.rollout.limits, asked_model(cfg, url)
    try:
        known = api_fields(given.price or model)
        asked: dict[str, Any] = {
            "max_tokens": limits.max_new_tokens,
            "context_tokens": max(limits.max_length, limits.max_new_tokens + 1),
            "max_tokens_field": given.max_tokens_field or known.get("max_tokens_field", "max_tokens"),
            "temperature": known.get("temperature", 0.0),  # null: it takes none
        }
        share = processes or Processes()
        rate = given.requests_per_minute
        expert = Expert(
            name=POLICY,
            model=model,
            base_url=url,
            api_key_env=given.api_key_env,
            timeout_s=given.timeout_s,
            retries=given.retries,
            concurrency=share.share(given.concurrency),
            requests_per_minute=None if rate is None else rate / share.count,
            extra=given.extra,
            **asked,
        )
        replay = Replay(cfg.replay.path, cfg.replay.mode)
        client = EndpointPolicy(expert, prices, replay=replay)
        if cfg.replay.mode != "replay":
            client.check()
        return client
    except (OSError, ValueError, ImportError, MissingPrice) as error:
        raise ConfigError(str(error).replace("expert 'orchestrator'", f"the endpoint {url}")) from error
