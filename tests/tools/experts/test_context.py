"""Counting and cutting prompts, with a real tokenizer and without."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from orchestra_jax.tools.experts.context import CUT, LEAST_ROOM, TokenCounter, fit
from orchestra_jax.tools.experts.quoting import Neutraliser

TEXT = st.text(max_size=400)
ESTIMATE = TokenCounter()


@pytest.fixture(scope="session")
def by_bytes(tmp_path_factory) -> TokenCounter:
    """A byte-level BPE tokenizer, as the experts' are, in which "the" is one token and all else is bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate([*letters, "th", "the"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("th", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    return TokenCounter(folder)


def test_what_a_tokenizers_file_keeps_of_its_training_cuts_and_pads_no_count(by_bytes, tmp_path):
    tokenizer = by_bytes._tokenizer
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    kept = TokenCounter(tmp_path)
    assert (kept.count("the"), kept.count("the" * 100)) == (1, 100)
    assert kept.cut("the" * 100, 40) == by_bytes.cut("the" * 100, 40)


def test_runs_of_blanks_are_no_control_strings(by_bytes, tmp_path):
    tokenizer = Tokenizer.from_str(by_bytes._tokenizer.to_str())
    tokenizer.add_tokens(["\n\n", "    ", "<|end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    neutralise = Neutraliser(TokenCounter(tmp_path).control)
    assert neutralise("def f():\n\n    return 1<|end|>") == "def f():\n\n    return 1< |end|>"


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_counts(by_bytes):
    assert by_bytes.count("the moon") == 1 + 5
    assert by_bytes.count("é") == 2
    assert (ESTIMATE.count(""), ESTIMATE.count("a"), ESTIMATE.count("abc"), ESTIMATE.count("abcd")) == (0, 1, 1, 2)
    assert ESTIMATE.most([user("né")]) == 64 + 8 + 3
    assert by_bytes.most([user("the")]) == by_bytes.estimate([user("the")]) == 64 + 8 + 1


@given(TEXT)
def test_no_tokenizer_counts_more_than_the_bytes(by_bytes, text: str):
    assert by_bytes.estimate([user(text)]) <= ESTIMATE.most([user(text)])


@given(TEXT, st.integers(-5, 200))
def test_cut_keeps_both_ends_and_the_limit(by_bytes, text: str, tokens: int):
    for counter in (by_bytes, ESTIMATE):
        short = counter.cut(text, tokens)
        assert counter.count(short) <= max(tokens, 32)
        if short != text:
            head, tail = short.split(CUT)
            assert text.startswith(head)
            assert text.endswith(tail)


def conversation(length: int) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": f"turn {i} " + "the " * length} for i in range(9)]
    return [{"role": "system", "content": "Be kind."}, *turns]


def test_what_fits_stays(by_bytes):
    messages = conversation(3)
    assert fit(messages, by_bytes.estimate(messages), by_bytes) == messages


def test_the_oldest_go_first(by_bytes):
    messages = conversation(20)
    kept = fit(messages, by_bytes.estimate(messages) // 2, by_bytes)
    assert kept[0] == messages[0]
    assert kept[1:] == messages[-len(kept) + 1 :]
    assert kept[1]["role"] == "user"  # never begins with an answer
    assert 3 < len(kept) < len(messages)
    assert by_bytes.estimate(kept) <= by_bytes.estimate(messages) // 2


@pytest.mark.parametrize("system", [True, False])
def test_then_the_middle_of_the_question(by_bytes, system):
    head = [{"role": "system", "content": "S" * 30}] if system else []
    messages = [*head, user("Context: " + "the " * 500 + "Question: why?")]
    for counter in (by_bytes, ESTIMATE):
        kept = fit(messages, 300, counter)
        assert counter.estimate(kept) <= 300
        assert kept[:-1] == head
        assert kept[-1]["content"].startswith("Context: the")
        assert kept[-1]["content"].endswith("Question: why?")
        assert CUT in kept[-1]["content"]
    assert CUT not in messages[-1]["content"]  # the caller's messages are untouched


def test_a_system_message_takes_at_most_half(by_bytes):
    kept = fit([{"role": "system", "content": "the " * 400}, user("moon " * 400)], 400, by_bytes)
    sizes = [by_bytes.count(message["content"]) for message in kept]
    assert by_bytes.estimate(kept) <= 400
    assert min(sizes) > 130


def test_the_least_room_holds_every_question():
    long = [{"role": "system", "content": "Be kind. " * 100}, user("why " * 100)]
    assert ESTIMATE.estimate(fit(long, LEAST_ROOM, ESTIMATE)) <= LEAST_ROOM
    with pytest.raises(ValueError, match="No question fits"):
        fit(long, LEAST_ROOM - 1, ESTIMATE)


def test_no_room_and_no_message():
    with pytest.raises(ValueError, match="No question fits into 100 tokens; raise context_tokens"):
        fit([user("why " * 100)], 100, ESTIMATE)
    with pytest.raises(ValueError, match="no message"):
        fit([], 100, ESTIMATE)


def test_the_qwen3_tokenizer(data_dir):
    counter = TokenCounter(data_dir / "qwen3-tokenizer")
    assert "<|im_end|>" in counter.control
    text = "北京 is 2,176 km from 上海? " * 300
    assert counter.count(counter.cut(text, 100)) <= 100
    assert counter.most([user(text)]) <= ESTIMATE.most([user(text)])
