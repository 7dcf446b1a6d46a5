"""The quickstart world: generated facts, question families, tools, price lists and preferences, all from one seed.

Four families of plain-English questions, each with a different right tool:

======== ========================================= =============================================================
family   example                                   tools that can answer it
======== ========================================= =============================================================
arith    What is 37 * 4 + 9?                       the Python sandbox
lookup   Where was Alice Moreno born?              local search (free, slow, partly out of date), web search
easy     Boris is older than Anna. Who is younger? experts: small .80, medium .90, large .98
hard     Which digit ends 7 to the power 45?       the large expert
======== ========================================= =============================================================

Questions, people, price lists and preference wordings of the evaluation split never occur in training.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import perm

import numpy as np

from orchestra_jax.types import Preference, Task, ToolSpec

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

# Share of menus that offer every tool able to answer.
CHOICE_SHARE = 0.8
FAMILY_SHARES = (0.26, 0.32, 0.22, 0.20)
# The same for policy steps: in lookup and easy questions the right tool depends on the preference, which takes longest
# to learn.
TRAINING_SHARES = (0.14, 0.34, 0.38, 0.14)

# Cents per call and seconds per call, inclusive ranges from which every price list draws.
PRICE_CENTS = {
    "python": (0, 1),
    "local_search": (0, 0),
    "web_search": (2, 5),
    "expert_small": (1, 3),
    "expert_medium": (3, 6),
    "expert_large": (8, 15),
}
LATENCY_S = {
    "python": (2, 4),
    "local_search": (9, 15),
    "web_search": (1, 3),
    "expert_small": (2, 4),
    "expert_medium": (4, 7),
    "expert_large": (8, 14),
}
TOOL_NAMES = tuple(PRICE_CENTS)

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
NUMBER_WORDS = ("one", "two", "three", "four", "five", "six")

# attribute -> (values, question, sentence in the corpus, keyword of a good query)
ATTRIBUTES: Mapping[str, tuple[list[str], str, str]] = {
    "born": (CITIES, "Where was {name} born?", "{name} was born in {value}."),
    "job": (JOBS, "Which job does {name} have?", "{name} has the job of {value}."),
    "instrument": (INSTRUMENTS, "Which instrument does {name} play?", "{name} plays the instrument {value}."),
}

# What a user may ask for, by kind of preference; a wording is a phrase in a frame.
PHRASES: Mapping[str, tuple[str, ...]] = {
    "accuracy": (
        "be right", "get it right", "make no mistake", "give the right answer", "be accurate",
        "find the correct answer",
    ),
    "cost": (
        "keep the cost low", "spend little money", "be cheap", "save money", "use a small budget",
        "keep the bill small",
    ),
    "fast": ("be fast", "be quick", "hurry", "answer soon", "save time", "waste no time"),
    "local": (
        "stay on this machine", "use local tools", "keep my data here", "keep it local", "keep my data private",
        "stay local",
    ),
    "free": (
        "use free tools", "avoid paid tools", "pay nothing", "take free tools", "keep away from paid tools",
        "stick to free tools",
    ),
}  # fmt: skip
PHRASES = {
    **PHRASES,
    **{
        f"{first}_{second}": tuple(f"{a} and {b}" for a in PHRASES[name] for b in PHRASES["fast"])
        for name, first, second in (("cost", "cheap", "fast"), ("local", "local", "fast"))
    },
}
FRAMES = ("{}", "Please {}", "Above all {}", "Try to {}", "You must {}", "I want you to {}", "Remember to {}")
# Shares are such that the preferences for and against each tool are about as frequent.
PREFERENCE_SHARES = {
    "accuracy": 0.40, "cost": 0.16, "fast": 0.14, "local": 0.12, "free": 0.04, "cheap_fast": 0.10, "local_fast": 0.04,
}  # fmt: skip


@cache
def wordings(kind: str, split: str) -> tuple[str, ...]:
    """The sentences of one kind of preference. No sentence is in both splits, though every phrase and frame is."""
    found = []
    for f, frame in enumerate(FRAMES):
        for p, phrase in enumerate(PHRASES[kind]):
            if ((f + p + p // 6) % 4 == 0) == (split == "eval"):
                sentence = frame.format(phrase) + "."
                found.append(sentence[0].upper() + sentence[1:])
    return tuple(found)


@dataclass(frozen=True)
class Question:
    """A question before it is posed under a menu and a preference.

    Attributes:
        family, text, answer: what is asked and the truth.
        keywords: words of the question that make a good query (lookup) or program (arith). Elsewhere no tool makes use
            of them, but calls that are demonstrated there teach copying, for which arithmetic alone is too rare.
        distractors: plausible wrong answers.
    """

    family: str
    text: str
    answer: str
    keywords: str
    distractors: tuple[str, ...]


def _pick(values: Sequence[str], rng: np.random.Generator) -> str:
    """As `rng.choice`, which makes an array of all values first."""
    return values[int(rng.integers(len(values)))]


def _held_out(*facts: object) -> bool:
    """Whether a question about these numbers or names, in whatever order, belongs to the evaluation split."""
    return zlib.crc32(repr(sorted(map(str, facts))).encode()) % 5 == 0


class QuickstartWorld:
    """Everything that is fixed by the seed: people and their facts, the two corpora, price lists."""

    def __init__(self, seed: int = 0, people: int = 1600, price_lists: int = 64) -> None:
        self.seed = seed
        rng = np.random.default_rng([seed, 0])
        names = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
        chosen = [names[i] for i in rng.permutation(len(names))[:people]]
        self.people = {"train": chosen[: people * 3 // 4], "eval": chosen[people * 3 // 4 :]}
        self.facts = {
            (name, attribute): _pick(values, rng) for name in chosen for attribute, (values, _, _) in ATTRIBUTES.items()
        }
        self.stale = {key for key in self.facts if rng.random() < STALE}
        self.local_facts = {
            (name, attribute): _pick([v for v in ATTRIBUTES[attribute][0] if v != value], rng)
            if (name, attribute) in self.stale
            else value
            for (name, attribute), value in self.facts.items()
        }
        lists: dict[tuple[tuple[int, int], ...], None] = {}
        while len(lists) < price_lists:
            lists[
                tuple(
                    (int(rng.integers(low, high + 1)), int(rng.integers(fast, slow + 1)))
                    for (low, high), (fast, slow) in zip(PRICE_CENTS.values(), LATENCY_S.values(), strict=True)
                )
            ] = None
        half = price_lists * 3 // 4
        self.price_lists = {"train": list(lists)[:half], "eval": list(lists)[half:]}

    @staticmethod
    def _passages(facts: Mapping[tuple[str, str], str]) -> list[str]:
        return [ATTRIBUTES[attribute][2].format(name=name, value=value) for (name, attribute), value in facts.items()]

    @cached_property
    def local_corpus(self) -> list[str]:
        return self._passages(self.local_facts)

    @cached_property
    def web_corpus(self) -> list[str]:
        return self._passages(self.facts)

    def question(self, family: str, split: str, rng: np.random.Generator) -> Question:
        """A random question of the family; no question, whatever the order of its parts, is in both splits."""
        if family == "lookup":
            return self._lookup(split, rng)
        make = {"arith": _arithmetic, "easy": _easy, "hard": _hard}[family]
        while True:
            question, facts = make(rng)
            if _held_out(*facts) == (split == "eval"):
                return question

    def _lookup(self, split: str, rng: np.random.Generator) -> Question:
        name = _pick(self.people[split], rng)
        attribute = _pick(list(ATTRIBUTES), rng)
        values, question, _ = ATTRIBUTES[attribute]
        truth = self.facts[name, attribute]
        wrong = tuple(v for v in rng.permutation(values)[:6].tolist() if v != truth)
        return Question("lookup", question.format(name=name), truth, f"{name} {attribute}", wrong)

    def menu(self, family: str, split: str, rng: np.random.Generator, *, full: bool = False) -> tuple[ToolSpec, ...]:
        """A random subset of the tools that can still answer the question, priced by a random list of the split."""
        able = [name for name in TOOL_NAMES if success_probability(name, family) >= 0.5]
        # Mostly all the tools that can do it, so that there is something to choose; sometimes just one of them.
        needed = able if rng.random() < CHOICE_SHARE else [_pick(able, rng)]
        rest = [name for name in TOOL_NAMES if name not in able]
        extra = rng.permutation(rest)[: int(rng.integers(1, len(rest) + 1))].tolist()
        offered = set(TOOL_NAMES) if full else {*needed, *extra}
        prices = self.price_lists[split][int(rng.integers(len(self.price_lists[split])))]
        menu = [
            ToolSpec(
                name,
                CATALOGUE[name].description,
                CATALOGUE[name].parameters,
                price_usd=cents / 100,
                latency_s=float(seconds),
                local=CATALOGUE[name].local,
            )
            for name, (cents, seconds) in zip(TOOL_NAMES, prices, strict=True)
            if name in offered
        ]
        return tuple(menu[i] for i in rng.permutation(len(menu)))

    def task(self, split: str, index: int) -> Task:
        """Instance `index` of the split: question, menu and preference drawn from (seed, split, index)."""
        return self.paired_tasks(split, index, 1)[0]

    def paired_tasks(self, split: str, index: int, count: int, shares: Sequence[float] = FAMILY_SHARES) -> list[Task]:
        """Instance `index` under `count` different preferences; families are drawn by `shares`.

        The further ones are those that call for another tool, as far as there are such: in one step the policy sees
        the same question and menu with different right choices, and what it learns of the preference cannot be drowned
        by what it learns of the family.
        """
        rng = np.random.default_rng([self.seed, 1 + ("train", "eval").index(split), index])
        family = FAMILIES[int(rng.choice(4, p=shares))]
        question = self.question(family, split, rng)
        menu = self.menu(family, split, rng)
        kinds = rng.choice(
            list(PREFERENCE_SHARES), len(PREFERENCE_SHARES), replace=False, p=list(PREFERENCE_SHARES.values())
        ).tolist()
        tasks = [
            self.pose(
                f"{split}-{index}" + (f"-{n}" if n else ""),
                question,
                menu,
                self.preference(kind, split, family, menu, rng),
            )
            for n, kind in enumerate(kinds)
        ]
        # As a group of rollouts sees it that has learned who can answer: Eq. 2 normalises over those tools only.
        able = [spec for spec in menu if success_probability(spec.name, family) >= 0.5]
        best = [best_tool(task, able) for task in tasks]
        first = {tool: best.index(tool) for tool in best}
        order = sorted(range(len(tasks)), key=lambda n: first[best[n]] != n)
        return [tasks[n] for n in order[:count]]

    def swap_tasks(self, index: int, kinds: tuple[str, ...]) -> list[Task]:
        """Held-out question `index` with every tool on the menu, posed once under each kind of preference."""
        rng = np.random.default_rng([self.seed, 3, index])
        family = FAMILIES[int(rng.choice(4, p=FAMILY_SHARES))]
        question = self.question(family, "eval", rng)
        menu = self.menu(family, "eval", rng, full=True)
        return [
            self.pose(f"swap-{index}-{kind}", question, menu, self.preference(kind, "eval", family, menu, rng))
            for kind in kinds
        ]

    @staticmethod
    def pose(task_id: str, question: Question, menu: tuple[ToolSpec, ...], preference: Preference) -> Task:
        extra = {"keywords": question.keywords, "distractors": question.distractors}
        return Task(task_id, question.text, (question.answer,), menu, preference, question.family, extra)

    def preference(
        self, kind: str, split: str, family: str, menu: tuple[ToolSpec, ...], rng: np.random.Generator
    ) -> Preference:
        """Wording and vector P (its elements sum to 1); tools are weighted only where they can answer the question."""
        if kind not in PHRASES:
            raise ValueError(f"Unknown preference kind {kind!r}; known: {', '.join(PHRASES)}.")
        wording = _pick(wordings(kind, split), rng)
        able = [spec for spec in menu if success_probability(spec.name, family) >= 0.5]
        local = {spec.name: 0.5 for spec in able if spec.local}
        free = {spec.name: 0.2 for spec in able if spec.price_usd == 0}
        match kind:
            case "accuracy":
                return Preference(kind, wording)
            case "cost":
                return Preference(kind, wording, {}, 0.5, compute=0.5)
            case "fast":
                return Preference(kind, wording, {}, 0.5, latency=0.5)
            case "local":
                return Preference(kind, wording, local, 0.5 if local else 1.0)
            case "free":
                return Preference(kind, wording, free, 0.5, compute=0.3 if free else 0.5)
            case "cheap_fast":
                return Preference(kind, wording, {}, 0.4, compute=0.15, latency=0.45)
            case _:  # local_fast
                return Preference(kind, wording, local, 0.4, latency=0.1 if local else 0.6)


def _arithmetic(rng: np.random.Generator) -> tuple[Question, tuple[object, ...]]:
    while True:
        a, b, c = (int(x) for x in (*rng.integers(2, 33, 2), rng.integers(2, 100)))
        expression, value = [
            (f"{a} * {b}", a * b),
            (f"{a} * {b} + {c}", a * b + c),
            (f"{a} * {b} - {c}", a * b - c),
            (f"{c} + {a} * {b}", c + a * b),
        ][int(rng.integers(4))]
        # Results below 100 are one token: what is hard here is the choice of tools, not the copying of digits.
        if 0 <= value < 100:
            wrong = tuple(str(abs(value + d)) for d in (10, -10, 2, -1) if abs(value + d) != value)
            facts = expression.replace("+", " ").replace("-", " ").replace("*", " ").split()
            return Question("arith", f"What is {expression}?", str(value), expression, wrong), tuple(facts)


def _easy(rng: np.random.Generator) -> tuple[Question, tuple[object, ...]]:
    if rng.random() < 0.5:
        first, second = (str(n) for n in rng.choice(FIRST_NAMES, 2, replace=False))
        elder = bool(rng.random() < 0.5)
        text = f"{first} is older than {second}. Who is {'older' if elder else 'younger'}?"
        answer, wrong = (first, second) if elder else (second, first)
        return Question("easy", text, answer, f"{first} {second} older", (wrong,)), (first, second)
    start, step = int(rng.integers(7)), int(rng.integers(2, 7))
    answer = DAYS[(start + step) % 7]
    text = f"Which day comes {step} days after {DAYS[start]}?"
    others = tuple(day for day in DAYS if day != answer)
    return Question("easy", text, answer, f"{DAYS[start]} {step} days", others), (DAYS[start], step)


def _hard(rng: np.random.Generator) -> tuple[Question, tuple[object, ...]]:
    facts: tuple[object, ...]
    kind = int(rng.integers(3))
    if kind == 0:
        people, rows = int(rng.integers(3, 11)), int(rng.integers(2, 40))
        text = f"In how many ways can {people} people take the two end seats of row {rows}?"
        value, keywords, facts = perm(people, 2), f"{people} people row {rows}", (people, rows)
    elif kind == 1:
        sides, length = int(rng.integers(5, 16)), int(rng.integers(2, 40))
        text = f"How many diagonals does a polygon with {sides} sides of length {length} have?"
        value, keywords, facts = sides * (sides - 3) // 2, f"{sides} sides length {length}", (sides, length)
    else:
        base, power = int(rng.integers(2, 10)), int(rng.integers(11, 100))
        text, value = f"Which digit ends {base} to the power {power}?", pow(base, power, 10)
        keywords, facts = f"{base} power {power}", (base, power)
    wrong = tuple(str(abs(value + d)) for d in (1, -1, 3, -2) if abs(value + d) != value)
    return Question("hard", text, str(value), keywords, wrong), facts


class PairedTasks:
    """The training split as questions, each under several preferences (`paired_tasks`): item i is a list of tasks."""

    def __init__(self, world: QuickstartWorld, length: int, count: int) -> None:
        self._world, self._length, self._count = world, length, count

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> list[Task]:
        return self._world.paired_tasks("train", index, self._count, TRAINING_SHARES)


def success_probability(tool: str, family: str) -> float:
    """Chance that one good call of the tool answers a question of the family."""
    if tool in SKILLS:
        return SKILLS[tool][family]
    table = {("python", "arith"): 1.0, ("local_search", "lookup"): 1 - STALE, ("web_search", "lookup"): 1.0}
    return table.get((tool, family), 0.0)


def best_tool(task: Task, tools: Sequence[ToolSpec] = ()) -> str:
    """The tool with the highest expected preference utility, knowing the family, every skill, price and latency.

    The expected utility of a tool is its success probability times P . features, with cost and latency min-max
    normalised over `tools` (Eq. 2 with one run of each as the group), by default the whole menu.
    """
    preference, tools = task.preference, tools or task.tools

    def saving(value: Callable[[ToolSpec], float]) -> Mapping[str, float]:
        values = {spec.name: value(spec) for spec in tools}
        low, high = min(values.values()), max(values.values())
        return {name: (high - v) / (high - low) if high > low else 0.0 for name, v in values.items()}

    cheap, fast = saving(lambda spec: spec.price_usd or 0.0), saving(lambda spec: spec.latency_s or 0.0)

    def expected(spec: ToolSpec) -> float:
        utility = preference.outcome + preference.compute * cheap[spec.name] + preference.latency * fast[spec.name]
        return success_probability(spec.name, task.family) * (utility + preference.tools.get(spec.name, 0.0))

    return max(tools, key=expected).name
