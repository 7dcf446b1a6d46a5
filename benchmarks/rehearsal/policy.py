"""The policy of a rehearsal: half a million parameters that think, call and answer, without having been trained.

Its head is solved for, so that the token after each of a few dozen known ones follows a table. Those tokens are whole
phrases, added to the first few thousand of Qwen3's vocabulary; control tokens and chat template are Qwen3's. The layers
are random and small, so that what the policy says depends a little on all that it reads.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from tokenizers import pre_tokenizers

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.models import checkpoint, saved_tokenizer
from orchestra_jax.models.decoder import init_params
from orchestra_jax.models.qwen3 import Qwen3Config

_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_WORDS = 4096  # tokens of Qwen3's vocabulary that stay
_NEVER = -20.0  # logit of what the table does not name
_START, _THINK, _THOUGHT, _CALL, _CALLED, _END = (
    "\n",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|im_end|>",
)
_PAUSE, _CLOSE, _ANSWER, _DONE = "\n\n ", '"}}\n', "The answer is \\boxed{", "}."
_THOUGHTS = ("\nSomebody else may know this.\n", "\nA search may help, or a program.\n")
_QUESTIONS = ("How far is the moon?", "Who wrote this, and when?", "What is left of 12 after 5 are gone?")
_PROGRAMS = ("print(6 * 7)", "print(sum(range(10)))", "1 / 0")
_ANSWERS = ("42", "yes", "no", "Paris", "7", "1969", "unknown")


def _opening(tool: str, argument: str) -> str:
    return f'\n{{"name": "{tool}", "arguments": {{"{argument}": "'


# Tool calls as they begin, and how often; an expert's argument depends on its role, which the policy does not look up.
_OPENINGS = {
    **{_opening(f"expert-{number}", "question"): 4.0 for number in (1, 2, 3)},
    **{_opening(f"expert-{number}", "task"): 1.0 for number in (1, 2, 3)},
    _opening("expert-1", "problem"): 1.0,
    _opening("local_search", "query"): 8.0,
    _opening("web_search", "query"): 1.0,
}
_PROGRAM = _opening("python", "code")


def _table() -> dict[str, Mapping[str, float]]:
    """Return what follows each token, and how often."""
    questions = dict.fromkeys(_QUESTIONS, 1.0)
    return {
        _START: {_THINK: 4.0, _CALL: 4.0, _ANSWER: 2.0},
        _THINK: dict.fromkeys(_THOUGHTS, 1.0),
        **{text: {_THOUGHT: 1.0} for text in _THOUGHTS},
        _THOUGHT: {_PAUSE: 1.0},
        _PAUSE: {_CALL: 6.0, _ANSWER: 4.0},
        _CALL: {**_OPENINGS, _PROGRAM: 2.0},
        **dict.fromkeys(_OPENINGS, questions),
        _PROGRAM: dict.fromkeys(_PROGRAMS, 1.0),
        **{text: {_CLOSE: 1.0} for text in (*_QUESTIONS, *_PROGRAMS)},
        _CLOSE: {_CALLED: 1.0},
        _CALLED: {_END: 1.0},
        _ANSWER: dict.fromkeys(_ANSWERS, 1.0),
        **{text: {_DONE: 1.0} for text in _ANSWERS},
        _DONE: {_END: 1.0},
    }


def make_policy(qwen3: Path, folder: Path, seed: int = 0) -> None:
    """Writes the policy as a folder that transformers, SGLang and `model.path` take.

    Args:
        qwen3: folder of Qwen3's tokenizer.json and tokenizer_config.json.

    Raises:
        ConfigError: it is no such folder.
    """
    table = _table()
    phrases = list(dict.fromkeys([*table, *(text for row in table.values() for text in row)]))
    ids = _cut_tokenizer(qwen3, folder / "tokenizer", phrases)
    words = saved_tokenizer.load(folder / "tokenizer")
    config = Qwen3Config(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_layers=2, num_heads=4, num_kv_heads=2,
        head_dim=16,
    )  # fmt: skip
    params = dict(init_params(config, jax.random.key(seed)))
    rng = np.random.default_rng(seed)
    embed = rng.normal(size=(config.vocab_size, config.hidden_size)).astype(np.float32)
    embed[:, 0] = 1.0  # so that one row of the head can say "never" to everything
    known = embed[[ids[text] for text in table]]
    normed = known / np.sqrt((known**2).mean(axis=1, keepdims=True) + config.rms_norm_eps)
    logits = np.full((len(table), config.vocab_size), _NEVER, np.float32)
    for row, follows in enumerate(table.values()):
        for text, weight in follows.items():
            logits[row, ids[text]] = np.log(weight / sum(follows.values()))
    params |= {"embed": embed, "lm_head": np.linalg.lstsq(normed, logits, rcond=None)[0].astype(np.float32)}
    checkpoint.save(folder / "policy", config, params, tokenizer=words, overwrite=True)


def _cut_tokenizer(source: Path, folder: Path, phrases: Sequence[str]) -> dict[str, int]:
    """Writes a byte-level BPE tokenizer without its later tokens but with one for each phrase; returns their ids.

    Text is read into the tokens that stay, never into a new one: what is sampled is not what text would become.
    """
    try:
        written = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
        settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
        model, added = written["model"], written["added_tokens"]
        vocabulary = {text: number for text, number in model["vocab"].items() if number < _WORDS}
        model["merges"] = [pair for pair in model["merges"] if "".join(pair) in vocabulary]
        model["vocab"] = vocabulary
        controls = {token["content"] for token in added}
        for phrase in phrases:
            if phrase not in controls:
                vocabulary.setdefault(_as_bytes(phrase), len(vocabulary))
        for token in added:
            token["id"] = len(vocabulary) + added.index(token)
        settings.pop("added_tokens_decoder", None)  # says the same with the old numbers
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(written, ensure_ascii=False), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"The rehearsal's policy reads with a part of Qwen3's tokenizer, which is not in {str(source)!r}: set "
            f"QWEN3_TOKENIZER to its folder ({error})."
        ) from error
    numbers = {token["content"]: token["id"] for token in added}
    return {phrase: numbers.get(phrase, vocabulary.get(_as_bytes(phrase), -1)) for phrase in phrases}


def _as_bytes(text: str) -> str:
    """The text in the letters that byte-level BPE has for bytes."""
    return "".join(piece for piece, _ in _BYTES.pre_tokenize_str(text))
