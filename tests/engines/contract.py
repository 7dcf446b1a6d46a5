"""What every engine must do, whatever runs behind it.

A test module names its class `TestXxxContract(EngineContract)` and has a fixture `subject` that yields a `Subject`: an
engine that is ready, holds version 0 of `params` and can be spoiled by the test. Nothing here knows the engine's kind.
"""

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

from orchestra_jax.engines.base import Engine, Generation, SamplingParams
from orchestra_jax.models import decoder
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.rl.batch_logprobs import batch_logprobs
from orchestra_jax.rl.batching import MicroShapes, TokenSequence
from orchestra_jax.rl.packing import micro_batches

SECONDS = 600.0  # nothing below takes so long unless it hangs


@dataclass
class Subject:
    """An engine under test.

    Attributes:
        engine: under test.
        config, params: what it serves, version 0.
        other_params: weights to update to.
        max_length: its context limit in tokens.
        tolerance: largest difference between its log-probs and the learner's.
        seeded: whether the same seed gives the same ids.
    """

    engine: Engine
    config: Qwen3Config
    params: Any
    other_params: Any
    max_length: int
    tolerance: float = 1e-4
    seeded: bool = True

    def learner_logprobs(
        self, params: Any, rows: Sequence[tuple[Sequence[int], Sequence[bool]]], temperature: float = 1.0
    ) -> list[list[float]]:
        """The learner's log-probs of the sampled ids of each (ids, sampled) row."""
        sequences = [TokenSequence(tuple(ids), tuple(mask), (0.0,) * len(ids), 0, 0.0) for ids, mask in rows]
        found = []
        for start in range(0, len(sequences), 4):
            part = sequences[start : start + 4]
            values: list[list[float]] = []
            for batch in micro_batches(part, MicroShapes(4 * self.max_length, (self.max_length,), ())):
                scores, mask = np.asarray(_scores(self.config, temperature, params, batch)), np.asarray(batch.mask) > 0
                values += [scores[b][mask[b]].tolist() for b in range(len(scores))]
            found += values[: len(part)]  # the rows keep their order; those that fill up come last
        return found

    def expect_learner(
        self,
        prompts: Sequence[Sequence[int]],
        found: Sequence[Generation],
        temperature: float = 1.0,
        params: Any = None,
    ) -> None:
        """The engine's log-probs are the learner's."""
        rows = [
            ((*prompt, *g.token_ids), (False,) * len(prompt) + (True,) * len(g.token_ids))
            for prompt, g in zip(prompts, found, strict=True)
        ]
        expected = self.learner_logprobs(self.params if params is None else params, rows, temperature)
        for generation, values in zip(found, expected, strict=True):
            np.testing.assert_allclose(generation.logprobs, values, atol=self.tolerance, rtol=0)

    def next_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits [len(ids), V] of a full forward pass of the first weights."""
        tokens = np.zeros((1, self.max_length), np.int32)
        tokens[0, : len(ids)] = ids
        return np.asarray(_logits(self.config, self.params, tokens), np.float64)[0, : len(ids)]

    async def generate_all(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int] | None = None
    ) -> list[Generation]:
        """One generation per prompt, side by side, without sessions."""
        each = seeds or [params.seed] * len(prompts)
        async with asyncio.timeout(SECONDS):
            return await asyncio.gather(
                *(
                    self.engine.generate(
                        prompt, SamplingParams(params.max_new_tokens, params.temperature, params.stop_ids, seed)
                    )
                    for prompt, seed in zip(prompts, each, strict=True)
                )
            )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _scores(config: Qwen3Config, temperature: float, params: Any, batch: Any) -> jax.Array:
    return batch_logprobs(params, config, batch, temperature=temperature)[0]


@functools.partial(jax.jit, static_argnums=0)
def _logits(config: Qwen3Config, params: Any, tokens: jax.Array) -> jax.Array:
    hidden, _ = decoder.forward(params, config, tokens, np.arange(tokens.shape[1])[None])
    return decoder.logits(params, config, hidden)


def prompt_of(seed: int, length: int, vocab: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(1, vocab, length).tolist())


def chance_at_most(observed: np.ndarray, probability: np.ndarray, likely: np.ndarray, order: np.ndarray) -> float:
    """A bound on the probability of counts as odd as these, exact at any size.

    The smallest p-value of two-sided binomial tests, times their number: one for each likely token, and nine for the
    most likely tokens that together have a tenth, two tenths, ... of the probability.
    """
    tenths = np.searchsorted(np.cumsum(probability[order]), np.arange(1, 10) / 10) + 1
    sets = [*likely[:, None], *(order[:end] for end in tenths)]
    total = int(observed.sum())
    tests = [stats.binomtest(int(observed[ids].sum()), total, min(probability[ids].sum(), 1.0)) for ids in sets]
    return len(sets) * min(test.pvalue for test in tests)


class EngineContract:
    """Log-probs, endings, seeds, sessions, weights and failures."""

    @pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
    async def test_logprobs_are_the_learners_over_turns_of_a_session(self, subject: Subject, temperature: float):
        vocab, sessions = subject.config.vocab_size, [subject.engine.open_session() for _ in range(3)]
        ids = [list(prompt_of(i, 3 + 4 * i, vocab)) for i in range(3)]
        masks = [[False] * len(row) for row in ids]
        logprobs: list[list[float]] = [[], [], []]

        async def play(i: int) -> None:
            for turn in range(3):
                params = SamplingParams(5 + i, temperature, seed=10 * i + turn)
                generation = await subject.engine.generate(ids[i], params, session=sessions[i])
                assert len(generation.token_ids) == len(generation.logprobs) == 5 + i
                assert (generation.finish_reason, generation.weight_version) == ("length", 0)
                # Two turns out of three read on what the session kept.
                assert 0 <= generation.cached_tokens < len(ids[i])
                observation = prompt_of(100 + 10 * i + turn, 4, vocab)
                ids[i] += [*generation.token_ids, *observation]
                masks[i] += [True] * len(generation.token_ids) + [False] * len(observation)
                logprobs[i] += generation.logprobs
            subject.engine.close_session(sessions[i])

        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(play(i) for i in range(3)))
        # Greedy ids come with their log-probs at temperature 1.
        rows = list(zip(ids, masks, strict=True))
        for got, expected in zip(
            logprobs, subject.learner_logprobs(subject.params, rows, temperature or 1.0), strict=True
        ):
            np.testing.assert_allclose(got, expected, atol=subject.tolerance, rtol=0)

    async def test_greedy_takes_the_likeliest_token(self, subject: Subject):
        prompt = prompt_of(1, 6, subject.config.vocab_size)
        (generation,) = await subject.generate_all([prompt], SamplingParams(4, 0.0))
        best = subject.next_logits((*prompt, *generation.token_ids)).argmax(-1)
        assert generation.token_ids == tuple(best[len(prompt) - 1 : -1])

    async def test_a_rewritten_history_is_scored_as_it_stands(self, subject: Subject):
        vocab, session = subject.config.vocab_size, subject.engine.open_session()
        old = prompt_of(2, 14, vocab)
        prompts = [old, (*old[:9], *prompt_of(3, 8, vocab)), old[:6], prompt_of(4, 5, vocab)]
        found = []
        async with asyncio.timeout(SECONDS):
            for turn, prompt in enumerate(prompts):
                found.append(await subject.engine.generate(prompt, SamplingParams(4, seed=turn), session=session))
        subject.engine.close_session(session)
        subject.expect_learner(prompts, found)

    async def test_a_stop_id_ends_the_turn_and_belongs_to_it(self, subject: Subject):
        prompt, temperature = prompt_of(5, 6, subject.config.vocab_size), 1.0 if subject.seeded else 0.0
        (free,) = await subject.generate_all([prompt], SamplingParams(12, temperature, seed=7))
        stop = free.token_ids[4]
        cut = free.token_ids.index(stop) + 1
        params = SamplingParams(12, temperature, stop_ids=(stop,), seed=7)
        (stopped,) = await subject.generate_all([prompt], params)
        assert stopped.finish_reason == "stop"
        assert stopped.token_ids[-1] == stop
        assert stop not in stopped.token_ids[:-1]
        assert stopped.token_ids == free.token_ids[:cut]

    async def test_the_context_limit_ends_a_turn(self, subject: Subject):
        vocab = subject.config.vocab_size
        prompts = [prompt_of(6, subject.max_length - room, vocab) for room in (1, 3)]
        found = await subject.generate_all(prompts, SamplingParams(8))
        assert [len(g.token_ids) for g in found] == [1, 3]
        assert {g.finish_reason for g in found} == {"length"}
        subject.expect_learner(prompts, found)

    async def test_a_seed_gives_the_same_ids_whatever_runs_beside_it(self, subject: Subject):
        if not subject.seeded:
            pytest.skip("this engine ignores seeds")
        vocab = subject.config.vocab_size
        prompt, params = prompt_of(8, 5, vocab), SamplingParams(10, seed=2**63 + 5)
        (alone,) = await subject.generate_all([prompt], params)
        others = [prompt_of(20 + i, 3 + i, vocab) for i in range(4)]
        crowd = await subject.generate_all([*others, prompt], params, [1, 2, 3, 4, params.seed])
        again = await subject.generate_all([prompt, prompt], params, [params.seed, params.seed + 1])
        assert alone.token_ids == crowd[-1].token_ids == again[0].token_ids
        np.testing.assert_allclose(crowd[-1].logprobs, alone.logprobs, atol=subject.tolerance)
        assert again[1].token_ids != alone.token_ids

    async def test_seeds_that_differ_in_one_half_differ(self, subject: Subject):
        prompt = prompt_of(8, 5, subject.config.vocab_size)
        found = await subject.generate_all([prompt] * 3, SamplingParams(12), [1, 2, 1 + 2**32])
        assert len({g.token_ids for g in found}) == 3

    @pytest.mark.parametrize("temperature", [1.0, 2.0])
    async def test_samples_follow_the_distribution(self, subject: Subject, temperature: float):
        """How often each token comes is what the learner's distribution says.

        An engine with seeds gives the same samples in every run, so that Pearson's test at .001 cannot fail by chance.
        A server without seeds draws others in every run. There that test would fail by chance once in 270 runs of the
        two temperatures: with expected counts of 5, .001 is in truth .0015 at temperature 1 and .0022 at 2. So what
        counts there is an exact bound at 1e-9, on four times the samples. With them it finds, in 9 of 10 runs, a
        temperature that is 10 % off at 1 or 25 % at 2, top_p=0.95, top_k=100, or one greedy token among 10.

        There is no bias under load: a real server gave 13,200 tokens at temperature 2 and 7,200 at 1 while 16 to 20
        processes wanted its two cores (2026-11-22). Pearson's p was .75 and .03; in blocks of 600, as in the test that
        had failed, the 34 values of p were uniform (.31 and .90). Tokens of the same seed agreed as often as by chance.
        """
        count = 600 if subject.seeded else 2400
        prompt = prompt_of(9, 4, subject.config.vocab_size)
        found = await subject.generate_all([prompt] * count, SamplingParams(1, temperature), list(range(count)))
        weights = np.exp(subject.next_logits(prompt)[-1] / temperature)
        expected = count * weights / weights.sum()
        observed = np.bincount([g.token_ids[0] for g in found], minlength=len(expected))
        order = np.argsort(-expected)
        likely = order[: (expected >= 5).sum()]
        assert len(likely) >= 5, "the test needs a model that is not sure"
        assert chance_at_most(observed, expected / count, likely, order) > 1e-9
        if subject.seeded:
            # The last cell takes all rare tokens.
            cells = [np.append(x[likely[:-1]], x.sum() - x[likely[:-1]].sum()) for x in (observed, expected)]
            assert stats.chisquare(*cells).pvalue > 1e-3

    async def test_new_weights_are_used_at_once_and_forget_the_past(self, subject: Subject):
        vocab, session = subject.config.vocab_size, subject.engine.open_session()
        params, ids = SamplingParams(6, seed=3), prompt_of(10, 9, vocab)
        async with asyncio.timeout(SECONDS):
            before = await subject.engine.generate(ids, params, session=session)
            longer = (*ids, *before.token_ids, *prompt_of(11, 3, vocab))
            await subject.engine.update_weights(subject.other_params, 7)
            after = await subject.engine.generate(longer, params, session=session)
        subject.engine.close_session(session)
        assert (before.weight_version, after.weight_version, after.cached_tokens) == (0, 7, 0)
        subject.expect_learner([ids], [before])
        subject.expect_learner([longer], [after], params=subject.other_params)

    async def test_a_generation_across_an_update_says_which_weights_sampled_what(self, subject: Subject):
        vocab, versions = subject.config.vocab_size, (subject.params, subject.other_params)
        prompts = [prompt_of(30 + i, 4 + i, vocab) for i in range(3)]
        async with asyncio.timeout(SECONDS):
            running = asyncio.ensure_future(subject.generate_all(prompts, SamplingParams(40)))
            await asyncio.sleep(0.02)
            await subject.engine.update_weights(subject.other_params, 1)
            found = await running
        rows = [
            ((*prompt, *g.token_ids), (False,) * len(prompt) + (True,) * len(g.token_ids))
            for prompt, g in zip(prompts, found, strict=True)
        ]
        scores = [subject.learner_logprobs(params, rows) for params in versions]
        for i, generation in enumerate(found):
            spans = generation.version_spans or ((generation.weight_version, len(generation.token_ids)),)
            by_token = [version for version, count in spans for _ in range(count)]
            assert by_token == sorted(by_token)
            assert by_token[0] == generation.weight_version
            expected = [scores[version][i][t] for t, version in enumerate(by_token)]
            np.testing.assert_allclose(generation.logprobs, expected, atol=subject.tolerance, rtol=0)

    async def test_errors_are_one_sentence_and_do_no_harm(self, subject: Subject):
        engine, params = subject.engine, SamplingParams(2)
        with pytest.raises(ValueError, match=r"empty.*\.$"):
            await engine.generate((), params)
        with pytest.raises(ValueError, match=rf"{subject.max_length} tokens leaves no room.*max_length.*\.$"):
            await engine.generate((1,) * subject.max_length, params)
        with pytest.raises(ValueError, match=r"max_new_tokens.*\.$"):
            await engine.generate((1,), SamplingParams(0))
        session = engine.open_session()
        engine.close_session(session)
        engine.close_session(session)
        with pytest.raises(ValueError, match=rf"Session {session} is not open.*\.$"):
            await engine.generate((1,), params, session=session)
        (found,) = await subject.generate_all([(1, 2)], params)
        assert len(found.token_ids) == 2

    @pytest.mark.parametrize("steps", [0, 1, 3])
    async def test_a_cancelled_caller_leaves_the_engine_usable(self, subject: Subject, steps: int):
        engine, session = subject.engine, subject.engine.open_session()
        prompt = prompt_of(12, 5, subject.config.vocab_size)
        async with asyncio.timeout(SECONDS):
            cancelled = asyncio.ensure_future(engine.generate(prompt, SamplingParams(12), session=session))
            other = asyncio.ensure_future(engine.generate(prompt, SamplingParams(30, seed=1)))
            for _ in range(steps):
                await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await asyncio.wait([other], timeout=0.2)  # it may wait for the session, but must not fail with it
            again = await engine.generate(prompt, SamplingParams(12, seed=2), session=session)
            engine.close_session(session)
            subject.expect_learner([prompt, prompt], [again, await other])
            await engine.update_weights(subject.other_params, 1)

    async def test_closing_fails_what_is_under_way_and_what_comes_later(self, subject: Subject):
        async with asyncio.timeout(SECONDS):
            callers = [
                asyncio.ensure_future(subject.engine.generate((1, 2, 3), SamplingParams(40, seed=i))) for i in range(2)
            ]
            await asyncio.sleep(0)
            await subject.engine.close()
            found = await asyncio.gather(*callers, return_exceptions=True)
            assert [type(error) for error in found] == [RuntimeError] * 2
            with pytest.raises(RuntimeError, match=r"closed.*\.$"):
                await subject.engine.generate((1,), SamplingParams(1))
            await subject.engine.close()
