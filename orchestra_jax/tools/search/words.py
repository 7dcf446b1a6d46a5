"""The words of a text that search looks at."""

import functools
import re

_WORDS = re.compile(r"\w+")


def content_words(text: str) -> list[str]:
    """The words of `text` in lower case, in their order, without the English stop words of bm25s."""
    stopwords = _stopwords()
    return [word for word in _WORDS.findall(text.lower()) if word not in stopwords]


@functools.cache
def _stopwords() -> frozenset[str]:
    # Importing bm25s starts JAX, which has to wait until a run has said which devices it wants.
    from bm25s.stopwords import STOPWORDS_EN

    return frozenset(STOPWORDS_EN)
