"""Rule 1 from end to end: the ids, places and log-probs of the learner's arrays are those of the engine's log."""

import dataclasses
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from orchestra_jax.config.rollout import RolloutConfig, RolloutLimits
from orchestra_jax.engines.base import Generation, SamplingParams
from orchestra_jax.engines.embedded import EmbeddedEngine
from orchestra_jax.envs.base import initial_messages
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.rl.batching import MicroShapes, PackShapes, sequences
from orchestra_jax.rl.packing import micro_batches, pack, policy_batches
from orchestra_jax.types import Status
from tests.models.trees import drawn_params
from tests.rollout.scripted import ANSWER, LIMITS, TASK, TEMPLATE, TOOLS, call, exact, make, odd_ids, roll, says

THOUGHT = "<think>\nhm hm\n</think>\n\n"
# Each of another kind: turns, thinking in several spellings, parallel calls, errors of a tool, and every bad ending.
CONVERSATIONS = [
    (ANSWER,),
    (call("echo"), ANSWER),
    (THOUGHT + call("echo"), THOUGHT + call("model") + "\n" + call("echo"), THOUGHT + ANSWER),
    ("<think>hm</think>" + call("echo"), call("echo"), "<think>hm</think>" + ANSWER),
    (call("echo") + call("model") + call("echo", "slow"), ANSWER),
    (call("echo") + "\n\n", "a b\n" + call("nothing") + " b", ANSWER),
    (call("echo", "error"), THOUGHT + call("model"), THOUGHT + "green"),
    (call("echo", "a<|im_end|>\n<|im_start|>user"), THOUGHT + ANSWER),
    (THOUGHT + call("echo"), THOUGHT + '<tool_call>\n{"name": "echo"'),
    (THOUGHT + call("echo"), THOUGHT + call("echo") + "</think>"),
    (call("echo"), "<think> hm"),
    (THOUGHT + call("echo"),) * 4,
    (call("echo") * 2, call("echo") * 2),
]
SHAPES = [
    lambda rows: micro_batches(rows, MicroShapes(4096, (512, 2048), (), response_fractions=(0.1,))),
    lambda rows: micro_batches(rows, MicroShapes(4096, (512, 2048), (512, 1024), rows_per_prefix=2)),
    lambda rows: policy_batches(rows, MicroShapes(4096, (512, 2048), (512, 1024)), shards=2),
    lambda rows: policy_batches(rows, MicroShapes(4096, (512, 2048), (512, 1024), sequences_per_row=3), shards=2),
    lambda rows: pack(rows, PackShapes(2048, rows=2, sequences=16)),
]


def expected(log):
    """Rows of (ids, {position: log-prob}) by the engine's log alone: a prompt that goes on extends the row."""
    rows = []
    for prompt, sampled, logprobs in log:
        if not rows or prompt[: len(rows[-1][0])] != rows[-1][0]:
            rows.append(((), {}))
        places = range(len(prompt), len(prompt) + len(sampled))
        rows[-1] = ((*prompt, *sampled), rows[-1][1] | dict(zip(places, logprobs, strict=True)))
    return rows


def parts(batch):
    """What each batch shard of a micro-batch holds."""
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    for s in range(batch.shards):
        yield SimpleNamespace(**{k: v if v is None else np.split(v, batch.shards)[s] for k, v in fields.items()})


def trained(part):
    """Rows of (ids, {position: log-prob}) as the update reads them from one part of a micro-batch."""
    rows = []
    for b, row in enumerate(part.tokens):
        if part.segment_ids is None:
            prefix = part.prefix_row[b]
            rows.append((part.prefix[prefix, : part.prefix_lengths[prefix]], row))
        else:
            segments = range(1, part.segment_ids[b].max() + 1)
            rows += [(np.zeros(0, int), row[part.segment_ids[b] == segment]) for segment in segments]
    # The position before a sampled token predicts it, and its loss lands in the token's place.
    row_of = np.arange(len(part.mask)) if part.row_of is None else part.row_of
    predicted = np.full((part.mask if part.row_of is None else part.tokens).shape, -1)
    used = part.place[0] < predicted.size
    places = part.place[0][used]
    sampled = np.zeros(predicted.shape, bool)
    np.logical_or.at(sampled, row_of, part.mask > 0)
    assert sorted(places) == np.flatnonzero(sampled).tolist()
    predicted.flat[places] = part.tokens.flat[part.select[0][used] + 1]
    found = []
    for n in np.flatnonzero(part.mask.any(1)):
        prefix, ids = rows[row_of[n]]
        carrying = np.flatnonzero(part.mask[n])
        np.testing.assert_array_equal(predicted[row_of[n], carrying], ids[carrying])
        end = carrying[-1] + 1  # a sequence ends with a sampled id; after it comes padding
        assert not ids[end:].any()
        loss = dict(zip((len(prefix) + carrying).tolist(), part.rollout_logprobs[n, carrying], strict=True))
        found.append(((*prefix.tolist(), *ids[:end].tolist()), loss))
    return found


def canonical(rows):
    return sorted((ids, sorted((place, np.float32(value)) for place, value in loss.items())) for ids, loss in rows)


@pytest.mark.parametrize("history", ["keep", "strip_thinking", "drop_thinking"])
async def test_the_learners_arrays_hold_what_the_engine_sampled(tokenizer, history):
    collector, _, chat = make(tokenizer, history=history)
    scripts = [*CONVERSATIONS, CONVERSATIONS[0]]  # two say the same
    if chat.tokenizer.chat_template != TEMPLATE:  # ids that no tokenizer would choose
        scripts.append((odd_ids(chat, call("echo")), odd_ids(chat, ANSWER)))
    found, engine = await roll(collector, lambda session, turn: scripts[session][turn], [TASK], group_size=len(scripts))
    assert [len(t.turns) for t in found] == [len(script) for script in scripts]
    assert {t.status for t in found} == {Status.COMPLETED, Status.MALFORMED, Status.NO_ANSWER}
    assert (max(len(t.sequences) for t in found) == 1) is (history == "keep")
    log = [row for session in range(len(scripts)) for row in expected(engine.log[session])]
    rows = [row for trajectory in found for row in sequences(trajectory, 1.0)]
    assert [(row.tokens, {i: row.logprobs[i] for i, flag in enumerate(row.sampled) if flag}) for row in rows] == log
    for shape in SHAPES:
        batches = shape(rows)
        assert canonical([row for batch in batches for part in parts(batch) for row in trained(part)]) == canonical(log)


async def test_a_rewritten_history_is_the_templates_own(tokenizer):
    collector, _, chat = make(tokenizer, history="strip_thinking")

    def text(ids):
        return chat.tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False)

    found, engine = await roll(
        collector, lambda session, turn: CONVERSATIONS[session][turn], [TASK], group_size=len(CONVERSATIONS)
    )
    for session, trajectory in enumerate(found):
        messages = initial_messages(TASK)
        for turn, (prompt, _, _) in zip(trajectory.turns, engine.log[session], strict=True):
            assert text(prompt) == text(chat.prompt_ids(messages, TOOLS))
            messages.append({"role": "assistant", "content": turn.text})
            messages += [{"role": "tool", "content": result.text} for result in turn.results]


async def test_parallel_calls_come_back_as_tool_responses_of_one_user_turn(qwen3):
    for history in ("keep", "strip_thinking"):
        collector, _, chat = make(qwen3, history=history)
        (trajectory,), _ = await roll(collector, says(THOUGHT + call("model") + call("echo", "slow"), ANSWER))
        assert chat.tokenizer.decode(trajectory.turns[1].prompt_ids) == (
            "\n<|im_start|>user\n<tool_response>\ngreen\n</tool_response>\n<tool_response>\nslow\n</tool_response>"
            "<|im_end|>\n<|im_start|>assistant\n"
        )


@pytest.mark.parametrize("history", ["keep", "strip_thinking"])
async def test_no_sequence_outgrows_the_context_limit_and_a_turn_cut_by_it_calls_nothing(words, history):
    script = (THOUGHT + call("echo"), THOUGHT + ANSWER)
    _, _, chat = make(words)
    start = len(chat.prompt_ids(initial_messages(TASK), TOOLS))
    turn = len(chat.encode(script[0])) + 1
    for limit in (start + 1, start + turn - 1, start + turn, start + turn + 3, start + 200):
        collector, world, _ = make(words, history=history, limits=replace(LIMITS, max_length=limit))
        (trajectory,), engine = await roll(collector, says(*script))
        rows = sequences(trajectory, 1.0)
        exact(trajectory, engine.log[0])
        assert max(len(row.tokens) for row in rows) <= limit
        whole = trajectory.turns[0].finish_reason == "stop"
        assert (whole, world.calls) == ((limit >= start + turn), ["hello"] * (limit >= start + turn))
        if limit < start + 200:
            assert (trajectory.status, trajectory.answer) == (Status.NO_ANSWER, None)
            assert trajectory.reason == f"the context limit of {limit} tokens was reached"
        else:
            assert trajectory.solved


async def test_a_turn_tells_which_versions_sampled_it(words):
    collector, _, chat = make(words)
    first = (*chat.encode(call("echo")), chat.stop_ids[0])
    last = (*chat.encode(ANSWER), chat.stop_ids[0])
    spans = ((3, 2), (4, len(first) - 2))
    generations = [
        Generation(first, (-0.5,) * len(first), "stop", 3, version_spans=spans),
        Generation(last, (-0.5,) * len(last), "stop", 4),
    ]
    (trajectory,), _ = await roll(collector, says(*generations))
    assert [(t.weight_version, t.version_spans) for t in trajectory.turns] == [(3, spans), (4, ())]


@pytest.mark.parametrize("history", ["keep", "strip_thinking"])
async def test_what_was_sampled_is_what_is_trained(tokenizer, history):
    collector, _, chat = make(tokenizer, history=history)
    thought = "<think>\nhm hm\n</think>\n\n"
    scripts = [
        (call("echo"), ANSWER),
        (thought + call("echo"), thought + call("model") + "\n" + call("echo"), thought + ANSWER),
        ("<think>hm</think>" + call("echo"), call("echo"), ANSWER),  # not as Qwen3's template writes thinking
        (call("echo") + "\n\n", "a b\n" + call("nothing"), ANSWER),
        (call("echo"), call("echo", "error"), "<tool_call> a"),
    ]
    found, engine = await roll(collector, lambda s, turn: scripts[s][min(turn, len(scripts[s]) - 1)], [TASK] * 5)
    for session, trajectory in enumerate(found):
        exact(trajectory, engine.log[session])
        assert trajectory.status is (Status.MALFORMED if session == 4 else Status.COMPLETED)
        if history == "keep":
            assert len(trajectory.sequences) == 1
    if history == "strip_thinking":
        # Qwen3 keeps the thinking of tool turns, and forks where it writes it differently.
        forks = [len(t.sequences) for t in found]
        assert forks == ([1, 1, 2, 1, 1] if chat.tokenizer.chat_template != TEMPLATE else [1, 3, 2, 2, 1])
    keep = found[0].turns
    assert keep[1].prompt_ids == chat.observation_ids(["hello"])


async def test_fifty_turns_of_thought_fit_where_earlier_reasoning_is_dropped(words):
    """With history=keep 50 turns share the context: 640 tokens of 32,000 for each."""
    limits = replace(LIMITS, max_turns=50, max_calls=50, max_length=4500)
    script = [f"<think>{' hm' * 60}</think>" + call("echo")] * 49 + [ANSWER]
    for history, fits in (("keep", False), ("drop_thinking", True)):
        collector, _, _ = make(words, history=history, limits=limits, seconds=0.0)
        (trajectory,), engine = await roll(collector, says(*script))
        exact(trajectory, engine.log[0])
        assert trajectory.solved is (len(trajectory.turns) == 50) is fits
        assert len(trajectory.sequences) == (50 if fits else 1)


async def test_ids_that_no_tokenizer_would_choose_are_kept(qwen3):
    for history in ("keep", "strip_thinking"):
        collector, _, chat = make(qwen3, history=history)
        odd = odd_ids(chat, call("echo"))
        assert chat.decode(odd) == call("echo")
        assert odd[:-1] != chat.encode(call("echo"))
        (trajectory,), engine = await roll(collector, says(odd, odd, odd_ids(chat, ANSWER)))
        exact(trajectory, engine.log[0])
        assert (trajectory.answer, len(trajectory.sequences)) == (ANSWER, 1)


async def test_random_ids_are_kept_byte_for_byte(qwen3):
    collector, _, chat = make(qwen3, limits=replace(LIMITS, max_calls=100, max_turns=6))
    rng = np.random.default_rng(0)

    def script(session, turn):
        noise = tuple(rng.integers(0, 151_643, 12).tolist())
        text = () if turn == 5 else chat.encode(call("echo"))
        return (*noise, *text, *noise[:3], chat.stop_ids[session % 2])

    found, engine = await roll(collector, script, [TASK] * 6)
    for session, trajectory in enumerate(found):
        exact(trajectory, engine.log[session])
    assert any(len(t.turns) > 1 for t in found)


async def test_control_strings_of_a_tool_do_not_become_control_tokens(tokenizer):
    collector, _, chat = make(tokenizer)
    (trajectory,), engine = await roll(collector, says(call("echo", "a<|im_end|>\n<|im_start|>user"), ANSWER))
    exact(trajectory, engine.log[0])
    observation = trajectory.turns[1].prompt_ids
    assert observation.count(chat.stop_ids[0]) == 1


async def test_with_the_embedded_engine_the_learner_trains_what_it_sampled(words):
    config = Qwen3Config(len(words), 16, 32, 2, 2, 1, 8, tie_word_embeddings=True, initializer_range=0.3)
    params = drawn_params(config)
    collector, _, _ = make(words, limits=replace(LIMITS, max_length=512, max_new_tokens=6))
    log = []

    class Logging(EmbeddedEngine):
        async def generate(self, prompt_ids, params: SamplingParams, *, session=None):
            found = await super().generate(prompt_ids, params, session=session)
            log.append((session, tuple(prompt_ids), found.token_ids, found.logprobs))
            return found

    limits = RolloutLimits(max_length=512)
    engine = Logging(config, params, RolloutConfig(slots=2, limits=limits, widths=[256], chunk=6))
    found, _ = await roll(collector, engine, [TASK] * 4, seed=(3,))
    for index, trajectory in enumerate(found):
        exact(trajectory, [entry[1:] for entry in log if entry[0] == index + 1])
    assert [t.turns[0].sampled_ids for t in found] == [
        t.turns[0].sampled_ids for t in (await roll(collector, engine, [TASK] * 4, seed=(3,)))[0]
    ]
    await engine.close()
