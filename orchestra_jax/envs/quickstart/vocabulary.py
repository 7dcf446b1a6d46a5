"""The words of the quickstart world's questions, menus, preferences, tools and answers."""

from collections.abc import Iterator

from orchestra_jax.envs.base import OwnChat
from orchestra_jax.envs.quickstart.facts import ATTRIBUTES, BOSS, CATALOGUE, FIRST_NAMES, LAST_NAMES
from orchestra_jax.envs.quickstart.preferences import PHRASES, wordings
from orchestra_jax.envs.words import word_chat

SCAFFOLDS = (
    '\n{"name": "',
    '", "arguments": {"code": "',
    '", "arguments": {"expression": "',
    '", "arguments": {"query": "',
    '", "arguments": {}}\n',
    '"}}\n',
)


def quickstart_chat() -> OwnChat:
    """Return the chat of every quickstart world: the words do not depend on its seed."""
    return word_chat(texts(), SCAFFOLDS)


def texts() -> Iterator[str]:
    """Yield texts that together hold every word; all numbers are in a word tokenizer anyway."""
    names = f" {' '.join(FIRST_NAMES)} {' '.join(LAST_NAMES)}"
    yield names
    for attribute, (values, question, sentence) in ATTRIBUTES.items():
        yield f" {attribute} {' '.join(values)}"
        yield from (question.format(name="Alice Adler"), sentence.format(name="Alice Adler", value=values[0]))
    yield from (BOSS.format(name="Alice Adler", value="Boris Kim"), " boss", "Who is the boss of Alice Adler?")
    yield from ("How old are Alice Adler and Boris Kim together?", "How much older is Alice Adler than Boris Kim?")
    yield from (wording for kind in PHRASES for split in ("train", "eval") for wording in wordings(kind, split))
    yield from ("What is 2 * 3 + 4 - 5?", "What is 4 + 2 * 3?", "-5")
    yield from ("Anna is older than Boris. Who is older?", "Who is younger?")
    yield " ".join(CATALOGUE)
    yield "unknown no results SyntaxError: invalid syntax. Perhaps you forgot a comma? (<string>, line 1)"
    yield " first arithmetic lookup compare accurate cheap fast local"
    yield "NameError: name 'Adler' is not defined"
    yield "invalid decimal literal. leading zeros in decimal integer literals are not permitted; use an 0o prefix"
    yield "for octal"
    yield '{"name": "python", "arguments": {"code": "1 + 2"}}\n'
