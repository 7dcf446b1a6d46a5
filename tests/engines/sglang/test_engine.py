"""The SGLang engine against stub servers: exact requests, every fault, and sessions."""

import asyncio
import contextlib
import math

import pytest

pytest.importorskip("aiohttp")

from orchestra_jax.engines.base import SamplingParams
from orchestra_jax.engines.sglang.engine import SGLangEngine
from orchestra_jax.engines.sglang.pool import NoServer
from orchestra_jax.io.http_json import JsonClient, ServerError
from tests.engines.sglang import stub
from tests.engines.sglang.stub import (
    PROMPT,
    SECONDS,
    VOCAB,
    StubWeightSync,
    append_token,
    changed,
    continuation,
    drop_tokens,
    one,
    other_finish,
    put,
    soon,
    start,
)

# --- what is asked and read ---


async def test_ids_logprobs_version_and_cached_tokens_come_as_the_server_says(make, servers):
    found = await one(make(), temperature=0.7, seed=2**63 + 5)
    assert list(found.token_ids) == continuation(PROMPT, 5)
    assert found.logprobs == tuple(-(1 + token) / 10 for token in found.token_ids)
    assert (found.finish_reason, found.weight_version, found.cached_tokens, found.version_spans) == ("length", 0, 1, ())
    (body,) = servers[0].bodies
    assert body["input_ids"] == list(PROMPT)
    assert body["return_logprob"] is True
    sampling = body["sampling_params"]
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (0.7, 1.0, -1)
    assert sampling["max_new_tokens"] == 5
    assert sampling["ignore_eos"] is True  # nothing of the server's own ends it


async def test_the_context_limit_bounds_what_is_asked_for(make, servers):
    found = await one(make(max_length=6), count=100)
    assert len(found.token_ids) == 3
    assert servers[0].bodies[0]["sampling_params"]["max_new_tokens"] == 3


async def test_a_stop_id_ends_the_turn_and_belongs_to_it(make):
    ids = continuation(PROMPT, 10)
    found = await one(make(), count=10, stop_ids=(ids[3],))
    assert list(found.token_ids) == ids[: ids.index(ids[3]) + 1]
    assert found.finish_reason == "stop"


async def test_a_generation_goes_on_after_an_end_id_that_is_the_servers_alone(make, servers):
    ids = continuation(PROMPT, 10)
    servers[0].eos = ids[2]
    absent = next(token for token in range(VOCAB) if token not in ids)
    found = await one(make(), count=10, stop_ids=(absent,))
    assert list(found.token_ids) == ids
    assert len(found.logprobs) == 10
    assert found.finish_reason == "length"
    assert len(servers[0].bodies) > 1


async def test_tokens_of_several_versions_come_with_their_spans(make, servers):
    engine = make()
    servers[0].gate.clear()
    (caller,) = start(engine, 1)
    await soon(lambda: servers[0].active)
    await engine.update_weights("new", 4)
    spans = [{"version": "0", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 5}]
    servers[0].faults.append(changed(lambda answer, meta, rows: meta.update(weight_versions=spans)))
    servers[0].gate.set()
    found = await caller
    assert (found.weight_version, found.version_spans) == (0, ((0, 2), (4, 3)))


async def test_an_answer_that_the_server_aborted_says_so(make, servers):
    def cut(answer, meta, rows):
        del rows[2:], answer["output_ids"][2:]
        meta |= {"completion_tokens": 2, "finish_reason": {"type": "abort", "message": "Aborted"}}

    servers[0].faults.append(changed(cut))
    found = await one(make())
    assert (found.finish_reason, list(found.token_ids)) == ("abort", continuation(PROMPT, 2))


# --- faults ---

RETRIED = {"reset before the answer": stub.reset, "status 503": stub.status(503)}


@pytest.mark.parametrize("fault", RETRIED)
@pytest.mark.parametrize("count", [1, 2])
async def test_a_request_that_was_lost_is_repeated_and_returns_one_sample(make, servers, fault, count):
    engine = make(count)
    for server in servers:
        server.faults.append(RETRIED[fault])
    found = await one(engine)
    assert list(found.token_ids) == continuation(PROMPT, 5)
    bodies = [body for server in servers for body in server.bodies]
    assert 2 <= len(bodies) <= 3
    assert len({body["rid"] for body in bodies}) == len(bodies)


async def test_a_server_that_refuses_connections_is_waited_for(make, servers):
    await servers[0].kill()
    caller = asyncio.ensure_future(one(make()))
    await asyncio.sleep(0.1)
    assert not caller.done()
    await servers[0].start()
    assert list((await caller).token_ids) == continuation(PROMPT, 5)


FAULTS = {
    "status 500": (stub.status(500), "status", "status 500"),
    "status 400": (stub.status(400), "status", "status 400"),
    "reset in mid-body": (stub.reset_in_body, "protocol", "cut off"),
    "truncated JSON": (stub.text(lambda text: text[:-20]), "protocol", "not JSON"),
    "no JSON": (stub.text(lambda text: "<html>"), "protocol", "not JSON"),
    "100,000 brackets": (stub.text(lambda text: "[" * 10**5), "protocol", "more than 64 levels"),
    "an id of 400 digits": (stub.text(lambda text: text.replace("cached_tokens", "x\": " + "9" * 400 + ', "y')),
                            "protocol", "400 digits"),
    "spans that are none": (changed(lambda a, meta, r: meta.update(weight_versions=7)), "protocol", "cannot be used"),
    "a reason without an end": (other_finish({"type": "x" * 10**5}), "protocol", "finish reason"),
    "an empty body": (stub.text(lambda text: ""), "protocol", "no meta_info"),
    "a list": (stub.text(lambda text: f"[{text}]"), "protocol", "no meta_info"),
    "an id beyond the vocabulary": (put(1, 1, VOCAB), "protocol", "outside of the vocabulary"),
    "a negative id": (put(1, 1, -1), "protocol", "outside of the vocabulary"),
    "an id that is no integer": (put(1, 1, 2.5), "protocol", "outside of the vocabulary"),
    "fewer log-probs than ids": (changed(lambda answer, meta, rows: rows.pop()), "protocol", "not of the same tokens"),
    "other ids than the log-probs'": (
        changed(lambda answer, meta, rows: answer["output_ids"].reverse()), "protocol", "not of the same tokens",
    ),
    "no log-probs": (
        changed(lambda answer, meta, rows: meta.pop("output_token_logprobs")), "protocol", "output_token_logprobs",
    ),
    "a log-prob NaN": (put(2, 0, math.nan), "protocol", "not finite"),
    "a log-prob null": (put(2, 0, None), "protocol", "not finite"),
    "a positive log-prob": (put(2, 0, 0.1), "protocol", "above 0"),
    "an unknown finish reason": (other_finish({"type": "tired"}), "protocol", "finish reason"),
    "no finish reason": (other_finish(None), "protocol", "finish reason"),
    "a stop at another token": (other_finish({"type": "stop", "matched": VOCAB}), "protocol", "not its last token"),
    "NaN logits": (other_finish({"type": "stop", "matched": "NaN happened"}), "protocol", "not its last token"),
    "too many tokens": (changed(append_token), "protocol", "at most 5"),
    "too few tokens": (drop_tokens(3), "protocol", "after 3 tokens, but 5"),
    "no token": (drop_tokens(0), "protocol", "after 0 tokens"),
    "the answer to another request": (
        changed(lambda answer, meta, rows: meta.update(id="other")), "protocol", "belongs to",
    ),
    "the answer to another prompt": (
        changed(lambda answer, meta, rows: meta.update(prompt_tokens=9)), "protocol", "its prompt",
    ),
    "an unknown version": (
        changed(lambda answer, meta, rows: meta.update(weight_version="default")), "protocol", "weight version",
    ),
    "spans with a hole": (
        changed(lambda a, meta, r: meta.update(weight_versions=[{"version": "0", "start": 1, "end": 5}])),
        "protocol", "do not follow",
    ),
    "spans of fewer tokens": (
        changed(lambda a, meta, r: meta.update(weight_versions=[{"version": "0", "start": 0, "end": 4}])),
        "protocol", "cover 4 of 5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
async def test_an_answer_that_is_not_right_is_an_error_and_never_a_sample(make, servers, name):
    fault, kind, sentence = FAULTS[name]
    engine = make()
    servers[0].faults.append(fault)
    with pytest.raises(ServerError, match=rf"{servers[0].url}/generate.*{sentence}.*\.$") as caught:
        await one(engine)
    assert caught.value.kind == kind
    assert len(str(caught.value)) < 1000
    assert len(servers[0].bodies) == 1
    found = await one(engine)  # the next one is fine
    assert list(found.token_ids) == continuation(PROMPT, 5)


async def test_a_server_that_hangs_is_given_up_at_the_deadline_and_told_to_abort(make, servers):
    engine = make(request_timeout_s=0.3)
    servers[0].faults.append(stub.hang)
    with pytest.raises(ServerError, match=r"no whole answer in 0\.3 s\.$") as caught:
        await one(engine)
    assert caught.value.kind == "timeout"
    await soon(lambda: servers[0].aborted == [servers[0].bodies[0]["rid"]])
    engine._timeout_s = SECONDS  # the next answer may take as long as the machine does
    assert list((await one(engine)).token_ids) == continuation(PROMPT, 5)


async def test_a_fault_that_stays_ends_after_the_retries(make, servers):
    engine = make(retries=2)
    servers[0].faults.extend([stub.status(503)] * 10)
    with pytest.raises(ServerError, match=r"status 503"):
        await one(engine)
    assert len(servers[0].bodies) == 3


async def test_without_any_server_the_error_names_them(make, servers):
    await servers[0].kill()
    with pytest.raises(NoServer, match=rf"No SGLang server was ready for 0\.2 s: {servers[0].url}: .*reached"):
        await one(make(down_timeout_s=0.2))


# --- sessions, bounds, cancellation ---


async def test_a_session_keeps_to_its_server_and_sessions_spread(make, servers):
    engine = make(2)
    await one(engine)
    for server in servers:
        server.bodies.clear()
    sessions = [engine.open_session() for _ in range(4)]
    for _ in range(3):
        await asyncio.gather(*(one(engine, (10 + s,), session=s) for s in sessions))
    by_server = [[body["input_ids"][0] - 10 for body in server.bodies] for server in servers]
    assert [len(found) for found in by_server] == [6, 6]
    assert not set(by_server[0]) & set(by_server[1])
    for session in sessions:
        engine.close_session(session)
        engine.close_session(session)
    with pytest.raises(ValueError, match=rf"^Session {sessions[0]} is not open; .*\.$"):
        await one(engine, session=sessions[0])


async def test_no_more_than_the_bound_run_on_a_server(make, servers):
    engine = make(concurrency=3)
    servers[0].gate.clear()
    callers = start(engine, 10)
    await soon(lambda: servers[0].active == 3)
    await asyncio.sleep(0.05)
    servers[0].gate.set()
    await asyncio.gather(*callers)
    assert (servers[0].most, len(servers[0].bodies)) == (3, 10)


@pytest.mark.parametrize("how", ["cancel", "close_session", "deadline"])
async def test_a_generation_that_is_given_up_is_aborted_on_the_server(make, servers, how):
    engine = make()
    servers[0].gate.clear()
    session = engine.open_session()

    async def generate():
        async with deadline:
            await engine.generate(PROMPT, SamplingParams(5), session=session)

    deadline = asyncio.timeout(SECONDS)
    caller = asyncio.ensure_future(generate())
    await soon(lambda: servers[0].active)
    if how == "cancel":
        caller.cancel()
    elif how == "deadline":
        deadline.reschedule(asyncio.get_running_loop().time())
    elif how == "close_session":
        engine.close_session(session)
    with pytest.raises(TimeoutError if how == "deadline" else asyncio.CancelledError):
        await caller
    await soon(lambda: servers[0].aborted == [servers[0].bodies[0]["rid"]])
    servers[0].gate.set()
    again = await one(engine, session=session if how != "close_session" else None)
    assert list(again.token_ids) == continuation(PROMPT, 5)


async def test_a_session_generates_one_at_a_time(make, servers):
    engine = make()
    session = engine.open_session()
    servers[0].gate.clear()
    caller = asyncio.ensure_future(one(engine, session=session))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match=r"is generating already; .*\.$"):
        await one(engine, session=session)
    servers[0].gate.set()
    await caller


async def test_closing_fails_what_is_under_way_and_what_comes_later(make, servers):
    sync = StubWeightSync()
    engine = make(weight_sync=sync)
    servers[0].gate.clear()
    callers = start(engine, 2)
    await soon(lambda: servers[0].active == 2)
    await engine.close()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(error) for error in found] == [RuntimeError] * 2
    with pytest.raises(RuntimeError, match=r"closed.*\.$"):
        await one(engine)
    with pytest.raises(RuntimeError, match=r"closed.*\.$"):
        await engine.update_weights("new", 1)
    await engine.close()
    assert len(servers[0].aborted) == 2
    assert sync.closed


# --- small things ---


async def test_errors_are_one_sentence(make):
    engine = make()
    with pytest.raises(ValueError, match=r"empty.*\.$"):
        await one(engine, ())
    with pytest.raises(ValueError, match=r"64 tokens leaves no room.*max_length.*\.$"):
        await one(engine, (1,) * 64)
    with pytest.raises(ValueError, match=r"max_new_tokens.*\.$"):
        await one(engine, count=0)
    with pytest.raises(ValueError, match=r"is no URL; .*\.$"):
        JsonClient("localhost:30000")
    with pytest.raises(ValueError, match=r"give each server once\.$"):
        make(0)


def test_a_second_event_loop_is_refused():
    async def in_a_loop(engine):
        engine = engine or SGLangEngine(
            ["http://127.0.0.1:9"], max_length=64, vocab_size=VOCAB, weight_sync=StubWeightSync(), down_timeout_s=0.0
        )
        with contextlib.suppress(NoServer):
            await one(engine)
        return engine

    engine = asyncio.run(in_a_loop(None))
    with pytest.raises(RuntimeError, match=r"another event loop; make an engine of its own for each loop\.$"):
        asyncio.run(in_a_loop(engine))
