"""Exact round trips, tokens shared between a sentence and its copy, and files that load again."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra_jax.models import saved_tokenizer
from orchestra_jax.models import tokenizer as tok

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SCAFFOLDS = ('{"name": "', '", "arguments": {"code": "', '", "arguments": {"query": "', '", "arguments": {}}', '"}}')
TEXTS = (
    '<|im_start|>system\n{"name": "python", "price_usd": 0.004, "latency_s": 12}<|im_end|>\n',
    "<|im_start|>user\nWhat is 37 * 4 + 567?<|im_end|>\n<|im_start|>assistant\n"
    '<tool_call>\n{"name": "python", "arguments": {"code": "37 * 4 + 567"}}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\n<tool_response>\n715\n</tool_response><|im_end|>\n<|im_start|>assistant\n715<|im_end|>\n",
    "<|im_start|>user\nWhere was Alice Moreno born?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    '<tool_call>\n{"name": "local_search", "arguments": {"query": "Alice Moreno born"}}\n</tool_call><|im_end|>\n',
    "What is (3 + 4) * 2, or -5?  Two  spaces, gpt5a, caf\u00e9 \u2013 a_b.\n\n\tEnd",
    '{"name": "expert_large", "arguments": {}}',
)


@pytest.fixture(scope="module")
def words():
    return tok.build_word_tokenizer(TEXTS, TEMPLATE, SCAFFOLDS)


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def contains(haystack, needle):
    return any(haystack[i : i + len(needle)] == needle for i in range(len(haystack)))


@pytest.mark.parametrize("text", TEXTS)
def test_decoding_gives_back_the_text_exactly(words, text):
    ids = ids_of(words, text)
    assert words.unk_token_id not in ids
    assert words.decode(ids, skip_special_tokens=False) == text


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_characters="\u2060", exclude_categories=("Cs",)), max_size=40))
def test_any_text_round_trips_once_its_pieces_are_known(text):
    tokenizer = tok.build_word_tokenizer([text], TEMPLATE, SCAFFOLDS)
    assert tokenizer.decode(ids_of(tokenizer, text), skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("sentence", "call", "copied"),
    [
        ("What is 37 * 4?", '{"name": "python", "arguments": {"code": "37 * 4"}}', " 37 * 4"),
        ("What is (3 + 4) * 2?", '{"name": "python", "arguments": {"code": "(3 + 4) * 2"}}', None),
        ("What is 567?", '{"name": "python", "arguments": {"code": "567"}}', " 567"),
        ("was Alice Moreno born", '{"name": "python", "arguments": {"query": "Alice Moreno"}}', " Alice Moreno"),
        ("use the local_search tool", '{"name": "local_search", "arguments": {}}', " local_search"),
    ],
)
def test_a_copy_in_json_has_the_tokens_of_the_sentence(words, sentence, call, copied):
    if copied is None:
        opening = words.convert_tokens_to_ids(["(\u2060", " 3", " +", " 4", ")", " *", " 2"])
    else:
        opening = ids_of(words, copied)
    assert words.unk_token_id not in opening
    assert contains(ids_of(words, sentence), opening)
    assert contains(ids_of(words, call), opening)


def test_numbers_are_cut_in_pairs_and_always_known(words):
    assert words.convert_ids_to_tokens(ids_of(words, " 12345 007")) == [" 12", "34", "5", " 00", "7"]
    assert words.unk_token_id not in ids_of(words, "98 7 06 " + " ".join(str(n) for n in range(200)))


def test_scaffolds_are_single_tokens(words):
    ids = ids_of(words, '{"name": "python", "arguments": {"code": "37"}}')
    assert len(ids) == 5
    assert json.loads(words.decode(ids)) == {"name": "python", "arguments": {"code": "37"}}


def test_a_prompt_keeps_its_tokens_whatever_follows(words):
    prompt = "<|im_start|>user\nWhat is 37?<|im_end|>\n<|im_start|>assistant\n"
    for answer in ("37", "Alice Moreno", " born", "<tool_call>\n", "(3)"):
        assert ids_of(words, prompt + answer) == ids_of(words, prompt) + ids_of(words, answer)


def test_special_tokens_come_first_and_have_qwen3s_roles(words):
    assert words.convert_ids_to_tokens(range(3)) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert (words.pad_token, words.eos_token, words.unk_token) == ("<|endoftext|>", "<|im_end|>", "<unk>")
    for tag in tok.TAGS:
        assert len(ids_of(words, tag)) == 1
    kept = words.decode(ids_of(words, "<think>born</think><|im_end|>"), skip_special_tokens=True)
    assert kept == "<think>born</think>"


def test_unknown_pieces(words):
    assert ids_of(words, " zebra") == [words.unk_token_id]


def test_the_vocabulary_does_not_depend_on_the_order_of_the_texts(words):
    again = tok.build_word_tokenizer(TEXTS[::-1], TEMPLATE, SCAFFOLDS)
    assert again.get_vocab() == words.get_vocab()
    assert sorted(words.get_vocab().values()) == list(range(len(words)))


@pytest.mark.parametrize("scaffold", ["", "a<|im_end|>", "<tool_call>\n", "a\u2060b"])
def test_bad_scaffolds(scaffold):
    with pytest.raises(ValueError, match="non-empty text"):
        tok.build_word_tokenizer(TEXTS, TEMPLATE, [scaffold])


def test_saved_and_loaded_is_the_same(words, tmp_path):
    words.save_pretrained(tmp_path)
    loaded = saved_tokenizer.load(tmp_path)
    assert loaded.get_vocab() == words.get_vocab()
    assert loaded.chat_template == TEMPLATE
    assert (loaded.pad_token_id, loaded.eos_token_id) == (words.pad_token_id, words.eos_token_id)
    for text in TEXTS:
        assert ids_of(loaded, text) == ids_of(words, text)
        assert loaded.decode(ids_of(loaded, text)) == text


def test_load_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No tokenizer\.json in .*; give a Hugging Face model directory"):
        saved_tokenizer.load(tmp_path)


def test_load_qwen3(data_dir):
    qwen3 = saved_tokenizer.load(data_dir / "qwen3-tokenizer")
    assert ids_of(qwen3, "<|im_end|>") == [151645]
    assert qwen3.chat_template is not None
