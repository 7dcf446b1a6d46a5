"""The words of the quickstart world's questions, menus, preferences, tools and answers."""

from collections.abc import Iterator

from orchestra_jax.envs.base import OwnChat
from orchestra_jax.envs.quickstart.facts import ATTRIBUTES, CATALOGUE, DAYS, FIRST_NAMES, LAST_NAMES
from orchestra_jax.envs.quickstart.preferences import PHRASES, wordings
from orchestra_jax.envs.words import word_chat

SCAFFOLDS = (
    '\n{"name": "',
    '", "arguments": {"code": "',
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
    yield f" {' '.join(DAYS)}"
    yield from (wording for kind in PHRASES for split in ("train", "eval") for wording in wordings(kind, split))
    yield from ("What is 2 * 3 + 4 - 5?", "What is 4 + 2 * 3?")
    yield from ("Anna is older than Boris. Who is older?", "Who is younger?", "Which day comes 2 days after Monday?")
    yield from ("In how many ways can 3 people take the two end seats of row 2?", " people row")
    yield from ("How many diagonals does a polygon with 5 sides of length 2 have?", " sides length")
    yield from ("Which digit ends 2 to the power 11?", " power")
    yield " ".join(CATALOGUE)
    yield "unknown no results SyntaxError: invalid syntax. Perhaps you forgot a comma? (<string>, line 1)"
    yield " arithmetic lookup easy hard accurate cheap fast local free"
    yield "NameError: name 'seats' is not defined"
    yield "invalid decimal literal. leading zeros in decimal integer literals are not permitted; use an 0o prefix"
    yield "for octal"
    yield '{"name": "python", "arguments": {"code": "1 + 2"}}\n'
