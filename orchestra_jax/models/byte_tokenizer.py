"""A byte-level BPE trained on given texts, with Qwen3's special tokens: for small policies that read real questions.

No text is unknown to it, and decoding gives every text back. Numbers are cut into pieces of at most two digits from the
left. The sign or new line before a number belongs to it, and the colon behind a price or seconds, so that a line of a
menu is few tokens. Names and scaffolds are one token each.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from orchestra_jax.models.tokenizer import CONTROL, PAD, TAGS, TURN_END

if TYPE_CHECKING:  # importing transformers takes two seconds
    from transformers import PreTrainedTokenizerFast

_PIECES = r"[ \n]?[/$]?[0-9]{1,2}(?:s:?)?| ?\p{L}+| ?[^\s\p{L}0-9/$]+| ?[/$]|\s"
_REPEATED = 4  # often enough for a merge
_SPACE, _NEW_LINE, _COLON = "\u0120", "\u010a", ":"  # in a byte-level vocabulary


def build_byte_tokenizer(
    texts: Iterable[str],
    chat_template: str,
    scaffolds: Sequence[str] = (),
    *,
    names: Sequence[str] = (),
    prices: Sequence[str] = (),
    size: int = 800,
) -> "PreTrainedTokenizerFast":
    """Train the tokenizer; the same arguments give the same one.

    Args:
        texts: what its pieces are learned from.
        chat_template: Jinja template, stored with the tokenizer.
        scaffolds: literal strings that become one token each wherever they occur.
        names: ASCII names of tools, one token each where nothing of a word comes before or after them. Unlike a
            scaffold a name is text: whoever writes it writes no control token.
        prices: such as "$2600", one token each where a space comes before and no further digit follows, with a colon
            or without.
        size: pieces at most, numbers, names and prices not included.
    """
    from transformers import PreTrainedTokenizerFast

    longest_first = sorted(names, key=lambda name: (-len(name), name))
    whole = "".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])|" for name in longest_first)
    whole += "".join(rf" {re.escape(price)}(?![.0-9]):?|" for price in prices)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(whole + _PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=_REPEATED,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    learned = json.loads(backend.to_str())["model"]
    pieces = sorted(learned["vocab"], key=learned["vocab"].get)
    priced = [f"{_SPACE}{price}{end}" for price in prices for end in ("", _COLON)]
    vocab = dict.fromkeys([*pieces, *_numbers(), *longest_first, *priced])
    merges = [tuple(pair) for pair in learned["merges"]]
    # Pieces that are in the vocabulary as they stand need no merges: numbers, names and prices have none.
    backend.model = models.BPE({piece: rank for rank, piece in enumerate(vocab)}, merges, ignore_merges=True)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in (*TAGS, *scaffolds)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=TURN_END,
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )


def _numbers() -> list[str]:
    """Return the numbers that are one piece, with the sign before them and the unit behind."""
    numbers = [*map(str, range(100)), *(f"{digit:02d}" for digit in range(10))]
    signed = [sign + number for sign in ("", _SPACE, _NEW_LINE, "/", f"{_SPACE}$") for number in numbers]
    return [*signed, *(f"{_SPACE}{number}s{end}" for number in range(100) for end in ("", _COLON))]
