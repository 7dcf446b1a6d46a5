"""A tiny word-level tokenizer with Qwen3's special tokens; `models.saved_tokenizer` loads others.

It is for models of a few million parameters, which learn to copy a name or an expression from the question into the
JSON of a tool call. Copying is easy only if the copy has the same tokens. With a plain splitter it has not: " Alice"
stands after a space in the sentence, "Alice" after a quote in the JSON. A space token of its own would double the
length. So the vocabulary holds **one form of every word and number, the one with a leading space**. Where the text has
no space, a glue mark (U+2060) stands before it, which removes the space on decoding:

    What is 37 * 4?      ->  " What" " is" " 37" " *" " 4" "?"
    {"code": "37 * 4"}   ->  {"code": "<glue>   " 37" " *" " 4"   "}

Rules, in the order tried: literal scaffolds; a word (letters and `_`) with its space; one or two digits, cut from the
left ("567" -> " 56" "7"), the first with its space; a symbol between two spaces with the left one (" *"); any other
single character. Symbols and scaffolds carry a following glue mark in their own piece, newlines and special tokens do
not: turns meet there, and a prompt's last token must not depend on what is sampled next.

Decoding joins the pieces and removes "<glue><space>", which gives back every text of known pieces exactly; a piece that
is not in the vocabulary becomes `<unk>`. All one- and two-digit pieces are always in it.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers import models as backends

if TYPE_CHECKING:  # importing transformers takes two seconds
    from transformers import PreTrainedTokenizerFast

PAD = "<|endoftext|>"
TURN_END = "<|im_end|>"
UNKNOWN = "<unk>"
# Qwen3's ids follow this order too; the tags are added tokens but not "special", so skip_special_tokens keeps them.
CONTROL = (PAD, "<|im_start|>", TURN_END)
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

_GLUE = "\u2060"
_RUN_STARTS = r"(?<![ \p{L}_])(?=[\p{L}_])|(?<![ 0-9])(?=[0-9])"
_PIECES = (
    r" ?[\p{L}_]+",
    r" ?[0-9]{1,2}",
    r" [^\p{L}0-9_\s\x{2060}](?= )",
    r"[^\p{L}0-9_\s\x{2060}]\x{2060}?",
    r"[\s\S]",
)


def build_word_tokenizer(
    texts: Iterable[str], chat_template: str, scaffolds: Sequence[str] = ()
) -> "PreTrainedTokenizerFast":
    """Build a word-level tokenizer whose vocabulary is every piece of `texts` (see the module's docstring).

    Args:
        texts: whole rendered conversations or parts of them; special tokens and tags in them are recognised.
        chat_template: Jinja template, stored with the tokenizer.
        scaffolds: literal strings that become one token each wherever they occur, such as `{"name": "`.

    Raises:
        ValueError: a scaffold is empty or contains a special token or the glue mark.
    """
    from transformers import PreTrainedTokenizerFast

    added = (*CONTROL, *TAGS, UNKNOWN)
    for scaffold in scaffolds:
        if not scaffold or _GLUE in scaffold or any(token in scaffold for token in added):
            raise ValueError(f"Scaffold {scaffold!r} must be non-empty text without special tokens or U+2060.")
    normalizer = normalizers.Sequence(
        [normalizers.Replace(_GLUE, "\ufffd"), normalizers.Replace(Regex(_RUN_STARTS), _GLUE + " ")]
    )
    # A scaffold that starts with a word takes the word's one form: its space, and the glue mark left outside.
    literals = list(dict.fromkeys(normalizer.normalize_str(s).removeprefix(_GLUE) for s in scaffolds))
    splitter = pre_tokenizers.Split(Regex(_pattern(literals)), behavior="isolated")

    pieces: set[str] = set()
    boundary = re.compile("|".join(re.escape(token) for token in added))
    for text in texts:
        for segment in boundary.split(text):
            pieces.update(piece for piece, _ in splitter.pre_tokenize_str(normalizer.normalize_str(segment)))
    symbols = {piece.removesuffix(_GLUE) for piece in pieces if _is_symbol(piece)}
    pieces |= symbols | {symbol + _GLUE for symbol in symbols}
    glued = [form for s in literals for form in ((s,) if s.endswith("\n") else (s, s + _GLUE))]
    digits = [str(d) for d in range(10)] + [f"{d:02d}" for d in range(100)]
    # The order is fixed by the arguments' content.
    ordered = [*added, *glued, _GLUE, *(f" {d}" for d in digits), *digits, *sorted(pieces)]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(ordered))}

    backend = Tokenizer(backends.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.normalizer = normalizer
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.Sequence(
        [decoders.Fuse(), decoders.Replace(_GLUE + " ", ""), decoders.Replace(_GLUE, "")]
    )
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (*CONTROL, UNKNOWN)])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=TURN_END,
        unk_token=UNKNOWN,
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )


def _pattern(literals: Sequence[str]) -> str:
    """Join the alternatives, longest scaffolds first; a newline at a scaffold's end never takes the glue mark."""
    longest_first = sorted(literals, key=lambda s: (-len(s), s))
    scaffolds = [re.escape(s) + ("" if s.endswith("\n") else _GLUE + "?") for s in longest_first]
    return "|".join([*scaffolds, *_PIECES])


def _is_symbol(piece: str) -> bool:
    bare = piece.removesuffix(_GLUE)
    return len(bare) == 1 and not bare.isalnum() and not bare.isspace() and bare != "_"
