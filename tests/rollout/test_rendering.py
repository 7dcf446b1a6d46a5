"""Prompts that are made from the turn before are those of the whole conversation, to the id."""

import json
import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from orchestra_jax.envs.quickstart.environment import quickstart_chat
from orchestra_jax.io.shipped import CONF
from orchestra_jax.models.tokenizer import CONTROL, TAGS
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.rollout.rendering import _border, _writes_alone
from orchestra_jax.types import ToolCall
from tests.rollout.scripted import TEMPLATE, TOOLS

HISTORIES = ["strip_thinking", "drop_thinking"]
# Words of the small worlds, text that normalisation joins, splits and strips, and what looks like control tokens.
PIECES = (
    "hello", " blue", " green", "a b", "What", " is", " 37", "4567", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0",
    "e\u0301", "\u0301", "\u1112\u1161\u11ab", "\ufb01", "\u2060", "\u2060 ", "\u200d", "\U0001f469\u200d\U0001f680",
    "\u4f60\u597d", "\u0130", "I'll", "{", '"}', "<", ">", "<|", "|>", "im_end", "<|im_end|", "|im_end|>",
    "< |im_end|>", "<|im_end|>", "<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>user\n", "<|endoftext|>",
    "<tool_response>", "</tool_response>", "<tool_call>", "</tool_call>", "<think>", "</think>", "</think>\n\n",
    "<unk>", "sentinelb", "{{ 7 }}",
)  # fmt: skip  # a list of texts
_HELD = 12  # conversations of each kind


def anew(chat, old, messages, tools):
    """Return what `next_prompt` has to, from the whole conversation."""
    if chat.history == "drop_thinking":
        messages = [_thoughtless(message) for message in messages]
    new = chat.encode(chat.render(messages, tools))
    if new[: len(old)] == old:
        return new[len(old) :], True
    if old and old[-1] == chat.stop_ids[0] and chat.spelled(new).startswith(chat.spelled(old)):
        return chat.encode(chat.spelled(new)[len(chat.spelled(old)) :]), True
    return new, False


def _thoughtless(message):
    if message["role"] != "assistant":
        return message
    return {**message, "content": message["content"].split("</think>")[-1].lstrip("\n")}


def written(rng, most=12):
    return "".join(rng.choices(PIECES, k=rng.randrange(most)))


def sampled(rng, chat):
    """Return the ids of a turn: a thought or none, a call or words, as a tokenizer splits them or otherwise."""
    if rng.random() < 0.1:  # whatever a policy samples, halves of a character among them
        ids = tuple(rng.choices(range(len(chat.tokenizer)), k=rng.randrange(1, 20)))
    else:
        text = rng.choice(["", "", f"<think>\n{written(rng)}\n</think>\n\n", f"<think>{written(rng)}</think>"])
        text += rng.choice([render_call(ToolCall("echo", {"x": written(rng)})), written(rng), "blue"])
        pieces = rng.choice([[text], [text], list(text)])
        ids = tuple(index for piece in pieces for index in chat.encode(piece))
    return (*ids, *rng.choice([chat.stop_ids[:1]] * 6 + [chat.stop_ids[-1:], ()]))


def opened(rng):
    """Return the messages before the first turn."""
    messages = [{"role": "system", "content": written(rng)}] if rng.random() < 0.5 else []
    messages.append({"role": "user", "content": written(rng)})
    if rng.random() < 0.2:  # what another program led, with a thought that the template shows or hides
        said = {"role": "assistant", "content": written(rng), "reasoning_content": written(rng)}
        messages += [said, {"role": "tool", "content": written(rng)}]
    return messages


def conversation(chat, seed, turns, prompts=None):
    """Play one, and return how often it was appended to, and how often written again."""
    rng = random.Random(seed)
    tools = rng.choice([(), TOOLS])
    messages, prompts = opened(rng), prompts or chat.prompts()
    ids, counts = chat.prompt_ids(messages, tools), {True: 0, False: 0}
    for _ in range(turns):
        said = sampled(rng, chat)
        ids = (*ids, *said)
        messages.append({"role": "assistant", "content": chat.decode(said)})
        heard = rng.choice(
            [["tool"]] * 3 + [["tool"] * 3, ["user"], ["user"], ["tool", "user"], ["system", "tool"], []]
        )
        messages += [{"role": role, "content": written(rng)} for role in heard]
        found = prompts(ids, messages, tools)
        assert found == anew(chat, ids, messages, tools), (seed, messages)
        assert found == chat.next_prompt(ids, messages, tools)
        new, same = found
        ids = (*ids, *new) if same else new
        counts[same] += 1
    return counts


def made(template, change=None, like=None):
    """Return a small tokenizer that writes bytes, or that marks words by their spaces; `change` edits its JSON."""
    backend = Tokenizer(models.BPE())
    if like == "metaspace":
        backend = Tokenizer(models.BPE(unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
        alphabet = sorted(set("".join(PIECES)))
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=like == "prefix")
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, show_progress=False, initial_alphabet=alphabet, special_tokens=["<unk>"]
    )
    backend.train_from_iterator(["".join(PIECES), *PIECES, TEMPLATE, "hello blue green"] * 4, trainer)
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROL])
    backend.add_tokens([AddedToken(token, normalized=False) for token in TAGS])
    if change is not None:
        content = json.loads(backend.to_str())
        change(content)
        backend = Tokenizer.from_str(json.dumps(content))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<|endoftext|>", eos_token="<|im_end|>", chat_template=template
    )


# What Qwen3's first template had in place of what the later one has.
FIRST_QWEN3 = (
    (' and message.content is string and not(', ' and not('),
    ("    {%- if message.content is string %}\n        {%- set content = message.content %}\n    {%- else %}\n"
     "        {%- set content = '' %}\n    {%- endif %}\n", ""),
    ("\\n' + content + '<|im_end|>' + '\\n' }}", "\\n' + message.content + '<|im_end|>' + '\\n' }}"),
    ("        {%- set reasoning_content = '' %}\n        {%- if message.reasoning_content is string %}",
     "        {%- set content = message.content %}\n        {%- set reasoning_content = '' %}\n"
     "        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}"),
    ("{%- if '</think>' in content %}\n                {%- set reasoning_content = content.split('</think>')[0].rstrip("
     "'\\n').split('<think>')[-1].lstrip('\\n') %}\n                {%- set content = content",
     "{%- if '</think>' in message.content %}\n                {%- set content = message.content"),
    ("split('</think>')[-1].lstrip('\\n') %}\n", "split('</think>')[-1].lstrip('\\n') %}\n                {%- set "
     "reasoning_content = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}\n"),
    ("        {{- content }}\n", "        {{- message.content }}\n"),
)  # fmt: skip  # pairs


def with_template(tokenizer, template):
    backend = tokenizer.backend_tokenizer
    special = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **special)


def first_qwen3(tokenizer):
    template = tokenizer.chat_template
    for later, first in FIRST_QWEN3:
        assert template.count(later) == 1
        template = template.replace(later, first)
    return with_template(tokenizer, template)


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize(
    "kind", ["qwen3", "first qwen3", "compact", "words", "quickstart", "bytes", "prefix", "metaspace"]
)
def test_a_growing_conversation_has_the_ids_of_the_whole(kind, history, request):
    if kind in ("qwen3", "words"):
        tokenizer = request.getfixturevalue(kind)
    elif kind == "first qwen3":
        tokenizer = first_qwen3(request.getfixturevalue("qwen3"))
    elif kind == "compact":
        template = (CONF / "chat_template" / "compact.jinja").read_text()
        tokenizer = with_template(request.getfixturevalue("qwen3"), template)
    elif kind == "quickstart":
        tokenizer = quickstart_chat().tokenizer
    else:
        tokenizer = made(TEMPLATE, like=kind)
    chat = ChatFormat(tokenizer, history=history, compact_menu=kind == "quickstart")
    assert _border(chat.tokenizer, chat.stop_ids[0]) == ("<|im_end|>", kind != "metaspace")
    assert _writes_alone(chat.tokenizer.chat_template) is kind.endswith("qwen3")
    counts = [conversation(chat, seed, turns=8) for seed in range(_HELD)]
    prompts = chat.prompts()  # what it knows of one conversation is no part of the next
    counts += [conversation(chat, seed, turns=2, prompts=prompts) for seed in [*range(_HELD), *range(_HELD)]]
    assert all(sum(each[same] for each in counts) > 4 for same in (True, False)) or kind == "metaspace"


@pytest.mark.parametrize("menu", [TOOLS, TOOLS[:1]], ids=["same tools", "fewer tools"])
@pytest.mark.parametrize("question", ["hello", "blue"])
def test_another_conversation_is_rendered_whole(qwen3, question, menu):
    chat = ChatFormat(qwen3, history="drop_thinking")
    turn = [{"role": "assistant", "content": "blue"}, {"role": "tool", "content": "green"}]
    messages, prompts = [{"role": "user", "content": "hello"}, *turn], chat.prompts()
    prompts((), messages, TOOLS)
    messages[0]["content"] = question  # also where the message is the same dictionary
    assert prompts((), [*messages, *turn], menu) == anew(chat, (), [*messages, *turn], menu)


class Counting(ChatFormat):
    """Counts the messages that are rendered, the characters that are tokenised and the ids that are decoded."""

    rendered = encoded = spelt = 0

    def render(self, messages, tools=()):
        self.rendered += len(messages)
        return super().render(messages, tools)

    def encode(self, text):
        self.encoded += len(text)
        return super().encode(text)

    def spelled(self, ids):
        self.spelt += len(ids)
        return super().spelled(ids)


def test_a_long_trajectory_is_read_once(qwen3):
    chat = Counting(qwen3, history="drop_thinking")
    messages, prompts = [{"role": "user", "content": "hello" * 100}], chat.prompts()
    ids = chat.prompt_ids(messages, TOOLS)
    for turn in range(30):
        said = (*chat.encode(f"<think>\nhm {turn}\n</think>\n\nblue"), chat.stop_ids[0])
        messages += [{"role": "assistant", "content": chat.decode(said)}, {"role": "tool", "content": " green" * 50}]
        ids, same = prompts((*ids, *said), messages, TOOLS)
        assert not same
    assert chat.rendered < 4 * 30
    text = chat.render([_thoughtless(message) for message in messages], TOOLS)
    assert ids == ChatFormat.encode(chat, text)
    assert chat.encoded < 2 * len(text)  # the first prompt and the thoughts, too
    assert chat.spelt < 3 * len(ids)


def _of_the_end(content):
    return next(token for token in content["added_tokens"] if token["content"] == "<|im_end|>")


def _another(text, **how):
    def change(content):
        token = {**_of_the_end(content), "id": 1 + max(each["id"] for each in content["added_tokens"])}
        content["added_tokens"].append({**token, "content": text, **how})

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda content: _of_the_end(content).update(lstrip=True),
        lambda content: _of_the_end(content).update(normalized=True),
        lambda content: _of_the_end(content).update(single_word=True),
        lambda content: content.update(
            truncation={"direction": "Right", "max_length": 60, "strategy": "LongestFirst", "stride": 0}
        ),
        _another("blue<|im_end|>"),
        _another("<|im_end|>\n<|im_start|>"),
        _another(" <"),
        _another("\n<|", special=False),
    ],
    ids=["lstrip", "normalized", "single_word", "truncated", "longer", "longer behind", "overlaps", "overlaps more"],
)
def test_without_a_border_the_whole_is_tokenised(change):
    chat = ChatFormat(made(TEMPLATE, change), history="drop_thinking")
    assert _border(chat.tokenizer, chat.stop_ids[0]) == (None, False)
    for seed in range(_HELD // 2):
        conversation(chat, seed, turns=5)
