"""A byte-level BPE of given texts: exact round trips, menus in few tokens, the same in every process."""

import os
import subprocess
import sys

import pytest

from orchestra_jax.models.byte_tokenizer import build_byte_tokenizer
from orchestra_jax.models.tokenizer import TURN_END

SCAFFOLDS = ('<tool_call>\n{"name": "', '", "arguments": {}}\n</tool_call>')
TEXTS = ["How many cars does Robert have?"] * 8
TEMPLATE = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
BUILD = (
    "import hashlib; from tests.models.test_byte_tokenizer import built;"
    "print(hashlib.sha256(built().backend_tokenizer.to_str().encode()).hexdigest())"
)


def built():
    return build_byte_tokenizer(TEXTS, TEMPLATE, SCAFFOLDS, size=400)


@pytest.fixture(scope="module")
def pieces():
    return built()


def split(tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([token]) for token in tokenizer.encode(text, add_special_tokens=False)]


@pytest.mark.parametrize("text", ["Robert has 20 cars.", "  naïve — 東京\n\t\x00 1e-3 $5/7", "", "007/$$12000s"])
def test_every_text_comes_back_exactly(pieces, text):
    assert pieces.decode(pieces.encode(text, add_special_tokens=False)) == text


def test_a_line_of_a_menu_is_few_tokens_and_its_name_is_that_of_a_call(pieces):
    assert split(pieces, "\n87/96/5 $2800 3s:K") == ["\n87", "/96", "/5", " $28", "00", " 3s:", "K"]
    assert split(pieces, "\nK: 05/7") == ["\n", "K", ":", " 05", "/7"]
    assert split(pieces, '<tool_call>\n{"name": "K", "arguments": {}}\n</tool_call>') == [
        SCAFFOLDS[0],
        "K",
        SCAFFOLDS[1],
    ]


def test_a_name_is_one_token_and_still_text():
    names = ["large", "gpt-4o", "gpt-4o-mini-2024-07-18", "python", "a"]
    tokenizer = build_byte_tokenizer(TEXTS, TEMPLATE, SCAFFOLDS, names=names, size=400)
    for name in names:
        assert split(tokenizer, f"\n87/96 $20:{name}\n")[-3:] == [":", name, "\n"]
        assert split(tokenizer, f"{SCAFFOLDS[0]}{name}{SCAFFOLDS[1]}") == [SCAFFOLDS[0], name, SCAFFOLDS[1]]
    assert not set(names) & set(tokenizer.get_added_vocab())
    within = "enlarged, larger, gpt-4o-maxi, python3, Robert's large car"
    assert {"large", "gpt-4o", "python"} & set(split(tokenizer, within)) == set()
    assert tokenizer.decode(tokenizer.encode(within, add_special_tokens=False)) == within
    plain = built()
    assert split(tokenizer, "How many cars does Robert have?") == split(plain, "How many cars does Robert have?")


def test_a_price_is_one_token_and_others_are_cut():
    tokenizer = build_byte_tokenizer(TEXTS, TEMPLATE, SCAFFOLDS, prices=["$1.5", "$2600"], size=400)
    assert split(tokenizer, "\n87/96 $2600 3s:K") == ["\n87", "/96", " $2600", " 3s:", "K"]
    assert split(tokenizer, "\n87/96 $1.5:K\n5") == ["\n87", "/96", " $1.5:", "K", "\n5"]
    for other in (" $26001", " $2600.5", "in$2600", " $1.55", " $15"):
        assert not {" $2600", " $1.5"} & set(split(tokenizer, other))
        assert tokenizer.decode(tokenizer.encode(other, add_special_tokens=False)) == other


def test_words_of_the_texts_are_pieces_and_others_are_spelled(pieces):
    assert split(pieces, " Robert cars") == [" Robert", " cars"]
    assert len(split(pieces, " Xylophone")) > 1
    assert pieces.eos_token == TURN_END


def test_another_process_builds_the_same(pieces):
    environment = {**os.environ, "PYTHONHASHSEED": "7", "JAX_PLATFORMS": "cpu"}
    hashes = {
        subprocess.run(
            [sys.executable, "-c", BUILD],
            env=environment | {"RAYON_NUM_THREADS": threads},
            check=True,
            capture_output=True,
        ).stdout
        for threads in ("1", "4")
    }
    assert len(hashes) == 1
