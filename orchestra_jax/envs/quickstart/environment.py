"""The quickstart environment: a generated world with a real sandbox, real searches and simulated experts."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from orchestra_jax.config.choices import SandboxIsolation
from orchestra_jax.config.schema import ConfigError, WorldConfig
from orchestra_jax.data.pipeline import TaskIterator, task_iterator
from orchestra_jax.envs.base import Demonstrations, Environment, Message, OfferedExpert, OwnChat, Script, ToolEpisode
from orchestra_jax.envs.quickstart import demonstrations, facts
from orchestra_jax.envs.quickstart.facts import CATALOGUE, CHANCES, EXPERTS, RIVALS, TOOL_NAMES, original
from orchestra_jax.envs.quickstart.preferences import PHRASES, PREFERENCE_SHARES, wordings
from orchestra_jax.envs.quickstart.world import QuickstartWorld
from orchestra_jax.envs.words import word_chat
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.executor import ToolExecutor, ToolHandler
from orchestra_jax.tools.experts.simulated import SimulatedExpert
from orchestra_jax.tools.python.isolation import IsolationError
from orchestra_jax.tools.python.sandbox import PythonSandbox
from orchestra_jax.tools.search.bm25 import LocalIndex, Passage
from orchestra_jax.types import Task, ToolCall, ToolResult

SCAFFOLDS = (
    '\n{"name": "',
    '", "arguments": {"code": "',
    '", "arguments": {"expression": "',
    '", "arguments": {"query": "',
    '", "arguments": {}}\n',
    '"}}\n',
)
TRAINING_TASKS = 100_000
GATE_TASKS = 128
PAIRED_KINDS = ("accuracy", "cost", "fast", "local")


class QuickstartEpisode(ToolEpisode):
    """One question under one menu."""

    def __init__(self, task: Task, executor: ToolExecutor) -> None:
        asked: Message = {"role": "user", "content": f"{task.question} {task.preference.instruction}"}
        super().__init__(task, executor, [asked])

    async def score(self, answer: str) -> bool:
        return answer.strip() in self.task.answer


class QuickstartEnvironment(Environment):
    """Owns the world's sandbox, its two search indices and its experts.

    Raises:
        ConfigError: this machine cannot isolate programs as configured.
    """

    def __init__(self, cfg: WorldConfig) -> None:
        self._cfg, self.world = cfg, QuickstartWorld(cfg.env.seed)
        self._tools, self._evaluated = ordered_tools(cfg.tools.names), ordered_tools(cfg.tools.evaluated.names)
        self._sandbox = _sandbox(cfg)
        self._experts = {
            name: SimulatedExpert(name, {"compare": CHANCES[name], "*": 0.0}, self.world.seed) for name in EXPERTS
        }

    @cached_property
    def _indices(self) -> dict[str, LocalIndex]:
        texts = {"local_search": self.world.local_corpus, "web_search": self.world.web_corpus}
        return {name: LocalIndex.build([Passage("", text) for text in some]) for name, some in texts.items()}

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        found, count = [], cfg.data.preferences_per_question
        if cfg.data.source != "quickstart":
            found.append(
                f"env.name={cfg.env.name} and data.source={cfg.data.source} do not fit: use env=quickstart "
                "data=quickstart, or env=qa with a data group of real questions."
            )
        if "none" in (cfg.tools.menu.form, cfg.tools.evaluated.menu.form):
            found.append("The quickstart's questions are about its tools: tools.menu.form=none is for env=qa.")
        if cfg.tools.opened.mcp or cfg.tools.relay:
            found.append("The quickstart's questions are about its tools: tools.mcp and tools.relay are for env=qa.")
        found += _problems_of_tools("tools.names", cfg.tools.names)
        if cfg.tools.evaluation.own:
            found += _problems_of_tools("tools.evaluation.names", cfg.tools.evaluation.names)
        if count > len(PREFERENCE_SHARES):
            found.append(f"data.preferences_per_question={count} must be at most {len(PREFERENCE_SHARES)}: change it.")
        return found

    @classmethod
    def chat(cls, cfg: WorldConfig) -> OwnChat:
        return quickstart_chat()

    def train_tasks(self, batch_size: int) -> TaskIterator:
        count = self._cfg.data.preferences_per_question

        def posed(index: int, rng: np.random.Generator) -> list[Task]:
            return self.world.paired_tasks("train", index, count, self._tools)

        questions = range(TRAINING_TASKS)
        return task_iterator(questions, seed=self._cfg.seed, batch_size=batch_size // count, build=posed)

    def held_out(self, count: int) -> Sequence[Task]:
        return [self.world.task("eval", index, self._evaluated) for index in range(count)]

    def largest_menu(self) -> int:
        return len(TOOL_NAMES)

    def demonstrations(self) -> Demonstrations:
        count = self._cfg.warm_start.demonstrations
        places = range(count + GATE_TASKS)
        # Short menus and figures further apart than usual: lines and figures are told apart sooner.
        tasks = [self.world.task("train", TRAINING_TASKS + n, self._tools, short=n < count, gap=2) for n in places]
        return Demonstrations(
            tasks=tasks[:count],
            gate=tasks[count:],
            script=demonstrations.shown_tools(self._cfg.seed),
            think=partial(demonstrations.think_aloud, self._cfg.seed),
            reference_call=demonstrations.reference_call,
            answer_from=demonstrations.answer_from,
            reads_menu=demonstrations.reads_menu,
        )

    def paired_preferences(self, count: int) -> Mapping[str, Sequence[Task]]:
        posed = [self.world.swap_tasks(index, PAIRED_KINDS, self._evaluated) for index in range(count)]
        return {kind: [tasks[k] for tasks in posed] for k, kind in enumerate(PAIRED_KINDS)} if posed else {}

    def baselines(self) -> Mapping[str, Script]:
        return demonstrations.BASELINES

    def experts(self, task: Task) -> Sequence[OfferedExpert]:
        menu = sorted(task.tools, key=lambda spec: spec.price_usd or 0.0)
        return [OfferedExpert(spec.name, ToolCall(spec.name, {})) for spec in menu if original(spec) in EXPERTS]

    def copied_call(self, task: Task, tool: str) -> ToolCall:
        return demonstrations.reference_call(task, tool)

    def said(self, task: Task, result: ToolResult) -> str | None:
        return demonstrations.read_answer(result)

    def wishes(self) -> Mapping[str, str]:
        from orchestra_jax.envs.quickstart.asked import WISHES

        return WISHES

    def pose(self, question: str, wish: str | None) -> Task:
        from orchestra_jax.envs.quickstart.asked import posed

        return posed(self.world, self._evaluated, question, wish)

    def reset(self, task: Task, budget: Budget) -> QuickstartEpisode:
        handlers: dict[str, ToolHandler] = {
            "python": self._python,
            "calculator": self._python,
            **{name: partial(self._search, name) for name in self._indices},
            **{name: partial(self._ask, name, task) for name in EXPERTS},
        }
        offered = {spec.name: handlers[original(spec)] for spec in task.tools}
        return QuickstartEpisode(task, ToolExecutor(task.tools, offered, budget))

    async def close(self) -> None:
        self._sandbox.close()

    async def _python(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        return await self._sandbox.run(*arguments.values())

    async def _search(self, name: str, arguments: Mapping[str, Any], budget: Budget) -> str:
        return self._indices[name].answer(arguments["query"], 1)

    async def _ask(self, name: str, task: Task, arguments: Mapping[str, Any], budget: Budget) -> str:
        return self._experts[name].answer(task.question, task.answer[0], task.family, task.extra["distractors"])


def ordered_tools(names: Sequence[str]) -> tuple[str, ...]:
    """Return these tools, or all if none is named, in the order of the world's list, on which draws depend."""
    return tuple(name for name in TOOL_NAMES if name in (names or TOOL_NAMES))


def _problems_of_tools(setting: str, names: Sequence[str]) -> list[str]:
    if new := [name for name in names if name not in TOOL_NAMES]:
        return [f"{setting} names {', '.join(new)}: the quickstart has {', '.join(TOOL_NAMES)}; others need env=qa."]
    return [
        f"{setting} has no tool for a step of the kind {kind}: add one of {', '.join(able)}."
        for kind, able in RIVALS.items()
        if names and not set(able) & set(names)
    ]


def _sandbox(cfg: WorldConfig) -> PythonSandbox:
    settings = cfg.tools.sandbox
    try:
        return PythonSandbox(settings.workers, settings.timeout_s, isolation=settings.isolation)
    except IsolationError as error:
        if settings.isolation is SandboxIsolation.auto and cfg.model.tokenizer == "environment":
            # Its words cannot spell an import, a file or an underscore: this policy writes arithmetic and nothing else.
            return PythonSandbox(settings.workers, settings.timeout_s, isolation="none")
        raise ConfigError(f"{error} (tools.sandbox.isolation)") from None


def quickstart_chat() -> OwnChat:
    """Return the chat of every quickstart world: the words do not depend on its seed."""
    return word_chat(texts(), SCAFFOLDS)


def texts() -> Iterator[str]:
    """Yield texts that together hold every word; all numbers are in a word tokenizer anyway."""
    yield f" {' '.join(facts.FIRST_NAMES)} {' '.join(facts.LAST_NAMES)}"
    for attribute, (values, question, sentence) in facts.ATTRIBUTES.items():
        yield f" {attribute} {' '.join(values)}"
        yield from (question.format(name="Alice Adler"), sentence.format(name="Alice Adler", value=values[0]))
    yield from (facts.BOSS.format(name="Alice Adler", value="Boris Kim"), " boss", "Who is the boss of Alice Adler?")
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
