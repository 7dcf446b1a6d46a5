"""A byte-level tokenizer of a few hundred pieces, for policies that are small to the last."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from orchestra_jax.models.tokenizer import CONTROL, PAD, TAGS, TURN_END
from tests.rollout.scripted import TEMPLATE


def save_tokenizer(folder: Path, texts: Sequence[str], pieces: int = 1500) -> Path:
    """Trains it on the texts and saves it in the folder, which is returned."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=pieces, initial_alphabet=alphabet))
    backend.add_special_tokens(list(CONTROL))
    backend.add_tokens(list(TAGS))
    PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=TURN_END, pad_token=PAD, chat_template=TEMPLATE
    ).save_pretrained(folder)
    return folder
