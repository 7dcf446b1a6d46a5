"""Real questions and the recorded answers of real models: nothing is paid, and nothing is simulated but the waiting.

A menu is short, because a small policy has to read it for every question: the cheapest first, each model with its
evidence, and the dollars and seconds of a call like those of the training split at the instance's prices.

`options.py` tells the settings (`env.options`). The split by question depends on `env.seed` and not on the run's. Menus
are drawn by `tools.menu` and `tools.evaluation.menu`, prices by `pricing.randomise`; held-out questions have the prices
of `pricing.name`.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from statistics import median

import numpy as np

from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.data.pipeline import TaskIterator, task_iterator
from orchestra_jax.data.preference_pairs import drawn_from
from orchestra_jax.data.preferences import refuse_untrained, spoken_wishes
from orchestra_jax.envs.base import Demonstrations, Environment, OwnChat, Script, initial_messages, said
from orchestra_jax.envs.baselines import calling_scripts
from orchestra_jax.envs.copying import copied_call
from orchestra_jax.envs.recorded import router
from orchestra_jax.envs.recorded.checks import cost_note, keep_trained
from orchestra_jax.envs.recorded.choices import PricedExpert
from orchestra_jax.envs.recorded.demonstrated import drawn, first_calls, most_asked, next_model, tools_shown
from orchestra_jax.envs.recorded.duration import duration
from orchestra_jax.envs.recorded.offer import CUT, PYTHON, SAME, catalogue_entries, cut, legend, mean_cost, menu
from orchestra_jax.envs.recorded.options import EVALUATED, next_step, options_of, options_problems
from orchestra_jax.envs.recorded.policies import baselines
from orchestra_jax.envs.recorded.scoring import RecordedEpisode, marks, references, refuted
from orchestra_jax.envs.recorded.table import Evidence, evidence_of, read_answer, with_latencies
from orchestra_jax.envs.recorded.tables import NEW, Tables, read_table, tables_of, unseen_prices
from orchestra_jax.envs.recorded.wishes import FAST, NONE, draw_wish, draw_words, make_wish, mind_seconds, wish_of
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.price_book import PriceBook, PriceDraw, price_book
from orchestra_jax.money.replay import Replay
from orchestra_jax.tools.base import Tool, ToolContext
from orchestra_jax.tools.catalogue import Catalogue, Instance, instance_seed
from orchestra_jax.tools.entries import relay_entry
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.tools.python.isolation import IsolationError
from orchestra_jax.tools.python.tool import PythonTool
from orchestra_jax.tools.relay import RELAY, can_relay
from orchestra_jax.types import Preference, Task, ToolCall, ToolResult, ToolSpec

SYSTEM = (
    "Answer the user's question with the tools; mind prices and the user's wishes. End with the final answer alone."
)
PAIRED_KINDS = ("accuracy", "low_cost", FAST)
TRAIN, EVAL, UNSEEN, PRICES = "train", "eval", "unseen", "prices"  # menus and prices that a task may have
GATE_TASKS = 32


class RecordedEnvironment(Environment):
    """Recorded questions with recorded models as tools.

    Attributes:
        recording: questions that every model has answered.
        splits: ids of the questions by split; NEW: those of `test_path`.
        evidence: evidence by model, from the training split.
        silent_baselines: baselines are no language models.

    Raises:
        ConfigError: the table cannot be read or has no such models, or this machine cannot isolate programs.
    """

    silent_baselines = True

    def __init__(self, cfg: WorldConfig) -> None:
        if wrong := self._wrong_settings(cfg):
            raise ConfigError("\n".join(wrong))
        self.rival = "best", next_step(cfg)
        self._preference, self._told = drawn_from(cfg.data.preferences_file), False
        tables = tables_of(cfg)
        self.recording, self.splits, self._trained = tables.recording, tables.splits, tables.trained
        self._cfg, self._options = cfg, tables.options
        self._timed = mind_seconds(self._options["wishes"])
        self.evidence = evidence_of(tables.training)
        self._drawn = lru_cache(maxsize=4096)(partial(drawn, self.evidence))  # of the demonstrations under way
        self._sandbox = _sandbox(cfg) if self._options["python"] else None
        self._catalogues = self._offers(tables)
        rng = np.random.default_rng(cfg.seed)  # poses demonstrations and gate, in this order
        repeats, questions = self._options["repeats"] or {}, self.recording.questions
        self._repeated = [n for n in self._trained for _ in range(repeats.get(questions[n].family, 1))]
        ids, count = self._trained, cfg.warm_start.demonstrations
        shown = [self._pose_shown(ids[k % len(ids)], rng) for k in range(count)]
        self._demonstrated = [replace(task, id=f"demonstration {k}") for k, task in enumerate(shown)]
        self._gate = [self._pose_train(name, rng)[0] for name in ids[-GATE_TASKS:]]

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        if not (found := cls._wrong_settings(cfg)):
            try:
                with contextlib.redirect_stdout(None):  # the environment tells what was read
                    tables_of(cfg)
            except ConfigError as error:
                found.append(str(error))
        return found

    @classmethod
    def _wrong_settings(cls, cfg: WorldConfig) -> list[str]:
        found = options_problems(cfg)
        if cfg.tools.menu.form != "separate" or cfg.tools.evaluated.menu.form != "separate":
            found.append("Recorded models are tools of their own: set tools.menu.form=separate.")
        return found

    @classmethod
    def chat(cls, cfg: WorldConfig) -> OwnChat:
        from orchestra_jax.envs.recorded.own_chat import own_chat

        recording = read_table(options_of(cfg), quiet=True)  # the environment tells what was read
        training = recording.of(recording.split(cfg.env.seed)["train"])
        return own_chat((asked.question for asked in training.questions.values()), recording.models)

    @classmethod
    def forecast(cls, cfg: WorldConfig) -> str | None:
        return duration(cfg)

    def train_tasks(self, batch_size: int) -> TaskIterator:
        keep_trained(self._cfg, self.recording.of(self.splits["train"]))
        each = batch_size // self._cfg.data.preferences_per_question
        return task_iterator(self._repeated, seed=self._cfg.seed, batch_size=each, build=self._pose_train)

    def held_out(self, count: int) -> Sequence[Task]:
        return self.posed(EVAL, count)

    def posed(self, offer: str, count: int) -> list[Task]:
        """Return the first `count` held-out questions, of `test_path` all, as EVAL, UNSEEN or PRICES offer models."""
        asked = self._cfg.data.preferences
        if self._cfg.evaluation.preferences is not None:
            asked = self._cfg.evaluation.preferences
        tasks = []
        for name in self._evaluated[: count if self._options["test_path"] is None else None]:
            instance, rng = self._evaluation_instance(offer, name)
            preference = self._wish(instance.tools, rng, "eval", asked)
            tasks.append(self._pose(name, instance, preference, offer))
        return tasks

    def wishes(self) -> Mapping[str, str]:
        if not self._cfg.data.preferences:
            return {}
        return spoken_wishes() if (kinds := self._options["wishes"]) is None else spoken_wishes(kinds)

    def pose(self, question: str, wish: str | None) -> Task:
        """Return the task of a question of the table, with the menu and the prices that evaluation gives it.

        Raises:
            ValueError: the table has no such question, or training had no such wish.
        """
        refuse_untrained(wish, self.wishes())
        if (name := self._by_text.get(question.strip())) is None:
            raise ValueError(
                f"The models of {self._options['path']} were never asked this: ask a question of the table, or give "
                "the policy live experts with env=qa and tools.experts (docs/serve.md)."
            )
        instance, _ = self._evaluation_instance(EVAL, name)
        return self._pose(name, instance, Preference("asked", wish or ""), EVAL)

    def paired_preferences(self, count: int) -> Mapping[str, Sequence[Task]]:
        found: dict[str, list[Task]] = {kind: [] for kind in PAIRED_KINDS if self._timed or kind != FAST}
        for name in self._evaluated[:count]:
            instance, rng = self._evaluation_instance(EVAL, name)
            for kind in found:
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
            script=self._shown_tool,
            reference_call=copied_call,
            answer_from=self._answer_from,
            beginnings=lambda task: first_calls(tools_shown(*self._shown(task))),
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
        text = None if text is None else text.removesuffix(SAME)
        if text is None or result.usage[-1].name == PYTHON:
            return text
        if self._options["observation"] == "full":
            return read_answer(text).strip() or "''"
        return None if text.endswith(CUT) and self._all_referenced else text

    def reset(self, task: Task, budget: Budget) -> RecordedEpisode:
        catalogue = self._catalogues[task.extra["instance"]["split"]]
        executor: ToolExecutor = catalogue.executor(task.extra["instance"], task, budget)
        asked = self.recording.questions[task.extra["question"]]
        wrong, right = refuted(asked, self.recording), marks(asked, self.recording, task.extra["instance"]["tools"])
        read = replace(task, question=cut(task.question, self._options["read"]))
        return RecordedEpisode(
            task, executor, initial_messages(read, f"{SYSTEM} {legend(self.evidence, self._timed)}"), wrong, right
        )

    async def close(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()

    @cached_property
    def _by_text(self) -> Mapping[str, str]:
        """Ids of the questions by their text; of two alike the first."""
        return {asked.question.strip(): name for name, asked in reversed([*self.recording.questions.items()])}

    @cached_property
    def _all_referenced(self) -> bool:
        """True if references decide what is right everywhere: then an answer that is cut is not."""
        return all(asked.answer for asked in self.recording.questions.values())

    @cached_property
    def _evaluated(self) -> tuple[str, ...]:
        """Ids of the split that is evaluated on, in random order, so that kinds of questions are mixed."""
        splits = EVALUATED[self._options["evaluate"]] if self._options["test_path"] is None else (NEW,)
        ids = [name for split in splits for name in self.splits[split]]
        return tuple(ids[k] for k in np.random.default_rng(self._cfg.env.seed).permutation(len(ids)))

    def _offers(self, tables: Tables) -> dict[str, Catalogue]:
        """Return the catalogues of training, evaluation and the two benchmarks of unseen models and prices."""
        cfg, training, seen = self._cfg, tables.training, tables.seen
        book, spread = price_book(cfg), cfg.pricing.randomise
        print(cost_note(self.recording, book.base), flush=True)
        base = with_latencies(book.base, training)
        lists = [with_latencies(prices, training) for prices in book.lists]
        books = {TRAIN: (PriceBook(base, lists, spread.low, spread.high), seen), EVAL: (PriceBook(base), seen)}
        if tables.unseen:
            books[UNSEEN] = PriceBook(base), tables.unseen
        if (other := unseen_prices(cfg, self._options)) is not None:
            books[PRICES] = PriceBook(with_latencies(other, training)), seen
        self._usual_usd = median(mean_cost(model, self.evidence[model], base) for model in seen)
        full, ends = self._options["observation"] == "full", [relay_entry()] if cfg.tools.relay else []
        return {
            offer: Catalogue(
                [*catalogue_entries(self.recording, self.evidence, book.base, models, self._sandbox, full), *ends],
                book,
                replace(rule, always=[key for key in rule.always if key != PYTHON or self._sandbox is not None]),
            )
            for offer, (book, models) in books.items()
            for rule in [cfg.tools.menu if offer == TRAIN else cfg.tools.evaluated.menu]
        }

    def _evaluation_instance(self, offer: str, name: str) -> tuple[Instance, np.random.Generator]:
        if offer not in self._catalogues:
            raise ConfigError(f"There is nothing to offer for {offer!r}: set env.options.unseen and unseen_prices.")
        seed = instance_seed(self._cfg.evaluation.seed, name, 0)
        return self._instance(offer, seed), np.random.default_rng(seed)

    def _instance(self, offer: str, seed: int, evidence: Mapping[str, Evidence] | None = None) -> Instance:
        catalogue = self._catalogues[offer]
        offered = catalogue.instance(seed)
        prices = catalogue.book.prices(PriceDraw(**offered.record["prices"]))
        return replace(offered, tools=menu(offered, catalogue.entries, evidence or self.evidence, prices, self._timed))

    def _wish(self, tools: Sequence[ToolSpec], rng: np.random.Generator, split: str, asked: bool) -> Preference:
        wishes = self._options["wishes"]
        if not asked:
            return make_wish(NONE, wishes, tools, "")
        return self._preference(tools, rng, split) if wishes is None else draw_wish(wishes, tools, rng, split)

    def _pose_shown(self, name: str, rng: np.random.Generator) -> Task:
        """Return the question for demonstrations; its menu shows drawn evidence."""
        seed = int(rng.integers(2**32))
        task = self._pose_train(name, rng, self._drawn(seed))[0]
        return replace(task, extra={**task.extra, "evidence": seed})

    def _pose_train(
        self, name: str, rng: np.random.Generator, evidence: Mapping[str, Evidence] | None = None
    ) -> list[Task]:
        """Return the question under data.preferences_per_question different wishes, with one menu and its prices."""
        cfg, wishes = self._cfg, self._options["wishes"]
        # The place in the stream draws too, so that another epoch offers other tools and prices.
        instance = self._instance(TRAIN, instance_seed(cfg.seed, name, int(rng.integers(2**32))), evidence)
        count = cfg.data.preferences_per_question
        if count == 1:
            preferences = [self._wish(instance.tools, rng, "train", cfg.data.preferences)]
        else:
            kinds = [tuple(wishes)[k] for k in rng.permutation(len(wishes))[:count]]
            preferences = [wish_of(kind, wishes, instance.tools, rng, "train") for kind in kinds]
        return [self._pose(name, instance, preference, TRAIN) for preference in preferences]

    def _pose(self, name: str, instance: Instance, preference: Preference, offer: str) -> Task:
        asked = self.recording.questions[name]
        return Task(
            id=asked.id,
            question=asked.question,
            answer=references(asked, self.recording),
            tools=instance.tools,
            preference=preference,
            family=asked.family,
            extra={"question": name, "instance": {**instance.record, "split": offer}},
        )

    def _shown_tool(self, task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
        """Call the tools of `tools_shown` in turn until one says something, go on as `next_model` says, and answer."""
        call = self._next_call(task, results) if len(results) < most_asked(self._cfg) else None
        if call is not None:
            return call
        relays = self._cfg.tools.relay and can_relay(results[-1])
        return ToolCall(RELAY.name, {}) if relays else self._answer_from(results)

    def _next_call(self, task: Task, results: Sequence[ToolResult]) -> ToolCall | None:
        if not results or self._said(results[-1]) is None:
            names = list(tools_shown(*self._shown(task)))
            return ToolCall(names[len(results) % len(names)], {})
        tools = {expert.name: expert.call.name for expert in self.experts(task)}
        asked = [tools[name] for result in results if (name := result.usage[-1].name) in tools]
        agreed = results[-1].text.endswith(SAME)
        goes_on = next_model(*self._shown(task), asked, agreed) if asked else None
        return None if goes_on is None else ToolCall(goes_on, {})

    def _shown(self, task: Task) -> tuple[Task, Sequence[PricedExpert], Mapping[str, Evidence], float, int]:
        return task, self.experts(task), self._drawn(task.extra["evidence"]), self._usual_usd, most_asked(self._cfg)

    def _answer_from(self, results: Sequence[ToolResult]) -> str:
        return next((text for result in reversed(results) if (text := self._said(result)) is not None), "unknown")


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
