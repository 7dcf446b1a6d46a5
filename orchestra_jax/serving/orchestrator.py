"""A trained orchestrator that answers questions, in Python: `orchestra_jax.Orchestrator`."""

import asyncio
import contextlib
import hashlib
import itertools
import queue
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from orchestra_jax.config.choices import EngineName
from orchestra_jax.config.schema import ConfigError
from orchestra_jax.engines.base import Engine
from orchestra_jax.engines.embedded import EmbeddedEngine
from orchestra_jax.envs.base import Baseline, Message
from orchestra_jax.io.event_loop import LoopThread
from orchestra_jax.models.base import DecoderConfig, Params
from orchestra_jax.money.budgets import BudgetExceeded, Limits
from orchestra_jax.rl.setup import device_mesh
from orchestra_jax.rollout.chat import make_chat
from orchestra_jax.rollout.collector import Collector
from orchestra_jax.serving.answers import Answer, CallStep
from orchestra_jax.serving.asking import (
    OWN_LIMITS,
    Account,
    AccountedMessages,
    AccountedSpeaker,
    AskedWorld,
    Purse,
    QuestionError,
    Surroundings,
)
from orchestra_jax.serving.conversation import in_text
from orchestra_jax.serving.opened import AskableWorld, OpenPolicy, open_policy
from orchestra_jax.tools.spec_check import check_spec
from orchestra_jax.training.build import make_collector, make_policy, policy_config
from orchestra_jax.training.policy_weights import engine_params
from orchestra_jax.training.subject import Subject
from orchestra_jax.types import Status, Task, ToolSpec, Trajectory

_ROLES = ("user", "assistant", "tool")
ALONE = Surroundings()
_HEED_S = 0.5


class Orchestrator:
    """A policy with the tools and experts of its run, which answers questions.

    It plays the loop of training: chat template, menu, parser, tools and limits are those of the run, and the words are
    greedy unless a temperature is given. Questions may be asked from several threads and tasks at once; the engine
    samples them side by side. A context manager, or ended by `close`.

    Examples:
        >>> import orchestra_jax as oj
        >>> with oj.Orchestrator.load("outputs/quickstart") as orchestrator:  # doctest: +SKIP
        ...     found = orchestrator.ask("What is 7 * 8 + 3?", wish="cheap", max_usd=0.10)
        >>> found.answer, found.cost_usd, [call.tool for call in found.calls]  # doctest: +SKIP
        ('59', 0.06, ['calculator'])

    Attributes:
        wishes: what a user may name in a word, such as "cheap", and the sentence that it stands for.
        folder: folder of spent.jsonl, the bill.
        policy: a name for the weights that answer, which no others have.
    """

    def __init__(self, opened: OpenPolicy) -> None:
        self._opened, self.folder = opened, opened.folder
        self._world = cast(AskableWorld, opened.environment)
        self.name, self.wishes = opened.subject.cfg.name, dict(self._world.wishes())
        self._shared = make_collector(opened.subject.cfg, opened.environment, opened.chat)
        self._numbers, self._version, self._closed = itertools.count(), 0, False
        self.policy = _named(opened.subject)
        self._architecture = None if opened.chat is None else policy_config(opened.subject.cfg, opened.chat)

    @classmethod
    def load(cls, policy: str | Path, *settings: str) -> "Orchestrator":
        """Open a policy to ask it.

        Args:
            policy: folder of a run or checkpoint, id on the Hugging Face hub, the address of an OpenAI-compatible
                server, or "baseline:NAME". A run brings its world, tools, prices and limits.
            settings: settings as on the command line, such as "budget.run_usd=5"; they win over the run's. What is no
                run needs a world: "env=qa" and its data.

        Raises:
            ConfigError: it cannot be opened, or another process works in its folder; one sentence per problem.
        """
        return cls(open_policy(policy, settings))

    @property
    def slots(self) -> int:
        """Number of questions that the engine samples at once; others wait."""
        return self._opened.subject.cfg.rollout.slots

    @property
    def max_length(self) -> int:
        """Number of tokens of the longest conversation."""
        return self._opened.subject.cfg.rollout.limits.max_length

    @property
    def budget(self) -> Limits:
        """Limits of all questions together, `budget.run_*`."""
        return self._opened.money.run.limits

    @property
    def subject(self) -> Subject:
        """The policy that answers, with the settings in force."""
        return self._opened.subject

    def take_up(self, subject: Subject) -> None:
        """Answer with other weights from now on; an answer under way goes on, and its turns say which sampled them.

        Raises:
            ConfigError: they are not of the same architecture and words, or no engine of ours samples them.
        """
        subject, params = self._weights(subject)
        version = self._version + 1
        self._opened.loop.run(cast(Engine, self._opened.engine).update_weights(params, version))
        self._version, self._opened = version, replace(self._opened, subject=subject)
        self.policy = _named(subject)

    def beside(self, subject: Subject) -> "Orchestrator":
        """Return an orchestrator of other weights in the same world, with the same money. End it before this one.

        Raises:
            ConfigError: see `take_up` and `check_beside`.
        """
        self.check_beside()
        opened, (subject, params) = self._opened, self._weights(subject)
        engine = EmbeddedEngine(cast(DecoderConfig, self._architecture), params, subject.cfg.rollout)
        parts = contextlib.ExitStack()
        parts.callback(lambda: opened.loop.run(engine.close()))
        return Orchestrator(replace(opened, subject=subject, engine=engine, parts=parts))

    def check_beside(self) -> None:
        """Raise ConfigError if there can be no other policy beside this one."""
        if self._architecture is None or self.subject.cfg.rollout.engine is not EngineName.embedded:
            raise ConfigError(
                "Two policies in one server need weights of our own and rollout.engine=embedded: serve each, and let a "
                "load balancer divide."
            )

    def _weights(self, subject: Subject) -> tuple[Subject, Params]:
        """Return another policy with the settings in force here, and its weights as the engine takes them."""
        opened = self._opened
        if opened.chat is None or not subject.own or subject.adapters is not None:
            raise ConfigError("only whole policies that our engines sample can take the place of another.")
        cfg = replace(subject.cfg, rollout=self.subject.cfg.rollout)
        config, params = make_policy(cfg, opened.chat, device_mesh(cfg.mesh))
        same_words = make_chat(cfg).tokenizer.get_vocab() == opened.chat.tokenizer.get_vocab()
        if config != self._architecture or not same_words:
            raise ConfigError("it has another architecture or other words than the one that is served.")
        return replace(subject, cfg=cfg), engine_params(cfg.rollout, params, None, None, device_mesh(cfg.mesh))

    def ask(
        self,
        question: str | Task,
        *,
        wish: str | None = None,
        max_usd: float | None = None,
        max_seconds: float | None = None,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        seed: int | None = None,
        history: Sequence[Message] = (),
        tools: Sequence[ToolSpec] = (),
        after: Sequence[Message] = (),
        request_id: str | None = None,
    ) -> Answer:
        """Answer a question; what it cost is part of the answer, also where there is none.

        Args:
            question: text, or a task of the run's environment.
            wish: what the user wants beside being right: a word of `wishes`, or a sentence; None: nothing.
            max_usd: most dollars of the answer, as `Answer.cost_usd` counts them. A call that does not fit is refused,
                and the policy goes on with what it knows.
            max_seconds: seconds after which it ends without an answer, waits included.
            max_tokens: tokens of the policy, in all its turns, after which it ends without an answer.
            temperature: of sampling; 0 is greedy.
            seed: of sampling; the same seed, question and weights give the same words, where tools say the same too and
                the engine heeds seeds (the embedded one does). None: a new one.
            history: messages before the question, in the form of the OpenAI API, without a system message.
            tools: tools of your own beside those of the run; a call of one ends the answer (`Answer.tool_calls`).
            after: messages after the question: such calls and what came out, likewise.
            request_id: name of the request; None: a new one.

        Raises:
            QuestionError: the world has no answer to such a question, or an argument is wrong; one sentence.
            BudgetExceeded: budget.run_* leaves too little for another call.
        """
        said, most = Surroundings(history, after, tools), (max_usd, max_seconds, max_tokens)
        return self._loop.run(self._answered(question, wish, *most, temperature, seed, said, request_id, None, _ignore))

    async def aask(self, question: str | Task, **options: Any) -> Answer:
        """Answer a question within an event loop; see `ask`. Cancelling it ends what is under way."""
        return await asyncio.wrap_future(self._start(question, options, _ignore))

    def stream(self, question: str | Task, **options: Any) -> Iterator[CallStep | Answer]:
        """Yield each call when it begins and when it has ended, and the `Answer` last; for the rest see `ask`."""
        told: queue.SimpleQueue[CallStep | None] = queue.SimpleQueue()
        found = self._start(question, options, told.put)
        found.add_done_callback(lambda _: told.put(None))
        try:
            while True:
                with contextlib.suppress(queue.Empty):  # a signal does not always wake a thread that waits
                    if (step := told.get(timeout=_HEED_S)) is None:
                        break
                    yield step
            yield found.result()
        finally:
            found.cancel()

    async def astream(self, question: str | Task, **options: Any) -> AsyncIterator[CallStep | Answer]:
        """Yield what `stream` does, within an event loop. Closing it ends what is under way."""
        told: asyncio.Queue[CallStep | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(step: CallStep | None) -> None:
            with contextlib.suppress(RuntimeError):  # nobody listens any more
                loop.call_soon_threadsafe(told.put_nowait, step)

        found = self._start(question, options, tell)
        found.add_done_callback(lambda _: tell(None))
        try:
            while (step := await told.get()) is not None:
                yield step
            yield found.result()
        finally:
            found.cancel()

    def close(self) -> None:
        """End what is under way, the tools and the connections; twice is harmless."""
        self._closed = True
        self._opened.close()

    def __enter__(self) -> "Orchestrator":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(
        self, question: str | Task, options: Mapping[str, Any], tell: Callable[[CallStep], Any]
    ) -> "Future[Answer]":
        if unknown := options.keys() - _OPTIONS.keys():
            raise TypeError(f"There is no option {min(unknown)!r}; here are {', '.join(sorted(_OPTIONS))}.")
        given = {**_OPTIONS, **options}
        said = Surroundings(*(given.pop(name) for name in ("history", "after", "tools")))
        return self._loop.start(self._answered(question, tell=tell, said=said, **given))

    @property
    def _loop(self) -> LoopThread:
        if self._closed:
            raise ValueError("This orchestrator is closed: open its policy again with Orchestrator.load.")
        return self._opened.loop

    def posed(self, question: str, wish: str | None = None, said: Surroundings = ALONE) -> Task:
        """Return the task of a question, and check the words and tools that come with it.

        Raises:
            QuestionError: the world has no such question, the policy no such word, or a tool cannot be offered.
        """
        if not question.strip():
            raise QuestionError("The question is empty.")
        words = self.wishes.get(wish, wish) if wish and wish.strip() else None
        try:
            task = self._world.pose(question, words)
        except ValueError as error:
            raise QuestionError(str(error)) from error
        self._check(task, said)
        return task

    def _check(self, task: Task, said: Surroundings) -> None:
        """Raise QuestionError if the policy cannot read what surrounds a question."""
        messages = [*said.before, *said.after]
        if wrong := [message for message in messages if message.get("role") not in _ROLES]:
            raise QuestionError(f"A message has the role user, assistant or tool, not {wrong[0].get('role')!r}.")
        try:
            for spec in said.tools:
                check_spec(spec)
        except ValueError as error:
            raise QuestionError(str(error)) from error
        names = [spec.name for spec in (*task.tools, *said.tools)]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise QuestionError(f"There is a tool {twice[0]!r} already: give yours another name.")
        if new := [word for spec in said.tools if (word := self._unknown_word(spec.name)) is not None]:
            raise QuestionError(f"The policy has no word {new[0]!r}. Give the tool the name of one of its training's.")
        for text in (task.preference.instruction, *(message["content"] or "" for message in messages)):
            if (word := self._unknown_word(text)) is not None:
                known = f"Wishes that it understands are {', '.join(map(repr, self.wishes.values()))}."
                raise QuestionError(f"The policy has no word {word!r}: leave it out, also of a system message. {known}")

    def _told(self, said: Surroundings) -> Surroundings:
        """Return the conversation as the policy reads it: our chat format has calls in the text of a message."""
        if self._opened.chat is None:
            return said
        return replace(said, before=in_text(said.before), after=in_text(said.after))

    def _unknown_word(self, text: str) -> str | None:
        """Return the first word that a policy with words of its own does not know; None: it can read all of it."""
        chat = self._opened.chat
        unknown = None if chat is None else getattr(chat.tokenizer, "unk_token_id", None)
        if chat is None or unknown is None:
            return None
        said = chat.neutralise(text)
        if unknown not in chat.encode(f" {said}"):
            return None
        return next((word for word in said.split() if unknown in chat.encode(f" {word}")), said)

    async def _answered(
        self,
        question: str | Task,
        wish: str | None,
        max_usd: float | None,
        max_seconds: float | None,
        max_tokens: int | None,
        temperature: float,
        seed: int | None,
        said: Surroundings,
        request_id: str | None,
        purse: Purse | None,
        tell: Callable[[CallStep], Any],
    ) -> Answer:
        for key, value in (("max_usd", max_usd), ("max_seconds", max_seconds), ("temperature", temperature)):
            if value is not None and not 0 <= value < float("inf"):
                raise QuestionError(f"{key} must be at least 0, not {value}.")
        if isinstance(question, Task):
            task = question
            self._check(task, said)
        else:
            task = self.posed(question, wish, said)
        opened = self._opened
        limits, shared = self._shared.limits, self._shared.settings
        if max_seconds is not None and max_seconds > 0:
            limits = replace(limits, deadline_s=min(limits.deadline_s, max_seconds))
        name = request_id or f"orc-{secrets.token_hex(12)}"
        purse = purse or Purse(opened.money.run)
        account = Account(await purse.begin(max_usd), shared.prices, purse, tell, shared.seconds_per_token, max_tokens)
        world = AskedWorld(opened.environment, account, self._told(said))
        collector = Collector(world, opened.chat, limits, shared.prices)
        collector.settings = replace(shared, environment=world, limits=limits)
        trajectory, status, limit, reason = None, Status.FAILED, "", "cancelled"
        deadline = asyncio.timeout(max_seconds)
        try:
            async with deadline:
                trajectory = await self._played(collector, task, account, temperature, seed)
            status, reason = trajectory.status, trajectory.reason
            if max_seconds is not None and reason == f"no answer within {max_seconds:g} s of work":
                limit = "max_seconds"
        except TimeoutError:
            if not deadline.expired():
                raise
            status, limit, reason = Status.NO_ANSWER, "max_seconds", f"no answer within {max_seconds:g} s"
        except BudgetExceeded as error:
            reason = str(error)
            if error.scope not in OWN_LIMITS:
                raise
            status, limit = Status.NO_ANSWER, OWN_LIMITS[error.scope]
        finally:
            answer = account.answer(name, trajectory, status, reason, limit)
            ended = purse.end(answer, task)
        if ended is not None:
            await asyncio.wrap_future(ended)
        return answer

    async def _played(
        self, collector: Collector, task: Task, account: Account, temperature: float, seed: int | None
    ) -> Trajectory:
        engine, number = self._opened.engine, next(self._numbers) if seed is None else 0
        shared: dict[str, Any] = {"budget": account.budget, "numbers": [number]}
        if isinstance(engine, Baseline):
            found = await collector.play(engine.script, [task], silent=engine.silent, **shared)
        else:
            engine = AccountedMessages(cast(Any, engine), account) if hasattr(engine, "converse") else engine
            shared["seed"] = (self._opened.subject.cfg.evaluation.seed if seed is None else seed,)
            shared |= {"temperature": temperature, "speaker": partial(AccountedSpeaker, account)}
            found = await collector.collect(engine, [task], **shared)
        return found[0]


_OPTIONS: Mapping[str, Any] = {
    **dict.fromkeys(("wish", "max_usd", "max_seconds", "max_tokens", "seed", "request_id", "purse")),
    **dict.fromkeys(("history", "after", "tools"), ()),
    "temperature": 0.0,
}


def _named(subject: Subject) -> str:
    """Return a name for a policy as it is now, whatever becomes of its folder."""
    own = f"@{hashlib.sha256(subject.identity().encode()).hexdigest()[:8]}" if subject.own else ""
    return f"{subject.name}{own}"


def _ignore(step: CallStep) -> None:
    """Tell nobody."""
