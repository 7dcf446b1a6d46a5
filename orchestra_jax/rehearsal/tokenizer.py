"""A tokenizer with Qwen3's control tokens and chat template, and the first few thousand of its tokens for text.

With all 151,669 a small policy would spend nearly all its time on the vocabulary.
"""

import json
from pathlib import Path

from orchestra_jax.config.schema import ConfigError


def cut_tokenizer(source: Path, folder: Path, size: int = 4096) -> None:
    """Writes the first `size` tokens of a byte-level BPE tokenizer, which still read and write any text.

    Args:
        source: folder of tokenizer.json and tokenizer_config.json.
        folder: is made.

    Raises:
        ConfigError: `source` is no such folder.
    """
    try:
        tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
        settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
        model = tokenizer["model"]
        vocabulary = {text: number for text, number in model["vocab"].items() if number < size}
        model["merges"] = [pair for pair in model["merges"] if "".join(pair) in vocabulary]
        model["vocab"] = vocabulary
        for number, token in enumerate(tokenizer["added_tokens"], start=size):
            token["id"] = number
        settings.pop("added_tokens_decoder", None)  # says the same with the old numbers
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"The rehearsal's policy reads with a part of Qwen3's tokenizer, which is not in {str(source)!r}: set "
            f"QWEN3_TOKENIZER to its folder ({error})."
        ) from error
