"""The words of the OpenAI API: chat requests that are read, and answers, chunks and errors that are written.

A field that would change the answer and that we do not heed is refused by its name. A field may be given with the value
that it has by default, and labels, which change nothing, are read over.
"""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestra_jax.serving.answers import Answer, CallStep
from orchestra_jax.serving.conversation import read_conversation, read_tools
from orchestra_jax.serving.errors import RequestError, no_model, read_body, typed, unsupported, wrong
from orchestra_jax.types import Status

MOST_BYTES = 4 << 20  # of a request's body, whatever the context
_LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_MOST_TOKENS = ("max_tokens", "max_completion_tokens")  # two names of one limit
_TOOLS = ("tools", "parallel_tool_calls")
_READ = ("model", "messages", "stream", "stream_options", "temperature", "seed", *_TOOLS, "orchestra", *_MOST_TOKENS)
# What a field may say beside null: the value that it has when it is left out.
_DEFAULTS: Mapping[str, Sequence[Any]] = {
    "n": (1,),
    "top_p": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "stop": ([],),
    "store": (False,),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
}
_ORCHESTRA = ("wish", "max_usd", "max_seconds", "trace", "keep")


@dataclass(frozen=True)
class ChatRequest:
    """A request for a chat completion.

    Attributes:
        model: name of the model as it was asked for.
        options: options of `Orchestrator.ask`.
        parallel: whether an answer may hold several calls of the client's tools; else the first one stands alone.
        stream: whether the answer comes in chunks.
        usage: whether the last chunk tells tokens.
        trace: whether the answer lists its calls.
        keep: whether the server may keep the words.
        dearest: whether the dearest model alone is asked, and not the policy.
    """

    model: str
    question: str
    options: dict[str, Any] = field(default_factory=dict)
    parallel: bool = True
    stream: bool = False
    usage: bool = False
    trace: bool = False
    keep: bool = True
    dearest: bool = False


def read_chat(content: bytes, name: str, wishes: Mapping[str, str], others: Sequence[str] = ()) -> ChatRequest:
    """Read the body of a request.

    Args:
        wishes: wishes that a model's name may end with, as NAME:cheap.

    Raises:
        RequestError: it is none, or has something that is not supported.
    """
    body = read_body(content, MOST_BYTES)
    for key, value in body.items():
        _check_field(key, value)
    extra = _object(body, "orchestra")
    if unknown := [key for key in extra if key not in _ORCHESTRA]:
        raise unsupported(f"orchestra.{unknown[0]}", f"orchestra has {', '.join(_ORCHESTRA)}")
    model = typed(body, "model", str, "a text")
    if model is None:
        raise RequestError(400, "model is missing: name the model.", param="model", code="missing_required_parameter")
    wish = typed(extra, "wish", str, "a text", "orchestra.")
    if model not in others:
        wish = _wish(model, name, wishes, wish, others)
    question, said = read_conversation(body.get("messages"))
    tools = read_tools(body.get("tools")) if body.get("tool_choice") != "none" else []
    most_usd, most_s = (_number(extra, key, "orchestra.") for key in ("max_usd", "max_seconds"))
    temperature = _number(body, "temperature") or 0.0
    if temperature > 2:
        raise wrong("temperature", "a number from 0 to 2")
    return ChatRequest(
        model,
        question,
        {
            "wish": wish,
            "max_usd": most_usd,
            "max_seconds": most_s,
            "max_tokens": min((tokens for key in _MOST_TOKENS if (tokens := _tokens(body, key))), default=None),
            "temperature": temperature,
            "seed": typed(body, "seed", int, "a whole number"),
            "history": said.before,
            "after": said.after,
            "tools": tools,
            "request_id": f"chatcmpl-{secrets.token_hex(12)}",
        },
        parallel=typed(body, "parallel_tool_calls", bool, "true or false") is not False,
        stream=bool(typed(body, "stream", bool, "true or false")),
        usage=_stream_options(body),
        trace=bool(typed(extra, "trace", bool, "true or false", "orchestra.")),
        keep=typed(extra, "keep", bool, "true or false", "orchestra.") is not False,
        dearest=model in others,
    )


def _check_field(key: str, value: Any) -> None:
    if key in _READ or key in _LABELS or value is None:
        return
    known = _DEFAULTS.get(key, ())
    if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in known):
        allowed = "".join(f", or give {json.dumps(each)}" for each in known)
        raise unsupported(key, "it belongs in the field orchestra" if key in _ORCHESTRA else f"leave it out{allowed}")


def _wish(
    model: str, name: str, wishes: Mapping[str, str], given: str | None, others: Sequence[str] = ()
) -> str | None:
    """Return what the user wants, by the model's name or the field."""
    if model == name:
        return given
    wish = model.removeprefix(f"{name}:")
    if wish == model or wish not in wishes:
        raise no_model(model, [name, *(f"{name}:{each}" for each in wishes), *others])
    if given is not None and given != wish:
        raise RequestError(
            400, f"The model {model} and orchestra.wish name two wishes: give one.", param="orchestra.wish"
        )
    return wish


def _stream_options(body: Mapping[str, Any]) -> bool:
    options = _object(body, "stream_options")
    if options and not body.get("stream"):
        raise RequestError(400, "stream_options need stream=true.", param="stream_options", code="invalid_value")
    if unknown := [key for key in options if key not in ("include_usage", "include_obfuscation")]:
        raise unsupported(f"stream_options.{unknown[0]}", "stream_options has include_usage")
    return bool(typed(options, "include_usage", bool, "true or false", "stream_options."))


def _object(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    return typed(body, key, dict, "an object") or {}


def _number(body: Mapping[str, Any], key: str, above: str = "") -> float | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise wrong(f"{above}{key}", "a number of at least 0")
    return float(value)


def _tokens(body: Mapping[str, Any], key: str) -> int | None:
    value = body.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise wrong(key, "a whole number of at least 1")
    return value


def completion(request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """Return the body of a chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.answer or "", "refusal": None}
    if answer.tool_calls:
        message |= {"content": None, "tool_calls": tool_calls(request, answer)}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason(answer), "logprobs": None}
    return {
        **_head(request, answer.id, "chat.completion"),
        "choices": [choice],
        "usage": usage(answer),
        "orchestra": told(request, answer),
    }


def chunk(request: ChatRequest, name: str, delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    """Return a chunk of a streamed chat completion."""
    choice = {"index": 0, "delta": dict(delta), "finish_reason": finish, "logprobs": None}
    return {**_head(request, name, "chat.completion.chunk"), "choices": [choice]}


def usage_chunk(request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """Return the last chunk of a stream, which tells tokens and dollars."""
    return {**_head(request, answer.id, "chat.completion.chunk"), "choices": [], "usage": usage(answer)}


def _head(request: ChatRequest, name: str, kind: str) -> dict[str, Any]:
    return {"id": name, "object": kind, "created": int(time.time()), "model": request.model}


def tool_calls(request: ChatRequest, answer: Answer) -> list[dict[str, Any]]:
    """Return the calls that the client has to make."""
    return [
        {
            "id": f"call_{answer.id[-12:]}_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
        }
        for number, call in enumerate(answer.tool_calls[: None if request.parallel else 1])
    ]


def finish_reason(answer: Answer) -> str:
    """Return "stop" for an answer, "tool_calls" where the client calls next, "length" where a limit ended it."""
    return "tool_calls" if answer.tool_calls else "stop" if answer.answer is not None else "length"


def usage(answer: Answer) -> dict[str, Any]:
    """Return the policy's own tokens, and the dollars of the whole answer."""
    own = [row for row in answer.ledger if row.role == "orchestrator"]
    prompt, sampled = sum(row.prompt_tokens for row in own), sum(row.completion_tokens for row in own)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": sum(row.cached_tokens for row in own)},
        "cost_usd": answer.cost_usd,
    }


def told(request: ChatRequest, answer: Answer) -> dict[str, Any]:
    """Return what an answer tells beside the fields of the API."""
    found: dict[str, Any] = {
        "cost_usd": answer.cost_usd,
        "seconds": answer.seconds,
        "status": str(answer.status),
        "reason": answer.reason,
        "limit": answer.limit,
    }
    return found | ({"calls": [shown_call(step) for step in answer.calls]} if request.trace else {})


def shown_call(step: CallStep) -> dict[str, Any]:
    """Return a call as JSON."""
    return vars(step) | {"arguments": dict(step.arguments)}


def failure(answer: Answer) -> RequestError | None:
    """Return the error that an ended answer is; None: it is an answer, or a limit ended it."""
    if answer.status is Status.FAILED:
        words = f"A tool or the engine failed through no fault of the request: {answer.reason}"
        return RequestError(503, words, kind="server_error", code="tool_unavailable", retry_s=5)
    if answer.status is Status.MALFORMED:
        words = f"The policy wrote something that is no call and no answer: {answer.reason}."
        return RequestError(422, words, kind="policy_error", code="malformed_output")
    turns = () if answer.trajectory is None else answer.trajectory.turns
    if answer.reason.startswith("the context limit") and not any(turn.text for turn in turns):
        return RequestError(
            400, f"The conversation is too long: {answer.reason}.", code="context_length_exceeded", param="messages"
        )
    return None
