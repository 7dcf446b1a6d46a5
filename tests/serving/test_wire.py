"""Reading of requests: whatever a body holds, it is a request or an error with a sentence."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra_jax.serving.conversation import in_text
from orchestra_jax.serving.errors import RequestError
from orchestra_jax.serving.wire import ChatRequest, read_chat

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False), st.text(max_size=5))
WORDS = st.sampled_from(
    ["role", "content", "type", "text", "function", "name", "arguments", "id", "tool_calls", "tool_call_id", "user",
     "assistant", "tool", "system", "wish", "max_usd", "trace", "include_usage", "parameters", "{}", "c1"]
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(LEAVES, WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=12,
)
IDS = st.sampled_from(["c1", "c2"])
CALL = st.fixed_dictionaries({"id": IDS, "function": st.fixed_dictionaries({"name": WORDS, "arguments": VALUES})})
ROLE, CONTENT = st.sampled_from(["system", "user", "assistant", "tool"]), st.one_of(st.text(max_size=9), VALUES)
MESSAGE = st.fixed_dictionaries(
    {"role": ROLE, "content": CONTENT}, optional={"tool_calls": st.lists(CALL, max_size=2), "tool_call_id": IDS}
)
MODEL, MESSAGES = st.sampled_from(["m", "m:cheap", "m:x", 3]), st.one_of(st.lists(MESSAGE, max_size=4), VALUES)
FIELDS = (
    "stream", "stream_options", "temperature", "seed", "tools", "tool_choice", "parallel_tool_calls", "orchestra", "n",
    "stop", "other",
)  # fmt: skip
BODY = st.fixed_dictionaries({"model": MODEL, "messages": MESSAGES}, optional=dict.fromkeys(FIELDS, VALUES))


def read(content: bytes) -> ChatRequest | RequestError:
    try:
        return read_chat(content, "m", {"cheap": "Keep it cheap."})
    except RequestError as error:
        return error


@settings(max_examples=300)
@given(BODY)
def test_any_body_is_a_request_or_an_error_with_a_sentence(body: dict[str, Any]):
    found = read(json.dumps(body).encode())
    if isinstance(found, RequestError):
        assert 400 <= found.status < 500
        assert str(found).endswith(".")
        assert json.loads(json.dumps(found.body))["error"]["message"] == str(found)
    else:
        before, after = found.options["history"], found.options["after"]
        assert all(message["role"] in ("user", "assistant", "tool") for message in (*before, *after))
        assert all(isinstance(message["content"], str) for message in in_text([*before, *after]))


@given(st.binary(max_size=64))
def test_any_bytes_are_an_error_with_a_sentence(content: bytes):
    found = read(content)
    assert isinstance(found, RequestError)
    assert found.status == 400
