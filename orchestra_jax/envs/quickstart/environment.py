"""The quickstart environment: real sandbox and search calls, simulated experts, and scripted players of the world."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from orchestra_jax.envs.base import Message
from orchestra_jax.envs.quickstart.world import CATALOGUE, EXPERTS, PHRASES, SKILLS, QuickstartWorld, wordings
from orchestra_jax.models.tokenizer import build_word_tokenizer
from orchestra_jax.money.budgets import Budget
from orchestra_jax.tools.base import ToolExecutor, ToolHandler
from orchestra_jax.tools.experts.simulated import SimulatedExpert
from orchestra_jax.tools.python.isolation import Isolation
from orchestra_jax.tools.python.sandbox import PythonSandbox
from orchestra_jax.tools.search.local import NO_RESULTS, LocalIndex, Passage
from orchestra_jax.types import Task, ToolCall, ToolResult, ToolSpec

# Qwen3's conversation with spaces for newlines, and the menu as a table in one line: "python 1 2; local_search 0 9".
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|> system tool cents seconds"
    "{% for tool in tools %}{% set f = tool.function %}; {{ f.name }} {{ (f.price_usd * 100) | round | int }} "
    "{{ f.latency_s | round | int }}{% endfor %}<|im_end|>{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|> user{% endif %}"
    "<tool_response> {{ message.content }}</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>{% endif %}"
    "{% elif message.role == 'assistant' %}<|im_start|> assistant{{ message.content }}<|im_end|>"
    "{% else %}<|im_start|> {{ message.role }} {{ message.content }}<|im_end|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant{% endif %}"
)
SCAFFOLDS = (
    '\n{"name": "',
    '", "arguments": {"code": "',
    '", "arguments": {"query": "',
    '", "arguments": {}}\n',
    '"}}\n',
)


class QuickstartEpisode:
    """One question under one menu; see `envs.base.Episode`."""

    def __init__(self, task: Task, handlers: Mapping[str, ToolHandler], budget: Budget) -> None:
        self._task = task
        self._executor = ToolExecutor(task.tools, handlers, budget)
        self.messages: list[Message] = [{"role": "user", "content": f"{task.question} {task.preference.instruction}"}]

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return self._executor.tools

    async def step(self, call: ToolCall) -> ToolResult:
        return await self._executor.step(call)

    async def score(self, answer: str) -> bool:
        return answer.strip() in self._task.answer


class QuickstartEnvironment:
    """Owns the world's sandbox, its two search indices and its experts.

    Args:
        world: the facts.
        workers: sandbox processes.
        timeout_s: seconds a program may run.
        isolation: of the sandbox.

    Raises:
        IsolationError: this machine cannot isolate programs so.
    """

    def __init__(
        self, world: QuickstartWorld, *, workers: int = 2, timeout_s: float = 5.0, isolation: Isolation = "auto"
    ) -> None:
        self.world = world
        self._sandbox = PythonSandbox(workers=workers, timeout_s=timeout_s, isolation=isolation)
        self._indices = {
            "local_search": LocalIndex.build([Passage("", text) for text in world.local_corpus]),
            "web_search": LocalIndex.build([Passage("", text) for text in world.web_corpus]),
        }
        self._experts = {
            name: SimulatedExpert(name, SKILLS[name], CATALOGUE[name].price_usd or 0.0, 0.0, world.seed)
            for name in EXPERTS
        }

    def reset(self, task: Task, budget: Budget) -> QuickstartEpisode:
        handlers: dict[str, ToolHandler] = {"python": self._python}
        handlers.update({name: self._search_handler(name) for name in self._indices})
        handlers.update({name: self._expert_handler(name, task) for name in EXPERTS})
        return QuickstartEpisode(task, handlers, budget)

    async def close(self) -> None:
        self._sandbox.close()

    async def _python(self, arguments: Mapping[str, Any], budget: Budget) -> ToolResult:
        return await self._sandbox.run(arguments["code"])

    def _search_handler(self, name: str) -> ToolHandler:
        async def search(arguments: Mapping[str, Any], budget: Budget) -> str:
            return self._indices[name].answer(arguments["query"], 1)

        return search

    def _expert_handler(self, name: str, task: Task) -> ToolHandler:
        async def ask(arguments: Mapping[str, Any], budget: Budget) -> str:
            return self._experts[name].answer(task.question, task.answer[0], task.family, task.extra["distractors"])

        return ask


def good_call(task: Task, tool: str) -> ToolCall:
    """The call of `tool` whose arguments are copied from the question as well as they can be."""
    argument = {"python": "code", "local_search": "query", "web_search": "query"}.get(tool)
    return ToolCall(tool, {argument: task.extra["keywords"]} if argument else {})


def read_answer(result: ToolResult) -> str | None:
    """What a good reader answers after this observation: the value of a fact, or the text; None if it says nothing."""
    if result.is_error or result.text == NO_RESULTS:
        return None
    return result.text.rstrip(".").split(" ")[-1] if result.text.endswith(".") else result.text


def build_tokenizer(world: QuickstartWorld) -> PreTrainedTokenizerFast:
    """The word-level tokenizer of the world: Qwen3's special tokens and every word that the world can say."""
    return build_word_tokenizer(world_texts(world), CHAT_TEMPLATE, SCAFFOLDS)


def world_texts(world: QuickstartWorld) -> Iterable[str]:
    """Texts that together hold every word of the world's questions, menus, preferences, tools and answers."""
    rng = np.random.default_rng(0)
    yield from world.local_corpus
    yield from world.web_corpus
    yield from (wording for kind in PHRASES for split in ("train", "eval") for wording in wordings(kind, split))
    for split in ("train", "eval"):
        for family in SKILLS[EXPERTS[0]]:
            for _ in range(1500):
                question = world.question(family, split, rng)
                yield from (question.text, question.answer, question.keywords, *question.distractors)
    yield " system user assistant tool cents seconds; " + " ".join(CATALOGUE)
    yield "unknown no results SyntaxError: invalid syntax. Perhaps you forgot a comma? (<string>, line 1)"
    yield " arithmetic lookup easy hard accurate cheap fast local free"
    yield "NameError: name 'seats' is not defined"
    yield "invalid decimal literal. leading zeros in decimal integer literals are not permitted; use an 0o prefix"
    yield "for octal"
    yield '{"name": "python", "arguments": {"code": "1 + 2"}}\n'
