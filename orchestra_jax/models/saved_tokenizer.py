"""Load the tokenizer of a Hugging Face folder, unchanged."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing transformers takes two seconds
    from transformers import PreTrainedTokenizerFast


def load(path: str | Path) -> "PreTrainedTokenizerFast":
    """Load the tokenizer of a Hugging Face directory (tokenizer.json, tokenizer_config.json), or of an id on the hub.

    Raises:
        FileNotFoundError: the directory holds no tokenizer.json, or the hub's cannot be had.
    """
    from orchestra_jax.io import hub

    path = hub.local(path, "model", hub.SMALL)
    if not (Path(path) / "tokenizer.json").is_file():
        raise FileNotFoundError(
            f"No tokenizer.json in {str(path)!r}; give a Hugging Face model directory or one that this project saved."
        )
    from transformers import AutoTokenizer

    tokenizer: "PreTrainedTokenizerFast" = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    return tokenizer
