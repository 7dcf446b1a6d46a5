"""Rollouts from a real SGLang server: through the collector, and through a bare HTTP client, in turns.

    .venv/bin/python benchmarks/rollout.py
    .venv/bin/python benchmarks/rollout.py --trajectories 4 --turns 2 --new 16 --rounds 1    # a smoke run

Starts one server on a small random fp32 model on this CPU. Both clients play the same number of trajectories at once
against it, the same number of turns each, and have the same number of tokens sampled in every turn.

  collector   Collector + SGLangEngine as in training: renders, tokenises, checks every answer, decodes, parses, calls
              the tool, tokenises its result, keeps ledger and trajectory.
  bare        one aiohttp session: posts prompts that were made before the clock started, decodes the JSON of each
              answer, and nothing else.

A random policy calls no tools. So the server samples as many tokens as a call has, whatever they are, and only then a
thin wrapper around the engine puts the ids of a call in their place: the server did all of its work, and the collector
parses and executes a call of a free tool in every turn. The next prompt holds that call and its result, for both
clients. Prompts are fresh in every round and for either client, so the prefix cache serves both alike: the menu and a
trajectory's own earlier turns. The order changes every round. The run fails unless every trajectory executed its
calls and sent exactly the prompts that the bare client would have. The clients are one process with one thread, and
share the machine with the server; CPU seconds are that process's.
"""

import argparse
import asyncio
import gc
import importlib.util
import statistics
import string
import sys
import tempfile
import time
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from peer import ROOT
from rich.console import Console
from rich.table import Table
from short import keep, machine, parse, table, wide_console

from orchestra_jax.config.rollout import RolloutLimits
from orchestra_jax.engines.base import Generation, SamplingParams
from orchestra_jax.engines.sglang.engine import SGLangEngine
from orchestra_jax.engines.sglang.process import ServerConfig, SGLangProcess
from orchestra_jax.engines.sglang.protocol import request_body
from orchestra_jax.engines.sglang.weight_sync import DiskWeightSync
from orchestra_jax.envs.base import initial_messages
from orchestra_jax.envs.qa.environment import QAEpisode
from orchestra_jax.envs.words import CHAT_TEMPLATE
from orchestra_jax.models.checkpoint import safetensors
from orchestra_jax.models.decoder import init_params
from orchestra_jax.models.qwen3 import Qwen3Config
from orchestra_jax.models.sizes import num_params
from orchestra_jax.models.tokenizer import build_word_tokenizer
from orchestra_jax.money import price_files
from orchestra_jax.money.budgets import Budget
from orchestra_jax.rollout.chat import ChatFormat
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.rollout.parsing import render_call
from orchestra_jax.rollout.watchdog import Watchdog, describe
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.types import Preference, Status, Task, ToolCall, ToolSpec, Trajectory

CLIENTS = {"collector": "Collector + SGLangEngine", "bare": "bare aiohttp client"}
TARGET = 0.10  # of the bare client's seconds
START_SECONDS = 1800
ROUND_SECONDS = 1800
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOL = ToolSpec("echo", "Repeats a text.", SCHEMA, price_usd=0.0, latency_s=0.0)
SCAFFOLDS = '\n{"name": "', '", "arguments": {"text": "', '"}}\n'
WORDS = [first + second for first in string.ascii_lowercase for second in string.ascii_lowercase]
PRICES = {
    "id": "benchmark",
    "date": "2025-01-01",
    "source": "made up",
    "entries": {"orchestrator": {"input": 1.0, "cached_input": 0.1, "output": 10.0}},
}


class Echo:
    """A world with one free tool."""

    def reset(self, task: Task, budget: Budget) -> QAEpisode:
        return QAEpisode(task, ToolExecutor(task.tools, {TOOL.name: _echo}, budget), budget)

    async def close(self) -> None:
        pass


async def _echo(arguments: Mapping[str, Any], budget: Budget) -> str:
    return arguments["text"]


class CallingEngine:
    """An engine whose server samples freely, and which then says one call instead; see `engines.base.Engine`."""

    def __init__(self, engine: SGLangEngine, call_ids: Sequence[int]) -> None:
        self._engine, self._call_ids = engine, tuple(call_ids)
        self.open_session, self.close_session = engine.open_session, engine.close_session
        self.update_weights, self.close = engine.update_weights, engine.close

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Generation:
        free = replace(params, max_new_tokens=len(self._call_ids), stop_ids=())
        sampled = await self._engine.generate(prompt_ids, free, session=session)
        return replace(sampled, token_ids=self._call_ids, finish_reason="stop")


class Work:
    """What both clients have to do.

    Attributes:
        chat: the tokenizer of a language of two-letter words.
        call_ids: the call of every turn, stop id included.
        longest: tokens of a trajectory at its end.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self._random = np.random.default_rng(0)
        spoken = " ".join(WORDS)
        texts = (
            render_call(ToolCall(TOOL.name, {"text": spoken})),
            f" user system assistant tool cents seconds; {spoken}",
        )
        self.chat = ChatFormat(build_word_tokenizer(texts, CHAT_TEMPLATE, SCAFFOLDS), compact_menu=True)
        said, self.call_ids = self._call(args.new)
        self._between = (*self.call_ids, *self.chat.observation_ids([said]))
        self.longest = len(self.prompts(self.tasks()[0])[-1]) + len(self._between)

    def tasks(self) -> list[Task]:
        """Fresh questions, one for each trajectory."""
        questions = [" ".join(self._random.choice(WORDS, self.args.prompt)) for _ in range(self.args.trajectories)]
        return [Task(str(i), text, ("",), (TOOL,), Preference("none", "")) for i, text in enumerate(questions)]

    def prompts(self, task: Task) -> list[list[int]]:
        """The ids in front of every turn of a trajectory."""
        first = self.chat.prompt_ids(initial_messages(task), task.tools)
        return [[*first, *self._between * turn] for turn in range(self.args.turns)]

    def check(self, trajectories: Sequence[Trajectory], tasks: Sequence[Task]) -> None:
        """Sees that the collector executed every call and sent the prompts that the bare client would have sent.

        Raises:
            RuntimeError: it did not.
        """
        for trajectory, task in zip(trajectories, tasks, strict=True):
            if trajectory.status is not Status.NO_ANSWER or len(trajectory.tool_names) != self.args.turns:
                raise RuntimeError(f"A trajectory ended early, as {trajectory.status}: {trajectory.reason}.")
            if any(result.is_error for turn in trajectory.turns for result in turn.results):
                raise RuntimeError("A tool call was refused.")
            sent = list[int]()
            for turn, prompt in zip(trajectory.turns, self.prompts(task), strict=True):
                sent += turn.prompt_ids
                if sent != prompt:
                    raise RuntimeError("The collector sent another prompt than the bare client would have.")
                sent += turn.sampled_ids

    def _call(self, length: int) -> tuple[str, tuple[int, ...]]:
        """The text to repeat, and the call's ids, `length` of them."""
        for count in range(1, length):
            said = " ".join(WORDS[i % len(WORDS)] for i in range(count))
            ids = (*self.chat.encode(render_call(ToolCall(TOOL.name, {"text": said}))), self.chat.stop_ids[0])
            if len(ids) >= length:
                break
        if len(ids) != length:
            raise ValueError(f"The shortest call has {len(ids)} tokens, so --new {length} is too few.")
        return said, ids


async def _collect(collector: Collector, engine: CallingEngine, tasks: Sequence[Task]) -> list[Trajectory]:
    async with asyncio.timeout(ROUND_SECONDS):
        return await collector.collect(engine, tasks, budget=Budget())


async def _post(session: Any, url: str, prompts: Sequence[Sequence[Sequence[int]]], new: int) -> None:
    """All trajectories at once, the turns of each after one another.

    Raises:
        RuntimeError: the server sampled another number of tokens than it was asked for.
    """

    async def one(turns: Sequence[Sequence[int]]) -> None:
        for prompt in turns:
            body = request_body(uuid.uuid4().hex, prompt, SamplingParams(new), new)
            async with session.post(f"{url}/generate", json=body) as response:
                found = len((await response.json())["output_ids"])
            if found != new:
                raise RuntimeError(f"The server sampled {found} tokens instead of {new}.")

    async with asyncio.timeout(ROUND_SECONDS):
        await asyncio.gather(*map(one, prompts))


async def _timed(work: Coroutine[Any, Any, Any], tokens: int) -> tuple[dict[str, float], Any]:
    """Wall-clock and CPU seconds of this process, and what the work returned."""
    gc.collect()
    start, cpu = time.perf_counter(), time.process_time()
    found = await work
    wall = time.perf_counter() - start
    return {"wall_s": wall, "cpu_s": time.process_time() - cpu, "tokens_per_s": tokens / wall}, found


async def _measure(args: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    """All rounds of both clients against one server."""
    import aiohttp

    work = Work(args)
    config = Qwen3Config.preset(args.model, vocab_size=len(work.chat.tokenizer))
    params = init_params(config, jax.random.key(0))
    safetensors.save(folder / "model", config, params)
    # Every trajectory runs at once, and its earlier turns stay in the cache.
    flags = (
        f"--max-running-requests={args.trajectories}",
        f"--max-total-tokens={max(16384, 4 * args.trajectories * work.longest)}",
    )
    server = SGLangProcess(
        ServerConfig(
            python=args.python, model=folder / "model", log=folder / "server.log", port=args.port, device="cpu",
            max_length=work.longest, flags=flags, ready_s=START_SECONDS,
        )
    )  # fmt: skip
    engine = SGLangEngine(
        [server.url], max_length=work.longest, vocab_size=config.vocab_size,
        weight_sync=DiskWeightSync(config, folder / "weights"),
        concurrency=args.trajectories,
    )  # fmt: skip
    limits = RolloutLimits(args.turns, args.turns, work.longest, args.new, retries=0, deadline_s=ROUND_SECONDS)
    collector = Collector(
        Echo(), work.chat, limits, price_files.from_config(PRICES),
        watchdog=Watchdog(lambda slow: console.print(describe(slow))),
    )  # fmt: skip
    calling, tokens = CallingEngine(engine, work.call_ids), args.trajectories * args.turns * args.new
    rounds: dict[str, list[dict[str, float]]] = {key: [] for key in CLIENTS}
    try:
        with console.status("The server starts ..."):
            await server.start()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            for number in range(args.rounds + 1):  # the first warms up
                for key in list(CLIENTS)[:: 1 if number % 2 else -1]:
                    tasks = work.tasks()
                    if key == "collector":
                        found, trajectories = await _timed(_collect(collector, calling, tasks), tokens)
                        work.check(trajectories, tasks)
                    else:
                        prompts = [work.prompts(task) for task in tasks]
                        found, _ = await _timed(_post(session, server.url, prompts, args.new), tokens)
                    if number:
                        rounds[key].append(found)
                    console.print(
                        f"{number}/{args.rounds} {CLIENTS[key]}: {found['tokens_per_s']:.0f} tokens/s", highlight=False
                    )
    finally:
        await engine.close()
        await server.stop()
    shape = {name: getattr(args, name) for name in ("model", "trajectories", "turns", "new")}
    first = len(work.prompts(work.tasks()[0])[0])
    return {**shape, "params": num_params(config), "first_prompt": first, "longest": work.longest, "rounds": rounds}


def _summary(rounds: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Medians per client; ratios are taken within each round, and their median is what counts."""

    def median(key: str, quantity: str) -> float:
        return statistics.median(found[quantity] for found in rounds[key])

    pairs = list(zip(rounds["collector"], rounds["bare"], strict=True))
    extra = [ours["wall_s"] / bare["wall_s"] - 1 for ours, bare in pairs]
    return {
        "medians": {key: {name: median(key, name) for name in rounds[key][0]} for key in rounds},
        "ratio": statistics.median(ours["tokens_per_s"] / bare["tokens_per_s"] for ours, bare in pairs),
        "overhead": statistics.median(extra),
        "overhead_range": [min(extra), max(extra)],
    }


def _table(result: Mapping[str, Any], summary: Mapping[str, Any]) -> Table:
    title = (
        "{trajectories} trajectories at once, {turns} turns of {new} tokens each, first prompt {first_prompt}, "
        "at the end {longest} tokens"
    )
    made = table(
        title.format_map(result), ["client"], ["tokens/s", "range", "seconds", "client CPU s", "collector / it"]
    )
    for key, rounds in result["rounds"].items():
        speeds, medians = [found["tokens_per_s"] for found in rounds], summary["medians"][key]
        made.add_row(
            CLIENTS[key],
            f"{medians['tokens_per_s']:.0f}",
            f"{min(speeds):.0f}-{max(speeds):.0f}",
            f"{medians['wall_s']:.2f}",
            f"{medians['cpu_s']:.2f}",
            f"{summary['ratio']:.3f}" if key == "bare" else "",
        )
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=64, help="at once (default 64)")
    parser.add_argument("--turns", type=int, default=4, help="of a trajectory (default 4)")
    parser.add_argument("--new", type=int, default=32, help="tokens sampled in a turn (default 32)")
    parser.add_argument("--prompt", type=int, default=64, help="words of a question (default 64)")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds per client, at least 5 to report")
    parser.add_argument("--model", default="tiny", help="an orchestra_jax preset without vocabulary: tiny or small")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-sglang/bin/python", help="SGLang's interpreter")
    parser.add_argument("--port", type=int, default=0, help="of the server (default: a free one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured here")
    args = parse(parser, "--trajectories", "4", "--turns", "2", "--new", "16", "--rounds", "1")
    if min(args.trajectories, args.turns, args.new, args.prompt, args.rounds) < 1:
        parser.error("--trajectories, --turns, --new, --prompt and --rounds must be at least 1.")
    console = wide_console()
    if not args.python.exists():
        console.print(f"{args.python} is missing: make sglang-cpu, or name another interpreter with --python.")
        return 1
    if importlib.util.find_spec("aiohttp") is None:
        console.print('This needs aiohttp: pip install -e ".[sglang]".', markup=False)
        return 1
    jax.config.update("jax_platforms", "cpu")  # only to draw the weights
    try:
        with tempfile.TemporaryDirectory(prefix="rollout_") as name:
            result = asyncio.run(_measure(args, Path(name), console))
    except ValueError as error:
        parser.error(str(error))
    summary = _summary(result["rounds"])
    console.print(_table(result, summary))
    low, high = summary["overhead_range"]
    console.print(
        f"Overhead of the collector: {summary['overhead']:.1%} of the bare client's seconds, median of {args.rounds} "
        f"rounds ({low:.1%} to {high:.1%}); goal: below {TARGET:.0%}.",
        highlight=False,
    )
    keep(args.json, {**machine(), **summary, **result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
