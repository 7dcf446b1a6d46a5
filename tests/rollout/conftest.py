"""Tokenizers that what is said is encoded with: this world's words, and Qwen3's where its files are. Stub servers."""

import pytest

from orchestra_jax.models import tokenizer as tok
from tests.rollout.scripted import word_tokenizer


@pytest.fixture(scope="session")
def words():
    return word_tokenizer()


@pytest.fixture(scope="session")
def real(data_dir):
    return tok.load(data_dir / "qwen3-tokenizer")


@pytest.fixture(params=["words", "real"])
def tokenizer(request):
    return request.getfixturevalue(request.param)
