"""The data of the quickstart world: tools and what they can do, and the lists that its facts are drawn from."""

from collections.abc import Mapping, Sequence

import numpy as np

from orchestra_jax.types import ToolSpec

COMPOUND = ("sum", "hops")  # two look-ups and a calculation; a person found by a look-up, then a fact about them
EXPERTS = ("expert_small", "expert_medium", "expert_large")
# The tools that do each kind of step. Prices are drawn so that any of them may be the cheapest, fastest or dearest.
RIVALS: Mapping[str, tuple[str, ...]] = {
    "arith": ("python", "calculator"),
    "lookup": ("local_search", "web_search"),
    "compare": EXPERTS,
}
FAMILIES = (*RIVALS, *COMPOUND)  # of questions; one that is named like a kind of step is such a step alone
# Probability that a good call does its step: a share of the local copy's facts is out of date.
CHANCES = {
    "python": 1.0, "calculator": 1.0, "local_search": 0.92, "web_search": 1.0,
    "expert_small": 0.85, "expert_medium": 0.93, "expert_large": 0.99,
}  # fmt: skip  # tools in the first line, experts in the second


def _spec(name: str, description: str, argument: str = "", *, local: bool = False) -> ToolSpec:
    """Return a tool that takes one text, or nothing: experts read the user's question themselves (`answer(model)`)."""
    given = {argument: {"type": "string"}} if argument else {}
    schema = {"type": "object", "properties": given, "required": list(given), "additionalProperties": False}
    return ToolSpec(name, description, schema, local=local)


# A description begins with the step that the tool does, in the word that demonstrations say.
CATALOGUE: Mapping[str, ToolSpec] = {
    spec.name: spec
    for spec in (
        _spec("python", "arithmetic: runs Python code and shows the value of its last line.", "code", local=True),
        _spec("calculator", "arithmetic: a service on the web that computes an expression.", "expression"),
        _spec("local_search", "lookup: searches a copy of the corpus kept on this machine.", "query", local=True),
        _spec("web_search", "lookup: searches the up-to-date corpus on the web.", "query"),
        _spec("expert_small", "compare: a small model that reads the question."),
        _spec("expert_medium", "compare: a medium model that reads the question."),
        _spec("expert_large", "compare: a large model that reads the question."),
    )
}
TOOL_NAMES = tuple(CATALOGUE)


def original(spec: ToolSpec) -> str:
    """Return the name in the catalogue of a tool, which a menu may show under another name (`renamed`)."""
    return next(name for name, known in CATALOGUE.items() if known.description == spec.description)


FIRST_NAMES = (
    "Alice Anna Boris Bruno Carla Cyrus Daria David Elena Emil Fatima Felix Greta Hana Hugo Ines Ivan Jana Jonas Karl "
    "Lara Leon Lina Marco Maya Milan Nadia Nina Omar Oscar Paula Pavel Rita Robin Rosa Sami Sara Stefan Tara Tomas "
    "Vera Viktor Wanda Yara Yusuf Zoe"
).split()
LAST_NAMES = (
    "Adler Bauer Becker Berg Castro Costa Cruz Duarte Ebert Falk Fischer Garcia Haas Hansen Ivanov Jensen Keller Kim "
    "Klein Kovac Lang Lopez Marin Meyer Moreno Nagy Novak Olsen Ortega Patel Petrov Popov Quist Reyes Rossi Sato "
    "Schmidt Silva Simon Sousa Tanaka Torres Vargas Vogel Weber Wolf Young Zeman"
).split()
CITIES = (
    "Accra Athens Berlin Bogota Cairo Dakar Delhi Dublin Geneva Hanoi Havana Lagos Lima Lisbon London Madrid Manila "
    "Minsk Nairobi Oslo Paris Porto Prague Quito Rome Seoul Sofia Sydney Tokyo Vienna Warsaw Zurich"
).split()
JOBS = (
    "actor baker barber builder carpenter chef clerk doctor driver farmer fisher judge lawyer miner nurse painter "
    "pilot plumber poet potter sailor singer tailor teacher waiter writer"
).split()
INSTRUMENTS = (
    "banjo bassoon cello clarinet drum flute guitar harp horn lute oboe organ piano trumpet tuba violin".split()
)
AGES = [str(age) for age in range(11, 50)]  # the sum of two is one token

# attribute -> (values, question, sentence in the corpus); the attribute is the keyword of a good query
ATTRIBUTES: Mapping[str, tuple[list[str], str, str]] = {
    "born": (CITIES, "Where was {name} born?", "{name} was born in {value}."),
    "job": (JOBS, "Which job does {name} have?", "{name} has the job of {value}."),
    "instrument": (INSTRUMENTS, "Which instrument does {name} play?", "{name} plays the instrument {value}."),
    "age": (AGES, "How old is {name}?", "{name} has the age of {value}."),
}
BOSS = "The boss of {name} is {value}."  # a boss has none: a search for one finds the right sentence


def pick(values: Sequence[str], rng: np.random.Generator) -> str:
    """Return a random value; `rng.choice` would make an array of all values first."""
    return values[int(rng.integers(len(values)))]
