"""`inspect eval TASK --model orchestra/FOLDER`: a checkpoint or a run's policy, sampled by our engines.

`-M settings="rollout=embedded rollout.limits.max_length=4000"` sets what it runs with, as on the command line of
experiments/evaluate.py.
"""

import asyncio
import atexit
import contextlib
import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestra_jax.config.compose import compose
from orchestra_jax.config.schema import ConfigError, RunConfig
from orchestra_jax.engines.base import Engine, Generation, SamplingParams
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.processes import Processes
from orchestra_jax.rollout.chat import ChatFormat, make_chat
from orchestra_jax.rollout.conversation_ids import conversation_ids
from orchestra_jax.rollout.parsing import OPEN, ParseError, final_answer, parse_tool_calls
from orchestra_jax.training.build import keep_compiled
from orchestra_jax.training.evaluate import engine_of
from orchestra_jax.training.inspect.messages import OURS, to_ours, tool_spec
from orchestra_jax.training.subject import subject_of
from orchestra_jax.types import ToolSpec


@dataclass(frozen=True)
class Sampled:
    """One answer.

    Attributes:
        text: as it was sampled; None: the conversation has no room for another turn.
        generation: None if there was no room for an answer.
        prompt: the number of tokens of the conversation.
    """

    text: str | None
    generation: Generation | None
    prompt: int


class Policy:
    """An engine in a thread of its own that answers conversations.

    Args:
        path: as `policy` of experiments/evaluate.py, but no endpoint and no baseline.
        overrides: settings.

    Raises:
        ConfigError: it cannot be started.
    """

    def __init__(self, path: str, overrides: Sequence[str] = ()) -> None:
        subject = subject_of(compose(*overrides, f"policy={path}", name="evaluate"))
        # The engine cannot wait for all conversations, as nobody says how many there are.
        self.cfg: RunConfig = replace(subject.cfg, rollout=replace(subject.cfg.rollout, lockstep=False))
        keep_compiled(self.cfg)
        self._chat: ChatFormat = make_chat(self.cfg)
        self._opened, self._numbers = contextlib.ExitStack(), itertools.count()
        folder = Path(self._opened.enter_context(tempfile.TemporaryDirectory()))
        self._loop = self._opened.enter_context(LoopThread())
        started = engine_of(replace(subject, cfg=self.cfg), None, folder, Processes(), self._loop, self._chat)
        engine = self._opened.enter_context(started)
        self._engine: Engine = engine  # type: ignore[assignment]
        atexit.register(self.close)  # not everybody closes a model; last, or the loop would end before the engine

    async def sample(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[ToolSpec],
        most: int,
        temperature: float,
        seed: int | None,
    ) -> Sampled:
        """Return the next turn of a conversation; any event loop may await it.

        Args:
            messages: the conversation so far.
            tools: on offer.
            most: the most new tokens.
            temperature: of sampling; 0 is greedy.
            seed: None: another one each time, so that the epochs of a question are samples of their own.
        """
        seed = next(self._numbers) if seed is None else seed
        ids = conversation_ids(self._chat, messages, tools)
        room = min(most, self.cfg.rollout.limits.max_length - len(ids))
        if room < 1:
            return Sampled(None, None, len(ids))
        params = SamplingParams(room, temperature, self._chat.stop_ids, seed)
        found = await asyncio.wrap_future(self._loop.start(self._engine.generate(ids, params)))
        if found.finish_reason == "abort":
            raise RuntimeError("the engine aborted the generation")
        return Sampled(self._chat.decode(found.token_ids), found, len(ids))

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self._chat.encode(text))

    def close(self) -> None:
        """End the engine; closing twice is harmless."""
        atexit.unregister(self.close)
        self._opened.close()


def provider() -> Any:
    """Return the class that Inspect makes a model of.

    Raises:
        ImportError: inspect-ai is not installed.
    """
    from inspect_ai.model import GenerateConfig, ModelAPI, ModelOutput

    class OrchestraAPI(ModelAPI):
        """A policy of ours as a model of Inspect: it samples with Inspect's messages, tools and limits."""

        def __init__(
            self,
            model_name: str,
            base_url: str | None = None,
            api_key: str | None = None,
            config: GenerateConfig = GenerateConfig(),  # noqa: B008  as in Inspect
            **model_args: Any,
        ) -> None:
            settings = str(model_args.pop("settings", "")).split()
            if model_args:
                raise ConfigError(f"orchestra/{model_name} takes -M settings=..., not {', '.join(sorted(model_args))}.")
            super().__init__(model_name, base_url, api_key, [], config)
            self._policy = Policy(model_name, settings)

        async def generate(
            self,
            input: Any,  # noqa: A002  as in Inspect
            tools: Any,
            tool_choice: Any,
            config: GenerateConfig,
        ) -> ModelOutput:
            specs = [] if tool_choice == "none" else [tool_spec(info) for info in tools]
            limits = self._policy.cfg.rollout.limits
            most = config.max_tokens or limits.max_new_tokens
            found = await self._policy.sample(
                to_ours(input), specs, min(most, limits.max_new_tokens), config.temperature or 0.0, config.seed
            )
            return _output(self.model_name, found)

        async def count_text_tokens(self, text: str) -> int:
            return self._policy.count(text)  # Inspect's own count downloads a vocabulary

        async def count_tokens(self, input: Any, config: GenerateConfig | None = None) -> int:  # noqa: A002
            text = input if isinstance(input, str) else "\n".join(message["content"] for message in to_ours(input))
            return self._policy.count(text)

        def max_connections(self) -> int:
            return self._policy.cfg.rollout.slots

        async def aclose(self) -> None:
            await asyncio.to_thread(self._policy.close)

    return OrchestraAPI


def _output(model: str, found: Sampled) -> Any:
    """Return what Inspect expects of a model: message, calls, why it ended, and tokens. Unreadable calls stay text."""
    from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, ModelOutput, ModelUsage
    from inspect_ai.tool import ToolCall

    if found.text is None or found.generation is None:
        return ModelOutput.from_content(model, "", stop_reason="model_length")
    read = parse_tool_calls(found.text)
    calls = [] if isinstance(read, ParseError) or found.generation.finish_reason != "stop" else read
    written = len(found.generation.token_ids)
    # Text that is no call stays, for the reader.
    content = final_answer(found.text).partition(OPEN)[0].strip() if calls else found.text
    message = ChatMessageAssistant(
        content=content,
        tool_calls=[
            ToolCall(id=f"call-{place}", function=call.name, arguments=dict(call.arguments))
            for place, call in enumerate(calls, 1)
        ]
        or None,
        model=model,
        metadata={OURS: found.text},
    )
    cut = found.generation.finish_reason == "length"
    return ModelOutput(
        model=model,
        choices=[
            ChatCompletionChoice(
                message=message, stop_reason="max_tokens" if cut else "tool_calls" if calls else "stop"
            )
        ],
        usage=ModelUsage(
            input_tokens=found.prompt - found.generation.cached_tokens,
            output_tokens=written,
            total_tokens=found.prompt + written,
            input_tokens_cache_read=found.generation.cached_tokens or None,
        ),
    )
