"""A small world with four tools, an engine that says what a script says, and the check that tokens are exact."""

import asyncio
import itertools
import json

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.engines.base import Generation
from orchestra_jax.envs.base import initial_messages
from orchestra_jax.models import tokenizer as tok
from orchestra_jax.money import price_files
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.reservations import acquire
from orchestra_jax.rl.batching import sequences
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.types import InfrastructureError, Preference, Task, ToolCall, ToolResult, ToolSpec, Usage

SECONDS = 60.0
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"], "additionalProperties": False}
TOOLS = (
    ToolSpec("echo", "Repeats x.", SCHEMA, price_usd=0.25, latency_s=3.0),
    ToolSpec("model", "Thinks about x.", SCHEMA),
    ToolSpec("broken", "Fails.", SCHEMA),
    ToolSpec("buggy", "Has a bug.", SCHEMA),
)
TASK = Task("t0", "What is x?", ("blue",), TOOLS, Preference("none", "Be quick."))
PRICES = price_files.from_config(
    {
        "id": "test-1",
        "date": "2025-01-01",
        "source": "made up",
        "entries": {"orchestrator": {"input": 1.0, "cached_input": 0.1, "output": 10.0}, "model": {"call": 0.5}},
    }
)
LIMITS = RolloutLimits(max_turns=4, max_calls=3, max_length=4000, max_new_tokens=100, retries=2)
ANSWER = "blue"
HANG = object()  # what an engine says that never answers


def call(name, x="hello"):
    return render_call(ToolCall(name, {"x": x}))


# Shows thinking in the latest turn only, so that "strip_thinking" rewrites history.
TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n"
    "{% for t in tools %}{{ t.function | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{%- if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content.split('</think>')[-1].strip('\n') + '<|im_end|>\n' }}"
    "{% endif %}"
    "{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def word_tokenizer():
    """A tokenizer that knows what is said in this world."""
    texts = [call(spec.name) for spec in TOOLS] + [
        f"<|im_start|>system user assistant\n{TASK.question}\n\n{TASK.preference.instruction}",
        " a b blue green hm slow error judge is away hang late never",
        json.dumps([{"name": s.name, "description": s.description, "parameters": SCHEMA} for s in TOOLS]),
        "Unknown tool 'nothing'; the available tools are: , . Echo says cost $0.25 per call, about 3 s. hello!",
    ]
    return tok.build_word_tokenizer(texts, TEMPLATE)


async def never(log, what):
    """Waits until it is cancelled, which is logged."""
    try:
        await asyncio.Event().wait()
    finally:
        log.append(what)


class World:
    """Four tools; counts what was called and scored, and what was given up."""

    def __init__(self):
        self.episodes, self.calls, self.scored, self.failures, self.given_up = 0, [], [], 0, []
        self.budgets = []  # of the calls of echo

    def reset(self, task, budget):
        self.episodes += 1
        return Room(self, task, budget)

    async def close(self):
        pass

    async def echo(self, arguments, budget):
        await asyncio.sleep(0.01 if arguments["x"] == "slow" else 0)
        self.calls.append(arguments["x"])
        self.budgets.append(budget)
        (await acquire(budget, Usage("echo"))).settle(Usage("echo"))
        if arguments["x"] == "hang":
            await never(self.given_up, "echo")
        if arguments["x"] == "late":
            raise TimeoutError("no answer in 9 s")
        if arguments["x"] == "error":
            return ToolResult("x is an error", is_error=True)
        return ToolResult(arguments["x"])

    async def model(self, arguments, budget):
        rows = Usage("model", "tool", 10, 2, 3, 0.5, 1.5, "p"), Usage("model", "judge", 1, 0, 1, 100.0, 100.0, "p")
        return ToolResult("green", rows)

    async def broken(self, arguments, budget):
        if self.failures == 0:
            return ToolResult("repaired")
        self.failures -= 1
        raise InfrastructureError("the server is away")

    async def buggy(self, arguments, budget):
        raise KeyError("a bug")


class Room:
    def __init__(self, world, task, budget):
        self.world, self.task = world, task
        handlers = {name: getattr(world, name) for name in ("echo", "model", "broken", "buggy")}
        self.executor = ToolExecutor(task.tools, handlers, budget)
        self.messages = initial_messages(task)

    @property
    def tools(self):
        return self.executor.tools

    async def step(self, call):
        return await self.executor.step(call)

    async def score(self, answer):
        self.world.scored.append(answer)
        if answer == "judge is away":
            raise InfrastructureError("no judge")
        if answer == "judge never":
            await never(self.world.given_up, "judge")
        return answer in self.task.answer


class FakeEngine:
    """Says what `script(session, turn)` returns: text, ids or a generation as they are; records what it was given."""

    def __init__(self, chat, script):
        self.chat, self.script = chat, script
        self.log, self.open, self.seeds = {}, set(), []
        self.count, self.clock, self.aborted = itertools.count(), itertools.count(1), []

    def open_session(self):
        session = next(self.count)
        self.open.add(session)
        self.log[session] = []
        return session

    def close_session(self, session):
        self.open.discard(session)

    async def generate(self, prompt_ids, params, *, session=None):
        assert session in self.open
        said = self.script(session, len(self.log[session]))
        if said is HANG:
            await never(self.aborted, session)
        if isinstance(said, Generation):
            self.log[session].append((tuple(prompt_ids), said.token_ids, said.logprobs))
            return said
        if isinstance(said, str):
            said = (*self.chat.encode(said), self.chat.stop_ids[0])
        said = said[: params.max_new_tokens]
        await asyncio.sleep(0)
        reason = "stop" if said[-1] in params.stop_ids else "length"
        logprobs = tuple(-next(self.clock) / 1e4 for _ in said)
        self.seeds.append(params.seed)
        self.log[session].append((tuple(prompt_ids), tuple(said), logprobs))
        return Generation(tuple(said), logprobs, reason, 5)

    async def update_weights(self, params, version):
        pass

    async def close(self):
        pass


def make(tokenizer, *, history="keep", limits=LIMITS, seconds=0.5, **options):
    world, chat = World(), ChatFormat(tokenizer, history=history)
    return Collector(world, chat, limits, PRICES, seconds_per_token=seconds, **options), world, chat


async def roll(collector, script, tasks=(TASK,), **options):
    engine = script if not callable(script) else FakeEngine(collector.chat, script)
    async with asyncio.timeout(SECONDS):
        found = await collector.collect(engine, tasks, **{"budget": Budget(), **options})
    if isinstance(engine, FakeEngine):
        assert not engine.open
    return found, engine


def says(*turns):
    """The same turns in every session; the last is repeated."""
    return lambda session, turn: turns[min(turn, len(turns) - 1)]


def exact(trajectory, log):
    """What is trained is what the engine was given and sampled, and nothing else carries loss."""
    given = iter(log)
    rows = sequences(trajectory, 0.5)
    assert len(rows) == len(trajectory.sequences)
    for turns, row in zip(trajectory.sequences, rows, strict=True):
        end, loss = 0, {}
        for turn in turns:
            prompt, sampled, logprobs = next(given)
            end += len(turn.prompt_ids)
            assert row.tokens[:end] == prompt
            assert row.tokens[end : end + len(sampled)] == sampled == turn.sampled_ids
            loss |= dict(zip(range(end, end + len(sampled)), logprobs, strict=True))
            end += len(sampled)
        assert end == len(row.tokens)
        assert {i for i, flag in enumerate(row.sampled) if flag} == set(loss)
        assert row.logprobs == tuple(loss.get(i, 0.0) for i in range(end))
        assert (row.prefix, row.advantage) == (len(turns[0].prompt_ids) - 1, 0.5)
    assert next(given, None) is None


def odd_ids(chat, text):
    """Ids of the same text as no tokenizer would split it: one piece per character outside control tags."""
    ids = []
    for part in text.replace("<", "\0<").replace(">", ">\0").split("\0"):
        ids += chat.encode(part) if part.startswith("<") else [i for c in part for i in chat.encode(c)]
    return (*ids, chat.stop_ids[0])
