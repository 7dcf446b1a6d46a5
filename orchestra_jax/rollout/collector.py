"""Many episodes at once: an engine (tokens) times an environment (tools) gives trajectories.

Rule 1 of the design: what was sampled is what is trained. Sampled ids go into the trajectory untouched; text is only
decoded to find calls and answers, and only new observations are tokenised.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestra_jax.envs.base import Environment, Episode
from orchestra_jax.rollout.chat import ChatFormat, ParseError, final_answer, parse_tool_calls
from orchestra_jax.rollout.engine import Engine, Generation, SamplingParams
from orchestra_jax.tools.pricing import PriceList
from orchestra_jax.types import InfrastructureError, Status, Task, ToolCall, ToolResult, Trajectory, Turn, Usage


@dataclass(frozen=True)
class RolloutLimits:
    """Bounds of one trajectory.

    Attributes:
        max_turns: policy generations, the answer included.
        max_calls: executed tool calls.
        max_length: tokens of one sequence.
        max_new_tokens: tokens of one generation.
        retries: fresh attempts after an infrastructure failure.
    """

    max_turns: int = 50
    max_calls: int = 50
    max_length: int = 32_000
    max_new_tokens: int = 8_000
    retries: int = 2


@dataclass(frozen=True)
class OrchestratorPrice:
    """What the policy's own tokens cost.

    Attributes:
        prices: price list with an entry for `model`.
        model: name of the entry.
        seconds_per_token: simulated seconds per sampled token, or None to measure the wall clock.
    """

    prices: PriceList
    model: str = "orchestrator"
    seconds_per_token: float | None = None


# The next call, or the final answer as a string.
Script = Callable[[Task, Sequence[ToolResult]], ToolCall | str]


class Player(Protocol):
    """Chooses the next output of one trajectory."""

    async def act(self, task: Task, ids: Sequence[int], results: Sequence[ToolResult], turn: int) -> Generation:
        """The next generation, given the whole sequence so far and the results observed so far."""
        ...

    def end(self) -> None:
        """The trajectory is over."""
        ...


class EnginePlayer:
    """Plays with an engine; `seed` makes every generation of the trajectory reproducible."""

    def __init__(self, engine: Engine, params: SamplingParams, seed: tuple[int, ...]) -> None:
        self._engine, self._params, self._seed = engine, params, seed
        self._session = engine.open_session()

    async def act(self, task: Task, ids: Sequence[int], results: Sequence[ToolResult], turn: int) -> Generation:
        params = SamplingParams(
            self._params.max_new_tokens, self._params.temperature, self._params.stop_ids, _seed64(*self._seed, turn)
        )
        return await self._engine.generate(ids, params, session=self._session)

    def end(self) -> None:
        self._engine.close_session(self._session)


class ScriptPlayer:
    """Plays what a function of (task, results so far) says: demonstrations and baselines."""

    def __init__(self, chat: ChatFormat, script: Script) -> None:
        self._chat, self._script = chat, script

    async def act(self, task: Task, ids: Sequence[int], results: Sequence[ToolResult], turn: int) -> Generation:
        action = self._script(task, results)
        text = action if isinstance(action, str) else render_call(action)
        sampled = (*self._chat.encode(text), self._chat.stop_ids[0])
        return Generation(sampled, (0.0,) * len(sampled), "stop", 0)

    def end(self) -> None:
        pass


def render_call(call: ToolCall) -> str:
    """The call as Qwen3's template writes it."""
    return f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': dict(call.arguments)})}\n</tool_call>"


def _seed64(*parts: int) -> int:
    """A 64-bit seed that differs in every part, stable across processes."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest())


class Collector:
    """Runs episodes concurrently and returns their trajectories in a fixed order.

    Args:
        environment: makes episodes.
        chat: renders, tokenises and parses.
        limits: bounds of one trajectory.
        price: what the policy's own tokens cost.
    """

    def __init__(
        self, environment: Environment, chat: ChatFormat, limits: RolloutLimits, price: OrchestratorPrice
    ) -> None:
        self.environment, self.chat, self.limits, self.price = environment, chat, limits, price

    async def collect(
        self,
        engine: Engine,
        tasks: Sequence[Task],
        *,
        group_size: int = 1,
        temperature: float = 1.0,
        seed: Sequence[int] = (0,),
        on_done: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Rolls every task out `group_size` times with the policy behind `engine`.

        Args:
            temperature: sampling temperature; 0 is greedy.
            seed: reproducible: the same seed, tasks and weights give the same trajectories.
            on_done: called as each trajectory ends, for progress bars.

        Returns:
            Trajectories ordered by task, then member.
        """
        params = SamplingParams(self.limits.max_new_tokens, temperature, self.chat.stop_ids)

        def player(group: int, member: int, attempt: int) -> Player:
            return EnginePlayer(engine, params, (*seed, group, member, attempt))

        return await self._collect(player, tasks, group_size, on_done)

    async def play(self, script: Script, tasks: Sequence[Task]) -> list[Trajectory]:
        """Plays every task once with a script instead of a policy."""
        return await self._collect(lambda *_: ScriptPlayer(self.chat, script), tasks, 1, None)

    async def _collect(
        self,
        make_player: Callable[[int, int, int], Player],
        tasks: Sequence[Task],
        group_size: int,
        on_done: Callable[[Trajectory], None] | None,
    ) -> list[Trajectory]:
        prompts = [self._prompt(task) for task in tasks]

        async def one(group: int, member: int, player: Player) -> Trajectory:
            for attempt in range(self.limits.retries + 1):
                player = player if attempt == 0 else make_player(group, member, attempt)
                trajectory = await self._rollout(tasks[group], prompts[group], group, member, player)
                if trajectory.status is not Status.FAILED:
                    break
            if on_done is not None:
                on_done(trajectory)
            return trajectory

        # Players are made before any of them runs, so that a lockstep engine knows how many to wait for.
        todo = [(g, m, make_player(g, m, 0)) for g in range(len(tasks)) for m in range(group_size)]
        return list(await asyncio.gather(*(one(*item) for item in todo)))

    def _prompt(self, task: Task) -> tuple[int, ...]:
        episode = self.environment.reset(task)
        return self.chat.prompt_ids(episode.messages, episode.tools)

    async def _rollout(
        self, task: Task, prompt: tuple[int, ...], group: int, member: int, player: Player
    ) -> Trajectory:
        run = _Run(self, task, prompt, player)
        try:
            status, reason, answer = await run.turns_until_end(self.environment.reset(task))
        except InfrastructureError as error:
            status, reason, answer = Status.FAILED, str(error), None
        finally:
            player.end()
        return Trajectory(
            task, group, member, (tuple(run.turns),), status, reason, answer, run.solved, tuple(run.ledger)
        )


class _Run:
    """The state of one trajectory while it runs."""

    def __init__(self, collector: Collector, task: Task, prompt: tuple[int, ...], player: Player) -> None:
        self.collector, self.task, self.prompt, self.player = collector, task, prompt, player
        self.turns: list[Turn] = []
        self.ledger: list[Usage] = []
        self.results: list[ToolResult] = []
        self.solved = False

    async def turns_until_end(self, episode: Episode) -> tuple[Status, str, str | None]:
        chat, limits = self.collector.chat, self.collector.limits
        ids, suffix = self.prompt, self.prompt
        for turn in range(limits.max_turns):
            if len(ids) >= limits.max_length:
                return Status.NO_ANSWER, f"the context limit of {limits.max_length} tokens was reached", None
            generation = await self._generate(ids, turn)
            text = chat.decode(generation.token_ids)
            calls = parse_tool_calls(text)
            ended = generation.finish_reason == "stop"
            problem = calls.reason if isinstance(calls, ParseError) else "" if ended else "the output was cut off"
            executable = [] if isinstance(calls, ParseError) or problem else calls
            if len(self.results) + len(executable) > limits.max_calls:
                self._record(suffix, generation, text)
                return Status.NO_ANSWER, f"more than {limits.max_calls} tool calls", None
            results = list(await asyncio.gather(*(episode.step(call) for call in executable)))
            self.turns.append(
                Turn(
                    suffix, generation.token_ids, generation.logprobs, generation.weight_version,
                    generation.finish_reason, text, tuple(executable), tuple(results),
                )  # fmt: skip
            )
            self.results += results
            self.ledger += [row for result in results for row in result.usage]
            if problem:
                return Status.MALFORMED, problem, None
            if not executable:
                answer = final_answer(text)
                if not answer:
                    return Status.NO_ANSWER, "the final answer is empty", None
                self.solved = await episode.score(answer)
                return Status.COMPLETED, "", answer
            suffix = chat.observation_ids([result.text for result in results])
            ids = (*ids, *generation.token_ids, *suffix)
        return Status.NO_ANSWER, f"no answer within {limits.max_turns} turns", None

    def _record(self, suffix: tuple[int, ...], generation: Generation, text: str) -> None:
        self.turns.append(
            Turn(
                suffix, generation.token_ids, generation.logprobs, generation.weight_version,
                generation.finish_reason, text,
            )  # fmt: skip
        )

    async def _generate(self, ids: tuple[int, ...], turn: int) -> Generation:
        """One generation and its ledger row."""
        price = self.collector.price
        start = time.perf_counter()
        generation = await self.player.act(self.task, ids, self.results, turn)
        seconds = time.perf_counter() - start
        if price.seconds_per_token is not None:
            seconds = price.seconds_per_token * len(generation.token_ids)
        usage = {
            "prompt_tokens": len(ids),
            # The sequence so far was read or written in earlier turns, whatever the engine kept of it.
            "cached_tokens": len(ids) - len(self.prompt) if turn else 0,
            "completion_tokens": len(generation.token_ids),
        }
        cost = price.prices.cost(price.model, **usage)
        self.ledger.append(
            Usage(price.model, "orchestrator", cost_usd=cost, seconds=seconds, price_list=price.prices.id, **usage)
        )
        return generation
