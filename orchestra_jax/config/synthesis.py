"""Settings of experiments/synthesize.py: the product, its models, and how much is made; docs/synthesis.md."""

from dataclasses import dataclass, field

from orchestra_jax.config.choices import SynthesisTarget
from orchestra_jax.config.ranges import Settings, at_least, text, within


@dataclass(frozen=True)
class SynthesisModels(Settings):
    """The models of each part: names of the price list, at tools.server or as tools.experts_file says."""

    writer: str = "gpt-5"  # subjects, schema, entries, intents, tasks; wordings of preferences
    checker: str = "gpt-5-mini"  # finds implausible entries; reads wordings without being told what they mean
    programmer: str = "gpt-5"  # tool functions
    evolver: str = "gpt-5-mini"  # makes tasks harder; another model than the writer sees them afresh
    solver: str = "gpt-5"  # plays the agent in the finished world


@dataclass(frozen=True)
class SynthesisConfig(Settings):
    """A synthesis; training ignores it."""

    make: SynthesisTarget = SynthesisTarget.world  # a world's folder, or a file of preferences
    domain: str = text("library")  # the world in a word: the name of its folder
    about: str | None = text(None, blank=True)  # a sentence on it for the writer; null: what it makes of the word
    models: SynthesisModels = field(default_factory=SynthesisModels)
    tries: int = at_least(3, 1)  # replies asked for until one fits its schema and checks
    subjects: int = at_least(6, 1)  # subjects of the domain
    entries: int = at_least(12, 1)  # entries asked of each subject
    functions: int = at_least(12, 1)  # tools of the world
    intents: int = at_least(8, 1)  # intents of each subject
    tasks: int = at_least(2, 1)  # tasks of each intent
    harder: int = at_least(1, 0)  # evolved variants of each task
    attempts: int = at_least(8, 1)  # attempts of the solver at each task: pass@k
    turns: int = at_least(30, 1)  # turns of the solver in an attempt
    eval_share: float = within(0.2, 0, 1)  # share of intents whose tasks are held out; also of preferences' wordings
    preferences: int = at_least(1000, 1)  # requests for wordings, three of one meaning in each
