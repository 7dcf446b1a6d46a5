"""Real questions and the recorded answers of real models: nothing is paid, and nothing is simulated but the waiting.

Settings (`env.options`): `path`, a table of `readers`; `references`, questions with answers if the table is our own
record of calls; `unseen`, models that no training menu offers; `observation`, "answer" or "full", the text that a call
of a model shows; `python`, whether menus have the sandbox; `wishes`, what users want (`wishes.py`); `longest`, most
characters of a question that is trained on; `evaluate`, the split of evaluation, "validation" or "test";
`unseen_prices`, a price list that only the benchmark of that name has. "auto" of `unseen` and `unseen_prices` holds
models and a list back of the public answers, and nothing of a table of one's own; of `python` it adds the sandbox if a
question has code.

A menu is short, because a small policy has to read it for every question: the cheapest first, each model with its
evidence, and the dollars and seconds of a call like those of the training split at the instance's prices.

The split by question depends on `env.seed` and not on the run's. Menus are drawn by `tools.menu` and
`tools.evaluation.menu`, prices by `pricing.randomise`; held-out questions have the prices of `pricing.name`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from orchestra_jax.config.schema import ConfigError, RandomPricesConfig, WorldConfig
from orchestra_jax.data.pipeline import TaskIterator, task_iterator
from orchestra_jax.data.preference_pairs import drawn_from
from orchestra_jax.envs.base import Demonstrations, Environment, Script, ToolEpisode, initial_messages, said
from orchestra_jax.envs.baselines import calling_scripts
from orchestra_jax.envs.copying import copied_call
from orchestra_jax.envs.recorded import router
from orchestra_jax.envs.recorded.checks import cost_note, doubts, refuse_missing_costs, refuse_names
from orchestra_jax.envs.recorded.choices import PricedExpert
from orchestra_jax.envs.recorded.offer import CUT, PYTHON, catalogue_entries, code_of, legend, mean_cost, menu, shown
from orchestra_jax.envs.recorded.policies import baselines
from orchestra_jax.envs.recorded.readers import read_recording
from orchestra_jax.envs.recorded.table import (
    RecordedQuestion,
    Recording,
    evidence_of,
    read_answer,
    same_answer,
    with_latencies,
)
from orchestra_jax.envs.recorded.wishes import NONE, draw_wish, draw_words, make_wish, wishes_problem
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.price_book import PriceBook, PriceDraw, price_book
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools.answers import extract_answer
from orchestra_jax.tools.base import Tool, ToolContext
from orchestra_jax.tools.catalogue import Catalogue, Instance, instance_seed
from orchestra_jax.tools.entries import relay_entry
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.tools.python.isolation import IsolationError
from orchestra_jax.tools.python.tool import PythonTool
from orchestra_jax.tools.relay import RELAY, can_relay
from orchestra_jax.types import Preference, Task, ToolCall, ToolResult, ToolSpec

SYSTEM = (
    "Answer the user's question with the tools; mind prices, seconds and the user's wishes. End with the final answer "
    "alone."
)
PAIRED_KINDS = ("accuracy", "low_cost", "fast")
TRAIN, EVAL, UNSEEN, PRICES = "train", "eval", "unseen", "prices"  # menus and prices that a task may have
GATE_TASKS = 32
_SANDBOX_FIRST = 0.25
_AUTO = "auto"
# Of the models of the public answers those that training does not have.
_HELD_BACK = (
    "claude-3-5-sonnet-20240620",
    "gpt-4o-2024-05-13",
    "deepseek-v2.5-0908",
    "Meta-Llama-3.1-70B-Instruct",
    "claude-3-haiku-20240307",
    "gemma-2-9b-it",
)
_OPTIONS: Mapping[str, Any] = {
    "path": None,
    "references": None,
    "unseen": _AUTO,
    "observation": "answer",
    "python": _AUTO,
    "wishes": None,
    "longest": None,
    "evaluate": "test",
    "unseen_prices": _AUTO,
}


class RecordedEpisode(ToolEpisode):
    """One question under one menu."""

    async def score(self, answer: str) -> bool:
        return same_answer(answer, self.task.answer) or same_answer(extract_answer(answer), self.task.answer)


class RecordedEnvironment(Environment):
    """Recorded questions with recorded models as tools.

    Attributes:
        recording: questions that every model has answered.
        splits: ids of the questions by split.
        evidence: evidence by model, from the training split.
        silent_baselines: baselines are no language models.

    Raises:
        ConfigError: the table cannot be read or has no such models, or this machine cannot isolate programs.
    """

    silent_baselines = True

    def __init__(self, cfg: WorldConfig) -> None:
        if wrong := self.problems(cfg):
            raise ConfigError("\n".join(wrong))
        self._preference, self._told = drawn_from(cfg.data.preferences_file), False
        options = {**_OPTIONS, **cfg.env.options}
        self.recording = _read(options)
        self._cfg, self._options = cfg, _completed(options, self.recording)
        self.splits = self.recording.split(cfg.env.seed)
        if empty := [split for split, ids in self.splits.items() if not ids]:
            raise ConfigError(f"env.options.path has too few questions: none is left for the {empty[0]} split.")
        training = self.recording.of(self.splits["train"])
        self.evidence = evidence_of(training)
        unseen = list(self._options["unseen"])
        seen = [model for model in self.recording.models if model not in unseen]
        if unknown := [model for model in unseen if model not in self.recording.models]:
            raise ConfigError(f"env.options.unseen names {unknown[0]}; here are {', '.join(self.recording.models)}.")
        if not seen:
            raise ConfigError("env.options.unseen names every model, so that none is left for training.")
        self._sandbox = _sandbox(cfg) if self._options["python"] else None
        self._catalogues = self._offers(training, seen, unseen)
        rng = np.random.default_rng(cfg.seed)  # poses demonstrations and gate, in this order
        longest, questions = self._options["longest"], self.recording.questions
        self._trained = [n for n in self.splits["train"] if not longest or len(questions[n].question) <= longest]
        if not self._trained:
            raise ConfigError(f"env.options.longest={longest} leaves no question to train on: raise it.")
        ids, count = self._trained, cfg.warm_start.demonstrations
        demonstrated = [ids[k % len(ids)] for k in range(count)]
        self._demonstrated = [self._pose_train(name, rng) for name in demonstrated]
        self._gate = [self._pose_train(name, rng) for name in ids[-GATE_TASKS:]]

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        options, found = {**_OPTIONS, **cfg.env.options}, list[str]()
        if unknown := sorted(options.keys() - _OPTIONS.keys()):
            return [f"env.options of recorded answers are {', '.join(_OPTIONS)}, not {', '.join(unknown)}."]
        if not options["path"] or not Path(str(options["path"])).exists():
            found.append(
                f"No recorded answers at {options['path']}: set env.options.path=FILE or FOLDER; the public ones come "
                "with `python -m benchmarks.data.zeroeval FOLDER` in a checkout."
            )
        if options["observation"] not in ("answer", "full"):
            found.append(f"env.options.observation must be answer or full, not {options['observation']}.")
        if options["evaluate"] not in ("validation", "test"):
            found.append(f"env.options.evaluate must be validation or test, not {options['evaluate']}.")
        if wrong := wishes_problem(options["wishes"]):
            found.append(wrong)
        if options["longest"] is not None and (not isinstance(options["longest"], int) or options["longest"] < 1):
            found.append(f"env.options.longest must be a number of characters or null, not {options['longest']}.")
        unseen = options["unseen"]
        if unseen != _AUTO and (not isinstance(unseen, Sequence) or isinstance(unseen, str)):
            found.append(f"env.options.unseen must be auto or a list of models, not {unseen}.")
        if options["python"] not in (True, False, _AUTO):
            found.append(f"env.options.python must be auto, true or false, not {options['python']}.")
        if cfg.tools.menu.form != "separate" or cfg.tools.evaluated.menu.form != "separate":
            found.append("Recorded models are tools of their own: set tools.menu.form=separate.")
        return found

    def train_tasks(self, batch_size: int) -> TaskIterator:
        return task_iterator(self._trained, seed=self._cfg.seed, batch_size=batch_size, build=self._pose_train)

    def held_out(self, count: int) -> Sequence[Task]:
        return self.posed(EVAL, count)

    def posed(self, offer: str, count: int) -> list[Task]:
        """Return the first `count` held-out questions with the menus and prices of EVAL, UNSEEN or PRICES."""
        asked = self._cfg.data.preferences
        if self._cfg.evaluation.preferences is not None:
            asked = self._cfg.evaluation.preferences
        tasks = []
        for name in self._evaluated[:count]:
            instance, rng = self._evaluation_instance(offer, name)
            preference = self._wish(instance.tools, rng, "eval", asked)
            tasks.append(self._pose(name, instance, preference, offer))
        return tasks

    def paired_preferences(self, count: int) -> Mapping[str, Sequence[Task]]:
        found: dict[str, list[Task]] = {kind: [] for kind in PAIRED_KINDS}
        for name in self._evaluated[:count]:
            instance, rng = self._evaluation_instance(EVAL, name)
            for kind in PAIRED_KINDS:
                words = draw_words(kind, rng, "eval")
                preference = make_wish(kind, self._options["wishes"], instance.tools, words)
                found[kind].append(self._pose(name, instance, preference, EVAL))
        return found if count else {}

    @property
    def offers(self) -> Collection[str]:
        """Kinds of menus and prices that there are, of TRAIN, EVAL, UNSEEN and PRICES."""
        return self._catalogues.keys()

    def largest_menu(self) -> int:
        return max(catalogue.largest for catalogue in self._catalogues.values())

    def demonstrations(self) -> Demonstrations:
        return Demonstrations(
            tasks=self._demonstrated,
            gate=self._gate,
            script=self._random_tool,
            reference_call=copied_call,
            answer_from=self._answer_from,
        )

    def baselines(self) -> Mapping[str, Script]:
        if not router.available() and not self._told:
            self._told = True
            print(router.NEEDS, flush=True)
        limits = self._cfg.rollout.limits
        entries = self._catalogues[EVAL].entries.values()
        # Those of any environment too: a table shows every expert alone. The answer is a turn of its own.
        most = min(limits.max_calls, limits.max_turns - 1)
        shared = calling_scripts(self, [entry.model for entry in entries if entry.role], most)
        own = baselines(self.experts, self._said, self.evidence, self.recording, self.splits["train"])
        return {**own, **shared}

    def experts(self, task: Task) -> Sequence[PricedExpert]:
        record, found = task.extra["instance"], list[PricedExpert]()
        catalogue = self._catalogues[record["split"]]
        prices = catalogue.book.prices(PriceDraw(**record["prices"]))
        for name, key in record["tools"].items():
            entry = catalogue.entries[key]
            if entry.role:
                known = self.evidence[entry.model]
                usd, seconds = mean_cost(entry.model, known, prices), prices.latencies[entry.model]["answer"]
                found.append(PricedExpert(entry.model, ToolCall(name, {}), usd, seconds))
        return sorted(found, key=lambda choice: (choice.usd, choice.name))

    def said(self, task: Task, result: ToolResult) -> str | None:
        return self._said(result)

    def _said(self, result: ToolResult) -> str | None:
        text = said(result)
        if text is None or result.usage[-1].name == PYTHON:
            return text
        text = text if self._options["observation"] == "answer" else shown(read_answer(text))
        return None if text.endswith(CUT) else text

    def reset(self, task: Task, budget: Budget) -> RecordedEpisode:
        catalogue = self._catalogues[task.extra["instance"]["split"]]
        executor: ToolExecutor = catalogue.executor(task.extra["instance"], task, budget)
        return RecordedEpisode(task, executor, initial_messages(task, f"{SYSTEM} {legend(self.evidence)}"))

    async def close(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()

    @cached_property
    def _evaluated(self) -> tuple[str, ...]:
        """Ids of the split that is evaluated on, in random order, so that kinds of questions are mixed."""
        ids = self.splits[self._options["evaluate"]]
        return tuple(ids[k] for k in np.random.default_rng(self._cfg.env.seed).permutation(len(ids)))

    def _offers(self, training: Recording, seen: list[str], unseen: list[str]) -> dict[str, Catalogue]:
        """Return the catalogues of training, evaluation and the two benchmarks of unseen models and prices."""
        cfg, name = self._cfg, self._options["unseen_prices"]
        drawn, spread = price_book(cfg), cfg.pricing.randomise
        print(cost_note(self.recording, drawn.base), flush=True)
        base = with_latencies(drawn.base, training)
        lists = [with_latencies(prices, training) for prices in drawn.lists]
        books = {TRAIN: (PriceBook(base, lists, spread.low, spread.high), seen), EVAL: (PriceBook(base), seen)}
        if unseen:
            books[UNSEEN] = PriceBook(base), unseen
        if name:
            if name in (cfg.pricing.name, *spread.lists):
                raise ConfigError(f"env.options.unseen_prices={name} is a list that training has: name another.")
            pricing = replace(cfg.pricing, name=name, randomise=RandomPricesConfig())
            other = with_latencies(price_book(replace(cfg, pricing=pricing)).base, training)
            books[PRICES] = PriceBook(other), seen
        for book, models in books.values():
            refuse_missing_costs(self.recording, book.base, models)
        full, ends = self._options["observation"] == "full", [relay_entry()] if cfg.tools.relay else []
        return {
            offer: Catalogue(
                [*catalogue_entries(self.recording, self.evidence, book.base, models, self._sandbox, full), *ends],
                book,
                cfg.tools.menu if offer == TRAIN else cfg.tools.evaluated.menu,
            )
            for offer, (book, models) in books.items()
        }

    def _evaluation_instance(self, offer: str, name: str) -> tuple[Instance, np.random.Generator]:
        if offer not in self._catalogues:
            raise ConfigError(f"There is nothing to offer for {offer!r}: set env.options.unseen and unseen_prices.")
        seed = instance_seed(self._cfg.evaluation.seed, name, 0)
        return self._instance(offer, seed), np.random.default_rng(seed)

    def _instance(self, offer: str, seed: int) -> Instance:
        catalogue = self._catalogues[offer]
        drawn = catalogue.instance(seed)
        prices = catalogue.book.prices(PriceDraw(**drawn.record["prices"]))
        return replace(drawn, tools=menu(drawn, catalogue.entries, self.evidence, prices))

    def _wish(self, tools: Sequence[ToolSpec], rng: np.random.Generator, split: str, asked: bool) -> Preference:
        wishes = self._options["wishes"]
        if not asked:
            return make_wish(NONE, wishes, tools, "")
        return self._preference(tools, rng, split) if wishes is None else draw_wish(wishes, tools, rng, split)

    def _pose_train(self, name: str, rng: np.random.Generator) -> Task:
        # The place in the stream draws too, so that another epoch offers other tools and prices.
        instance = self._instance(TRAIN, instance_seed(self._cfg.seed, name, int(rng.integers(2**32))))
        preference = self._wish(instance.tools, rng, "train", self._cfg.data.preferences)
        return self._pose(name, instance, preference, TRAIN)

    def _pose(self, name: str, instance: Instance, preference: Preference, offer: str) -> Task:
        asked = self.recording.questions[name]
        return Task(
            id=asked.id,
            question=asked.question,
            answer=_references(asked, self.recording),
            tools=instance.tools,
            preference=preference,
            family=asked.family,
            extra={"question": name, "instance": {**instance.record, "split": offer}},
        )

    def _random_tool(self, task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
        """Call tools at random until one says something, at most three, and answer with that.

        If there is code to run, the sandbox is among them, and comes first in a share of `_SANDBOX_FIRST`: among a
        dozen models it would be one call in a dozen, too few for a group of rollouts to compare it with the others.
        """
        if results and (len(results) == 3 or self._said(results[-1]) is not None):
            relays = self._cfg.tools.relay and can_relay(results[-1])
            return ToolCall(RELAY.name, {}) if relays else self._answer_from(results)
        tools = [spec for spec in task.tools if spec.name != RELAY.name]
        models = [spec.name for spec in tools if spec.name != PYTHON]
        rng = np.random.default_rng(instance_seed(self._cfg.seed, task.id, len(tools)))
        names = [models[index] for index in rng.permutation(len(models))]
        if len(models) < len(tools) and code_of(task.question) is not None:
            names.insert(0 if rng.random() < _SANDBOX_FIRST else len(names), PYTHON)
        return ToolCall(names[len(results) % len(names)], {})

    def _answer_from(self, results: Sequence[ToolResult]) -> str:
        return next((text for result in reversed(results) if (text := self._said(result)) is not None), "unknown")


def _read(options: Mapping[str, Any]) -> Recording:
    """Return the table, and print what was read and estimated.

    Raises:
        ConfigError: it cannot be read, a model has a name that menus or prices need, or no answer is what it should be.
    """
    try:
        found = read_recording(options["path"], options["references"])
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
    refuse_names(found)
    print("\n".join([*found.notes, *doubts(found)]), flush=True)
    return found


def _completed(options: Mapping[str, Any], recording: Recording) -> Mapping[str, Any]:
    """Return the options with a value for each "auto"."""
    public = set(_HELD_BACK) <= set(recording.models)
    chosen = {
        "unseen": list(_HELD_BACK) if public else [],
        "unseen_prices": "recorded_swapped" if public else None,
        "python": any(code_of(asked.question) is not None for asked in recording.questions.values()),
    }
    return {name: chosen[name] if name in chosen and value == _AUTO else value for name, value in options.items()}


def _references(asked: RecordedQuestion, recording: Recording) -> tuple[str, ...]:
    """Return the reference answers; if the table has none, those of the models that were right."""
    if asked.answer:
        return asked.answer
    rows = (recording.answer(model, asked.id) for model in recording.models)
    return tuple(dict.fromkeys(row.answer.strip() for row in rows if row.correct and row.answer.strip()))


def _sandbox(cfg: WorldConfig) -> Tool:
    try:
        return PythonTool(ToolContext(cfg, price_book(cfg).base, Replay(None)))
    except IsolationError as error:
        raise ConfigError(f"{error} (tools.sandbox.isolation)") from None


def unseen_recorded(environment: Environment, cfg: WorldConfig) -> Mapping[str, Sequence[Task]]:
    """Return the held-out questions with menus of unseen models, and at unseen prices, where there are such."""
    if not isinstance(environment, RecordedEnvironment):
        raise ConfigError("The benchmark unseen_recorded asks recorded models: add env=recorded.")
    offers = {"unseen_models": UNSEEN, "unseen_prices": PRICES}
    return {
        part: environment.posed(offer, cfg.evaluation.questions)
        for part, offer in offers.items()
        if offer in environment.offers
    }
