"""Connections to an OpenAI-compatible endpoint, and its answers, read within limits whatever it says."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from orchestra_jax.io.fields import count_of, one_line, text_of
from orchestra_jax.io.foreign_json import read_json
from orchestra_jax.io.untrusted import Unreadable, valid_text

if TYPE_CHECKING:
    import openai

MOST_BYTES = 16 << 20  # of an answer, uncompressed
MOST_TOKENS = 10**9  # of a request: more is no usage
# Words with which servers end an answer that they could not finish: SGLang and vLLM, OpenRouter, DeepSeek.
INTERRUPTED = ("abort", "error", "insufficient_system_resource")
_SHOWN = 200  # characters of a server's own error text that a message repeats
THOUGHTS = ("reasoning_content", "reasoning")  # where servers put what the model thought
_REASON_BYTES = 1 << 16  # of a refusal, which is cut there
_KEEP_ALIVE_S = 2.0  # below the servers' own 5 s: a connection that we drop first never breaks under a request
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One answer of a chat completion.

    Attributes:
        text: "" where there is none.
        finish_reason: "stop" | "length" | "content_filter" | what else the server says.
        tokens: see `read_usage`.
        message: the whole message of the server.
        tier: `service_tier`, "" where the server names none.
    """

    text: str
    finish_reason: str
    tokens: dict[str, Any] | None
    message: Mapping[str, Any]
    tier: str


def read_reply(content: bytes) -> ChatAnswer:
    """Return the first choice of a chat completion; raise Unreadable: it has none, or its content is no text."""
    answer = read_json(content, MOST_BYTES)
    try:
        if not answer.get("choices") and (error := answer.get("error")):  # with a status of success
            said = error["message"] if isinstance(error, dict) else error
            raise Unreadable(f"it is an error, {one_line(text_of(said))[:_SHOWN]!r}")
        choice = answer["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        text = _content_of(message.get("content"))
    except (LookupError, TypeError, AttributeError):
        raise Unreadable("it is no chat completion") from None
    tokens = read_usage(answer.get("usage"))
    if tokens and not tokens["completion_tokens"] and (text or thought_of(message) or message.get("tool_calls")):
        tokens = None  # it wrote something
    finish, tier = (word if isinstance(word, str) else "" for word in (finish, answer.get("service_tier")))
    return ChatAnswer(text, finish or "unknown", tokens, message, tier)


def _content_of(content: Any) -> str:
    """Return the text of a message, also of one in parts: parts that are no text, such as thoughts, are left out."""
    if isinstance(content, list) and any(part["type"] == "text" for part in content):
        return "".join(text_of(part["text"]) for part in content if part["type"] == "text")
    return text_of(content)


def thought_of(message: Mapping[str, Any]) -> str:
    """Return the reasoning that a server gives beside the answer, "" where there is none or it is no text."""
    return next((valid_text(found) for key in THOUGHTS if isinstance(found := message.get(key), str)), "")


def read_usage(usage: Any) -> dict[str, Any] | None:
    """Return the tokens of a response by the fields of `Usage`; None if they make no sense, as no prompt is empty.

    Reasoning is completion: where a server leaves it out of `completion_tokens`, the total tells, or that it is more.
    Cached tokens that make no sense count as none, at the full price, and the row as `estimated`.
    """
    try:
        prompt, completion = (count_of(usage[key], MOST_TOKENS) for key in ("prompt_tokens", "completion_tokens"))
        total = count_of(usage.get("total_tokens"), MOST_TOKENS)
    except (TypeError, LookupError, AttributeError, Unreadable):
        return None
    if not prompt:
        return None
    try:
        thought = count_of((usage.get("completion_tokens_details") or {}).get("reasoning_tokens"), MOST_TOKENS)
    except (AttributeError, Unreadable):
        thought = 0
    written = completion + thought if thought > completion else completion
    try:
        cached = count_of((usage.get("prompt_tokens_details") or {}).get("cached_tokens"), MOST_TOKENS)
        doubted = False
    except (AttributeError, Unreadable):
        cached, doubted = 0, True
    return {
        "prompt_tokens": prompt,
        "cached_tokens": min(cached, prompt),
        "completion_tokens": max(written, total - prompt),
        "estimated": doubted,
    }


def counted_reply(written: int, finish_reason: str, most: int) -> int:
    """Return the completion tokens of a reply whose usage is unknown, from our own count of what can be read of it.

    One that ended at its limit has used it up: what cannot be read of it are thoughts.
    """
    return most if finish_reason == "length" else min(written, most)


def read_refusal(error: "openai.APIStatusError") -> tuple[str, str]:
    """(the server's own words on one line, its code) of an answer with a status of error."""
    body = error.body
    said = body.get("message") if isinstance(body, dict) else body
    text = said if isinstance(said, str) else error.response.text
    code = error.code if isinstance(error.code, str) else ""
    return one_line(valid_text(text)).rstrip(".") or "no reason given", valid_text(code)


def connect(library: ModuleType, url: str, key: str, timeout_s: float) -> "openai.AsyncOpenAI":
    """Make a client that makes each request once, follows no redirect, and reads MOST_BYTES of an answer at most."""

    class Limited(library.DefaultAsyncHttpxClient):  # type: ignore[name-defined]
        async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
            response = await super().send(request, stream=True, **options)
            return response if stream else await _read(response)

    limits = type(library.DEFAULT_CONNECTION_LIMITS)(keepalive_expiry=_KEEP_ALIVE_S)
    timeout = library.Timeout(timeout_s, connect=_CONNECT_S)
    transport = Limited(limits=limits, timeout=timeout, follow_redirects=False)
    options = {"max_retries": 0, "timeout": timeout, "http_client": transport}
    return library.AsyncOpenAI(base_url=url, api_key=key or "none", **options)


async def _read(response: Any) -> Any:
    """Return the response with its content; raise Unreadable: that is too much.

    The status alone makes it a refusal, whose text may break off, have no end or not be decodable.
    """
    content, refused = bytearray(), not response.is_success
    most = _REASON_BYTES if refused else MOST_BYTES
    try:
        async for part in response.aiter_bytes():
            content += part
            if len(content) > most:
                if not refused:
                    raise Unreadable(f"it has more than {most} bytes")
                break
    except Exception:  # of httpx, under whatever name openai ships it
        if not refused:
            raise
    finally:
        await response.aclose()
    encoded = ("content-encoding", "content-length", "transfer-encoding")
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in encoded]
    return type(response)(
        response.status_code, headers=headers, content=bytes(content[:most]), request=response.request
    )
