"""The rehearsal's policy: Qwen3's chat, and the turns of its table, whatever it has read before."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.rehearsal.policy import make_policy
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.models import checkpoint, saved_tokenizer
from orchestra_jax.models.decoder import forward, logits
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.parsing import final_answer, parse_tool_calls
from orchestra_jax.types import ToolCall

needs_data = pytest.mark.skipif("ORCHESTRA_DATA" not in os.environ, reason="ORCHESTRA_DATA is not set")
ASKS = (
    "<think>", "\nSomebody else may know this.\n", "</think>", "\n\n ", "<tool_call>",
    '\n{"name": "expert-2", "arguments": {"question": "', "How far is the moon?", '"}}\n', "</tool_call>", "<|im_end|>",
)  # fmt: skip
ANSWERS = ("The answer is \\boxed{", "1969", "}.", "<|im_end|>")


@needs_data
def test_its_turns_are_those_of_its_table_in_the_chat_of_qwen3(tmp_path: Path):
    qwen3 = Path(os.environ["ORCHESTRA_DATA"]) / "qwen3-tokenizer"
    make_policy(qwen3, tmp_path)
    words = saved_tokenizer.load(tmp_path / "policy")
    text = "<tool_call>\nHow far is the moon? 2024 ünï 漢字 🙂"
    assert words.decode(words.encode(text)) == text
    chat, theirs = (ChatFormat(each, history="drop_thinking") for each in (words, saved_tokenizer.load(qwen3)))
    messages = [{"role": "user", "content": "How far is the moon?"}]
    prompt = chat.prompt_ids(messages)
    assert chat.decode(prompt) == theirs.decode(theirs.prompt_ids(messages))

    ids = {words.decode([number]): number for number in range(len(words))}
    config, params = checkpoint.load(tmp_path / "policy")

    turns = (*ASKS, "\n", *ANSWERS)  # a newline is what the prompt of a turn ends with
    sampled = [ids[piece] for piece in turns]
    tokens = jnp.asarray([[*prompt, *sampled]])

    @jax.jit
    def scored(params, tokens):
        hidden, _ = forward(params, config, tokens, jnp.arange(tokens.shape[1])[None])
        return jax.nn.softmax(logits(params, config, hidden[0, len(prompt) - 1 : -1]))

    found = np.asarray(scored(params, tokens))[np.arange(len(sampled)), sampled]
    # As the table has them, but for what the random layers add.
    expected = [0.4, 0.5, 1, 1, 0.6, 4 / 27, 1 / 3, 1, 1, 1, 0, 0.2, 1 / 7, 1, 1]
    np.testing.assert_allclose(found, expected, rtol=0.5, atol=1e-3)
    asked, answered = ("".join(turn[:-1]) for turn in (ASKS, ANSWERS))
    assert parse_tool_calls(asked) == [ToolCall("expert-2", {"question": "How far is the moon?"})]
    assert final_answer(answered) == answered


def test_a_tokenizer_that_is_not_there_is_asked_for(tmp_path: Path):
    with pytest.raises(ConfigError, match="set QWEN3_TOKENIZER to its folder"):
        make_policy(tmp_path, tmp_path)
