"""What an environment offers a run: tasks, episodes with tools and a score, and where it can, demonstrations.

A new environment is a subclass of `Environment`; docs/add_an_environment.md shows one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.data.pipeline import TaskIterator
from orchestra_jax.envs import baselines as common
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import PriceList
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.types import Task, ToolCall, ToolResult, ToolSpec, Usage, UserTurn

if TYPE_CHECKING:  # importing transformers takes two seconds
    from transformers import PreTrainedTokenizerFast

Message = dict[str, Any]
# A policy written by hand: from the task and what it observed so far to the next call, or to what it says as a string:
# the final answer, or words to the user. A user's words are observed as a result that has only a text.
Script = Callable[[Task, Sequence[ToolResult]], ToolCall | str]


@dataclass(frozen=True, slots=True)
class Score:
    """Whether a task is solved, the rows of the judge that was asked, and what is wrong by criterion.

    `criteria` are for reports: name -> what is wrong in a sentence, "" where the criterion holds.
    """

    solved: bool
    usage: tuple[Usage, ...] = ()
    criteria: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Episode(Protocol):
    """One rollout of one task; it holds the environment's state between calls.

    Attributes:
        messages: initial chat messages, an optional system message and the user's with the preference appended.
        tools: the menu of this instance, in the order shown.
    """

    @property
    def messages(self) -> list[Message]: ...

    @property
    def tools(self) -> tuple[ToolSpec, ...]: ...

    async def step(self, call: ToolCall) -> ToolResult:
        """Executes one call. An unknown tool or bad arguments give a result that is `refused`.

        A call that raised InfrastructureError or was cancelled, as it was overdue, is made again: it must not have
        changed the environment.

        Raises:
            InfrastructureError: the tool failed through no fault of the policy; the sample is invalid.
        """
        ...

    async def score(self, answer: str) -> "bool | Score":
        """r_outcome of Eq. 1: whether the final answer (and the environment's state) solves the task."""
        ...


@runtime_checkable
class PricedEpisode(Episode, Protocol):
    """An `Episode` with a price list of its own.

    Attributes:
        prices: price list of this instance, which holds for the policy's tokens too; None: the run's holds.
    """

    @property
    def prices(self) -> PriceList | None: ...


@runtime_checkable
class Conversation(Episode, Protocol):
    """An `Episode` with a user who answers. `rollout.episode` has the rules.

    Its `tools` may grow while the user speaks: the words then tell of the new ones, as a prompt in tokens stays as it
    is, and the task's own `tools` name all of them from the beginning.
    """

    async def respond(self, text: str) -> UserTurn | None:
        """What the user says to a turn without calls; None: nothing more, the turn was the answer.

        One that raised InfrastructureError or was cancelled, as it was overdue, is asked again with the same text: it
        must not have changed the episode.

        Args:
            text: the policy's words without its thinking, never empty.

        Raises:
            InfrastructureError: the user failed; the sample is invalid.
        """
        ...


class ToolEpisode(ABC):
    """An `Episode` whose calls an executor runs; a subclass says how an answer is scored.

    Args:
        task: what is asked; its `tools` are the menu.
        executor: checks, runs and charges the calls.
        messages: the first ones; None: those of `initial_messages`.
    """

    def __init__(self, task: Task, executor: ToolExecutor, messages: list[Message] | None = None) -> None:
        self.task, self.tools, self._executor = task, task.tools, executor
        self.messages = initial_messages(task) if messages is None else messages

    @property
    def prices(self) -> PriceList | None:
        """The list in force for the policy's own tokens too; None: that of the run."""
        return self._executor.prices

    async def step(self, call: ToolCall) -> ToolResult:
        return await self._executor.step(call)

    @abstractmethod
    async def score(self, answer: str) -> bool | Score:
        """See `Episode.score`."""


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """What a policy with random weights learns the format from, and what copying exactly means here.

    Attributes:
        tasks: demonstrated by `script`.
        gate: further training tasks, on which copying is measured.
        script: right format and arguments; which tools it calls should carry no information.
        think: what a demonstration thinks aloud before its first action; None: nothing.
        reference_call: the call of a tool whose arguments are copied from the task as well as they can be.
        answer_from: the answer that is copied exactly from these results.
    """

    tasks: Sequence[Task]
    gate: Sequence[Task]
    script: Script
    reference_call: Callable[[Task, str], ToolCall]
    answer_from: Callable[[Sequence[ToolResult]], str]
    think: Callable[[Task], str] | None = None


@dataclass(frozen=True, kw_only=True)
class OwnChat:
    """How an environment writes conversations for a policy that starts from random weights.

    Attributes:
        tokenizer: knows every word of the environment, and has a chat template.
        compact_menu: the template shows prices and latencies itself; they stay out of the descriptions.
    """

    tokenizer: "PreTrainedTokenizerFast"
    compact_menu: bool = False


class Environment(ABC):
    """Tasks and episodes, and what the episodes share: sandboxes, indices, connections.

    It is made with the configuration of the run as its one argument. The class methods are asked before that.

    Attributes:
        silent_baselines: nobody speaks the words of its baselines: they are no tokens, and only calls cost something.
    """

    silent_baselines: bool = False

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        """One sentence, with the fix, for everything that this environment lacks; starts nothing."""
        return []

    @classmethod
    def chat(cls, cfg: WorldConfig) -> OwnChat | None:
        """The chat of `model.tokenizer=environment`; None: there is none, a policy needs a tokenizer's folder."""
        return None

    @classmethod
    def forecast(cls, cfg: WorldConfig) -> str | None:
        """What is told before anything is spent: the data, and what a step will cost outside; None: nothing."""
        return None

    @abstractmethod
    def train_tasks(self, batch_size: int) -> TaskIterator:
        """The endless stream of training tasks from its beginning, see `data.pipeline.task_iterator`."""

    @abstractmethod
    def held_out(self, count: int) -> Sequence[Task]:
        """The first `count` tasks of evaluation, or all where there are fewer; none of them is trained on."""

    @abstractmethod
    def reset(self, task: Task, budget: Budget) -> Episode:
        """A fresh episode of `task`; cheap, because a step starts hundreds.

        Args:
            task: what is asked.
            budget: of the trajectory: pays for the calls. What is not the policy's to pay is charged to its parent.
        """

    def largest_menu(self) -> int | None:
        """Most tools that a task can offer, so that rewards are compiled once; None: the most that was seen so far."""
        return None

    def demonstrations(self) -> Demonstrations | None:
        """What the warm start learns from; None: there is none, and a policy needs weights to start from."""
        return None

    def paired_preferences(self, count: int) -> Mapping[str, Sequence[Task]]:
        """By kind of preference: the same `count` held-out questions posed under it; may be empty."""
        return {}

    def baselines(self) -> Mapping[str, Script]:
        """Scripts to compare a policy with, by name, beside `envs.baselines` of every environment; may be empty."""
        return {}

    def experts(self, task: Task) -> Sequence[common.Asked]:
        """The models that the menu of `task` offers to answer it, the cheapest first; may be empty. For baselines."""
        return ()

    def copied_call(self, task: Task, tool: str) -> ToolCall:
        """A call of `tool` as well as it can be made without a model. For baselines."""
        return common.copied_call(task, tool)

    def said(self, result: ToolResult) -> str | None:
        """What a result says as an answer; None: nothing. For baselines."""
        return common.said(result)

    async def close(self) -> None:  # noqa: B027  most environments own nothing
        """Releases what the environment owns; afterwards it cannot be used."""


def initial_messages(task: Task, system: str | None = None) -> list[Message]:
    """The optional system message, then the question with the preference's instruction appended."""
    parts = [text for text in (task.question, task.preference.instruction) if text]
    user: Message = {"role": "user", "content": "\n\n".join(parts)}
    return [{"role": "system", "content": system}, user] if system else [user]
