"""A tokenizer, a chat template and weights of a policy that calls and answers as a table says.

What it says follows from the last token of the prompt, which the template writes by the length of the question and the
number of turns so far; its head is solved for.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.types import ToolCall

TEMPLATE = (
    "{% set seen = namespace(turns=0, kind=0) %}"
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>\n{{ call['function'] | tojson }}\n</tool_call>"
    "{% endfor %}<|im_end|>\n"
    "{% if message['role'] == 'assistant' %}{% set seen.turns = seen.turns + 1 %}{% endif %}"
    "{% if message['role'] == 'user' %}{% set seen.kind = (message['content'] | length) % 3 %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<state{{ seen.kind }}{{ seen.turns }}>{% endif %}"
)
END, MARKS = "<|im_end|>", ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ASKS, REFUSED = ToolCall("expert-1", {"question": "How much is it?"}), ToolCall("expert-2", {})
RIGHT, WRONG = "It is \\boxed{14}.", "It is \\boxed{15}."
# By kind of question and number of turns: one asks an expert, one makes a call that is refused first, one answers.
POLICY = {
    "<state00>": render_call(ASKS), "<state01>": RIGHT,
    "<state10>": render_call(REFUSED), "<state11>": render_call(ASKS), "<state12>": WRONG,
    "<state20>": RIGHT,
}  # fmt: skip
_WHOLE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# Tokens that are said, and that no text is read into, as nothing merges to them.
_SAID = {text: _WHOLE.pre_tokenize_str(text)[0][0] for text in dict.fromkeys(POLICY.values())}


def save_tokenizer(folder: Path, size: int) -> None:
    """Bytes, what the policy says, ChatML's marks, its states, and names for all other ids of the model."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *_SAID.values()]
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    tokenizer.add_tokens(list(POLICY))
    tokenizer.add_tokens([f"<id{number}>" for number in range(tokenizer.get_vocab_size(), size)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def talking(params: Any, folder: Path) -> Any:
    """Weights of the policy in the shapes of `params`, for the tokenizer in `folder`."""
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id
    size, width = params["embed"].shape
    embed = np.random.default_rng(0).normal(size=(size, width)).astype(np.float32)
    embed[:, 0] = 1.0  # so that one row of the head can say "never" to everything
    follows = {**{state: _SAID[text] for state, text in POLICY.items()}, **dict.fromkeys(_SAID.values(), END)}
    known = embed[[ids(token) for token in follows]]
    logits = np.full((len(follows), size), -20.0, np.float32)
    logits[np.arange(len(follows)), [ids(token) for token in follows.values()]] = 0.0
    head = np.linalg.lstsq(known / np.sqrt((known**2).mean(axis=1, keepdims=True)), logits, rcond=None)[0]
    # The layers add little, so that the last token decides.
    layers = jax.tree.map(lambda leaf: jnp.ones_like(leaf) if leaf.ndim == 1 else 0.02 * leaf, params)
    return {**layers, "embed": jnp.asarray(embed), "lm_head": jnp.asarray(head, jnp.float32)}
