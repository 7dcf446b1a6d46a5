"""The embedded engine: the shared contract in several settings, and what only its slots and schedule can get wrong."""

import asyncio
import functools
import itertools
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from orchestra_jax.config.rollout import RolloutConfig, RolloutLimits
from orchestra_jax.engines import embedded, slot_cache
from orchestra_jax.engines.base import SamplingParams
from orchestra_jax.engines.embedded import EmbeddedEngine
from orchestra_jax.engines.slot_cache import sample
from orchestra_jax.io.stopwatch import Stopwatch
from orchestra_jax.models.qwen3 import Qwen3Config
from tests.engines.contract import SECONDS, EngineContract, Subject, prompt_of
from tests.models.trees import drawn_params

CONFIG = Qwen3Config(
    vocab_size=24, hidden_size=16, intermediate_size=32, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8,
    tie_word_embeddings=True, initializer_range=0.3,
)  # fmt: skip
# One layer compiles faster, so two kinds alone have two layers: in a list and stacked.
DEEP = replace(CONFIG, num_layers=2)
SCANNED = replace(DEEP, scan_layers=True)
LENGTH = 64
# Prompts of more than 8 tokens take several passes, more than 8 requests wait for a slot.
SETTINGS = RolloutConfig(slots=8, limits=RolloutLimits(max_length=LENGTH), chunk=4, widths=[4, 8])


@functools.cache
def weights(config: Qwen3Config) -> tuple[dict, dict]:
    """Versions 0 and 1."""
    first, second = (drawn_params(config, seed) for seed in (0, 1))
    return first, second


@pytest.fixture
async def make(monkeypatch):
    """Engines that are closed at the end."""
    engines = []

    def build(config=CONFIG, *, shortest_window=None, **options):
        if shortest_window:
            monkeypatch.setattr(slot_cache, "_SHORTEST_WINDOW", shortest_window)
        engine = EmbeddedEngine(config, weights(config)[0], replace(SETTINGS, **options))
        engines.append(engine)
        return engine

    yield build
    for engine in engines:
        await engine.close()


# Of rows, widths and windows, so that there is less to compile.
FEW_SHAPES = {"slots": 3, "widths": [8]}
KINDS = {
    "continuous": {"lockstep": False},
    "layers": {"config": DEEP, **FEW_SHAPES},
    "scan_layers": {"config": SCANNED, **FEW_SHAPES},
    "few_slots": {"lockstep": False, "slots": 3, "chunk": 1, "widths": [1024]},
    "windows": {"shortest_window": 32},
    "threads": {"threads": 2, "slots": 16},  # two parts of the others' size: nothing more to compile
}


class TestEmbeddedContract(EngineContract):
    @pytest.fixture(params=KINDS)
    def subject(self, request, make):
        engine = make(**KINDS[request.param])
        params = weights(engine.config)
        return Subject(engine, engine.config, params[0], params[1], LENGTH)


def play_turns(engine, count, turns=3):
    """`count` sessions of several turns at once; returns (ids, sampled ids, log-probs) of each."""

    async def one(i, session):
        ids, sampled, logprobs = list(prompt_of(i % 3, 4 + 5 * (i % 3), CONFIG.vocab_size)), [], []
        for turn in range(turns):
            params = SamplingParams(3 + i % 4, stop_ids=(1, 2), seed=1000 * i + turn)
            found = await engine.generate(ids, params, session=session)
            # Like a tool: how long it takes depends on the session and the turn.
            for _ in range((7 * i + 3 * turn) % 5):
                await asyncio.sleep(0)
            ids += [*found.token_ids, *prompt_of(50 + i + turn, 1 + i % 3, CONFIG.vocab_size)]
            sampled.append(found.token_ids)
            logprobs.append(found.logprobs)
        engine.close_session(session)
        return tuple(ids), tuple(sampled), tuple(logprobs)

    async def all_of_them():
        async with asyncio.timeout(SECONDS):
            return await asyncio.gather(*[one(i, session) for i, session in enumerate(sessions)])

    sessions = [engine.open_session() for _ in range(count)]
    return all_of_them()


async def test_schedule_slots_and_widths_do_not_change_what_is_sampled(make):
    found = [
        await play_turns(make(**options), 12)
        for options in (
            {},
            {"lockstep": False},
            {"lockstep": False, "slots": 3, "widths": (16, 64)},
            {"threads": 3, "slots": 9, "widths": (16, 64)},
            {"shortest_window": 32},
        )
    ]
    for other in found[1:]:
        assert [(ids, sampled) for ids, sampled, _ in other] == [(ids, sampled) for ids, sampled, _ in found[0]]
        for (_, _, a), (_, _, b) in zip(other, found[0], strict=True):
            for x, y in zip(a, b, strict=True):
                np.testing.assert_allclose(x, y, atol=1e-5)


async def test_lockstep_repeats_bit_for_bit(make):
    assert await play_turns(make(), 6) == await play_turns(make(), 6)


async def test_lockstep_waits_for_every_open_session(make):
    engine = make()
    first, second = engine.open_session(), engine.open_session()
    caller = asyncio.ensure_future(engine.generate((1, 2), SamplingParams(2), session=first))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not caller.done()
    engine.close_session(second)
    async with asyncio.timeout(SECONDS):
        await caller


async def test_a_prompt_shared_by_a_group_is_prefilled_once(make, monkeypatch):
    engine = make(widths=(4, 8, 32))
    rows = []
    prefill = slot_cache._prefill
    monkeypatch.setattr(slot_cache, "_prefill", lambda *args: rows.append(args[-1]) or prefill(*args))
    monkeypatch.setattr(slot_cache, "_extend", None)  # nothing is left to extend
    prompts = [prompt_of(1, 9, CONFIG.vocab_size)] * 6 + [prompt_of(2, 20, CONFIG.vocab_size)] * 2
    found = await subject_of(engine).generate_all(prompts, SamplingParams(4), list(range(8)))
    assert len(rows) == 1
    assert (rows[0].any(1)).sum() == 2
    subject_of(engine).expect_learner(prompts, found)


@pytest.mark.parametrize(
    ("length", "between"), [(192, [96, 192]), (1024, [512, 640, 768, 896, 1024]), (8192, [2048, 4096, 8192])]
)
def test_windows_are_finer_where_reading_them_is_what_takes_long(length, between):
    windows = slot_cache._windows(length)
    assert windows[-len(between) :] == between
    assert windows == sorted(set(windows))
    assert windows[0] < 128


async def test_few_long_prompts_are_not_padded_to_a_large_bucket(make, monkeypatch):
    """Of 1, 2 and 8 rows at once, five prompts take three passes of 2: eight rows would run three for nothing."""
    engine, rows = make(), []
    prefill = slot_cache._prefill
    monkeypatch.setattr(slot_cache, "_prefill", lambda *args: rows.append(args[-1]) or prefill(*args))
    prompts = [prompt_of(seed, 9, CONFIG.vocab_size) for seed in range(5)]
    found = await subject_of(engine).generate_all(prompts, SamplingParams(4), list(range(5)))
    assert [len(each) for each in rows] == [2, 2, 2]
    subject_of(engine).expect_learner(prompts, found)


def subject_of(engine):
    return Subject(engine, engine.config, *weights(engine.config), LENGTH)


async def test_a_session_reads_only_what_is_new(make):
    engine, session = make(), None
    session = engine.open_session()
    prompt = prompt_of(3, 20, CONFIG.vocab_size)
    first = await engine.generate(prompt, SamplingParams(5, seed=1), session=session)
    longer = (*prompt, *first.token_ids, *prompt_of(4, 3, CONFIG.vocab_size))
    second = await engine.generate(longer, SamplingParams(5, seed=2), session=session)
    same = await engine.generate(longer, SamplingParams(5, seed=2), session=session)
    # All but the last sampled token, which was never an input, and at least one token is always run.
    assert (first.cached_tokens, second.cached_tokens, same.cached_tokens) == (0, 24, 27)
    assert second.token_ids == same.token_ids
    engine.close_session(session)
    assert engine._free == 8


async def test_a_failed_step_reaches_every_caller_and_the_engine_recovers(make, monkeypatch):
    for name in ("_prefill", "_extend", "_decode"):
        broken = breaking(getattr(slot_cache, name), "donate" if name != "_prefill" else "")
        engine = make(slots=2)
        session = engine.open_session()
        prompt = prompt_of(5, 20, CONFIG.vocab_size)
        async with asyncio.timeout(SECONDS):
            await engine.generate(prompt, SamplingParams(2), session=session)
            with monkeypatch.context() as patch:
                patch.setattr(slot_cache, name, broken)
                callers = [engine.generate(prompt[i:], SamplingParams(2)) for i in range(3)]  # one has no slot
                found = await asyncio.gather(
                    engine.generate(prompt, SamplingParams(2), session=session), *callers, return_exceptions=True
                )
            assert [str(error) for error in found] == ["out of memory"] * 4
            engine.close_session(session)
            again = await engine.generate(prompt, SamplingParams(6))
        subject_of(engine).expect_learner([prompt], [again])


def breaking(function, donate):
    """Fails after the computation took its donated cache."""

    def fail(*args):
        if donate:
            function(*args)
        raise RuntimeError("out of memory")

    return fail


async def test_too_many_stop_ids_and_two_generations_of_one_session(make):
    engine = make()
    with pytest.raises(ValueError, match=r"^At most 4 stop ids are supported, got 5\.$"):
        await engine.generate((1,), SamplingParams(1, stop_ids=(1, 2, 3, 4, 5)))
    session = engine.open_session()
    caller = asyncio.ensure_future(engine.generate((1,), SamplingParams(1), session=session))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match=r"is generating already; .*\.$"):
        await engine.generate((1,), SamplingParams(1), session=session)
    async with asyncio.timeout(SECONDS):
        await caller


async def test_closing_a_session_cancels_its_generation(make):
    engine = make()
    session = engine.open_session()
    caller = asyncio.ensure_future(engine.generate((1, 2), SamplingParams(30), session=session))
    await asyncio.sleep(0)
    engine.close_session(session)
    async with asyncio.timeout(SECONDS):
        with pytest.raises(asyncio.CancelledError):
            await caller
        await engine.generate((1, 2), SamplingParams(1))


async def test_the_engine_sleeps_while_a_request_waits_for_a_slot(make, monkeypatch):
    engine = make(lockstep=False)
    held = [engine.open_session() for _ in range(SETTINGS.slots)]
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(engine.generate((1, 2), SamplingParams(1), session=session) for session in held))
        steps, step = [], engine._step
        monkeypatch.setattr(engine, "_step", lambda: (steps.append(1), step()))
        late = asyncio.ensure_future(engine.generate((1, 2), SamplingParams(1)))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not steps
        engine.close_session(held[0])
        assert len((await late).token_ids) == 1


async def test_threads_share_the_load_and_keep_neighbours_together(make):
    engine = make(threads=2, slots=7)
    params = SamplingParams(12)
    calls = [asyncio.ensure_future(engine.generate((1, 2), params, session=engine.open_session())) for _ in range(9)]
    async with asyncio.timeout(SECONDS):
        while not engine._running:  # noqa: ASYNC110
            await asyncio.sleep(0)
    caches = [engine._place[session][0] for session in sorted(engine._running)]
    assert [caches.count(cache) for cache in engine._caches] == [4, 3]
    assert caches == sorted(caches, key=engine._caches.index)
    for call in calls:
        call.cancel()


async def test_a_failure_in_a_thread_reaches_every_caller_and_the_engine_goes_on(make, monkeypatch):
    engine = make(threads=2)

    def fail(*args):
        raise FloatingPointError("out of luck")

    with monkeypatch.context() as broken:
        broken.setattr(engine._caches[1], "decode", fail)
        found = await asyncio.gather(
            *[engine.generate((1, 2, i), SamplingParams(3), session=engine.open_session()) for i in range(4)],
            return_exceptions=True,
        )
        assert [str(error) for error in found] == ["out of luck"] * 4
    for session in list(engine._open):
        engine.close_session(session)
    async with asyncio.timeout(SECONDS):
        assert len((await engine.generate((1, 2), SamplingParams(3))).token_ids) == 3


async def test_an_update_takes_hold_between_two_chunks(make):
    engine = make()
    caller = asyncio.ensure_future(engine.generate((1, 2, 3), SamplingParams(12)))
    for version in (1, 2):
        async with asyncio.timeout(SECONDS):
            while len(engine._running) == 0 or len(*[r.sampled for r in engine._running.values()]) < 4 * version:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await engine.update_weights(weights(CONFIG)[version % 2], version)
    async with asyncio.timeout(SECONDS):
        generation = await caller
    assert generation.version_spans == ((0, 4), (1, 4), (2, 4))
    assert generation.weight_version == 0


def test_a_second_event_loop_is_refused():
    engine = EmbeddedEngine(CONFIG, weights(CONFIG)[0], SETTINGS)
    asyncio.run(engine.generate((1, 2, 3), SamplingParams(3)))
    with pytest.raises(RuntimeError, match=r"another event loop; make an engine of its own for each loop\.$"):
        asyncio.run(engine.generate((1, 2, 3), SamplingParams(3)))


@pytest.mark.parametrize(
    ("held", "wanted", "common"),
    [((), (), 0), ((1, 2), (1, 2), 2), ((1, 2), (1,), 1), ((1,), (1, 2), 1), ((1, 2, 3), (1, 3), 1), ((1,), (2,), 0)],
)
def test_common_prefix(held, wanted, common):
    assert slot_cache._common_prefix(held, wanted) == common


@pytest.mark.parametrize("vocab", [5, 128, 300])
def test_sampling_inverts_the_cumulative_distribution(vocab):
    rng = np.random.default_rng(vocab)
    logits = rng.normal(size=(1, vocab)).astype(np.float32) * 3
    logits[0, rng.permutation(vocab)[: vocab // 3]] = -np.inf
    weights = np.exp(logits[0].astype(np.float64))
    ends = np.cumsum(weights) / weights.sum()
    uniform = np.linspace(0, 1, 4001, dtype=np.float32)[:-1]
    tokens, partition = sample(jnp.repeat(jnp.asarray(logits), 4000, 0), jnp.asarray(uniform))
    wanted = np.searchsorted(ends, uniform.astype(np.float64), side="right")
    # The cumulative sums are fp32: only a number right at a border may fall to the other side.
    at_border = np.abs(ends[:, None] - uniform).min(0) < 1e-6
    assert at_border.mean() < 0.01
    np.testing.assert_array_equal(np.asarray(tokens)[~at_border], wanted[~at_border])
    assert (weights[np.asarray(tokens)] > 0).all()
    np.testing.assert_allclose(partition, np.log(weights.sum()), rtol=1e-5)


def test_the_largest_uniform_number_never_leaves_the_vocabulary():
    logits = jnp.full((3, 130), -jnp.inf).at[:, 1].set(0.0).at[1, 129].set(-30.0).at[2, 127].set(2.0)
    largest = jnp.full(3, np.nextafter(np.float32(1), np.float32(0)))
    np.testing.assert_array_equal(sample(logits, largest)[0], [1, 1, 127])
    np.testing.assert_array_equal(sample(logits, jnp.zeros(3))[0], [1, 1, 1])


async def test_only_the_steps_that_a_generation_takes_part_in_are_its_seconds(make, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(embedded, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))  # a step takes 1 s

    async def seconds(slots):
        engine, watches = make(slots=slots, lockstep=False), [Stopwatch() for _ in range(6)]
        work = [engine.generate(prompt_of(i, 5, CONFIG.vocab_size), SamplingParams(10)) for i in range(6)]
        await asyncio.gather(*(watch.run(one) for watch, one in zip(watches, work, strict=True)))
        return [watch.seconds for watch in watches]

    # 10 tokens in chunks of 4: three steps each, at once or one generation after the other.
    found = await seconds(8), await seconds(1)
    assert [[round(value) for value in values] for values in found] == [[3] * 6] * 2
