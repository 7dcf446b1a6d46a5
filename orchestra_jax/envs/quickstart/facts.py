"""The data of the quickstart world: tools and their skills, prices, and the lists that its facts are drawn from."""

from collections.abc import Mapping, Sequence

import numpy as np

from orchestra_jax.types import ToolSpec

FAMILIES = ("arith", "lookup", "easy", "hard")
EXPERTS = ("expert_small", "expert_medium", "expert_large")

# Probability that an expert answers a question of the family; experts are weak outside reasoning.
SKILLS: Mapping[str, Mapping[str, float]] = {
    "expert_small": {"arith": 0.15, "lookup": 0.05, "easy": 0.80, "hard": 0.10},
    "expert_medium": {"arith": 0.30, "lookup": 0.10, "easy": 0.90, "hard": 0.35},
    "expert_large": {"arith": 0.45, "lookup": 0.20, "easy": 0.98, "hard": 0.97},
}
# Share of facts for which the local copy of the corpus is out of date.
STALE = 0.2

# Cents per call and seconds per call, inclusive ranges from which every price list draws.
OFFERS: Mapping[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "python": ((0, 1), (2, 4)),
    "local_search": ((0, 0), (9, 15)),
    "web_search": ((2, 5), (1, 3)),
    "expert_small": ((1, 3), (2, 4)),
    "expert_medium": ((3, 6), (4, 7)),
    "expert_large": ((8, 15), (8, 14)),
}
TOOL_NAMES = tuple(OFFERS)

_QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_CODE = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
CATALOGUE: Mapping[str, ToolSpec] = {
    "python": ToolSpec("python", "Runs Python code and shows the value of its last line.", _CODE, local=True),
    "local_search": ToolSpec("local_search", "Searches a copy of the corpus kept on this machine.", _QUERY, local=True),
    "web_search": ToolSpec("web_search", "Searches the up-to-date corpus on the web.", _QUERY),
    # Experts read the user's question themselves, as in the released `answer(model)` form of the paper's tools.
    "expert_small": ToolSpec("expert_small", "A small model that reads the question.", _NOTHING),
    "expert_medium": ToolSpec("expert_medium", "A medium model that reads the question.", _NOTHING),
    "expert_large": ToolSpec("expert_large", "A large model that reads the question.", _NOTHING),
}

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
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

# attribute -> (values, question, sentence in the corpus, keyword of a good query)
ATTRIBUTES: Mapping[str, tuple[list[str], str, str]] = {
    "born": (CITIES, "Where was {name} born?", "{name} was born in {value}."),
    "job": (JOBS, "Which job does {name} have?", "{name} has the job of {value}."),
    "instrument": (INSTRUMENTS, "Which instrument does {name} play?", "{name} plays the instrument {value}."),
}


def success_probability(tool: str, family: str) -> float:
    """Return the chance that one good call of the tool answers a question of the family."""
    if tool in SKILLS:
        return SKILLS[tool][family]
    table = {("python", "arith"): 1.0, ("local_search", "lookup"): 1 - STALE, ("web_search", "lookup"): 1.0}
    return table.get((tool, family), 0.0)


def pick(values: Sequence[str], rng: np.random.Generator) -> str:
    """Return a random value; `rng.choice` would make an array of all values first."""
    return values[int(rng.integers(len(values)))]
