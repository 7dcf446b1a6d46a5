"""The environment of a run: tasks, episodes with tools and a score, and demonstrations if it has any.

A new environment is a subclass of `Environment`; docs/add_an_environment.md shows one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from orchestra_jax.config.schema import WorldConfig
from orchestra_jax.data.pipeline import TaskIterator
from orchestra_jax.money.budgets import Budget
from orchestra_jax.money.prices import PriceList
from orchestra_jax.tools.executor import ToolExecutor
from orchestra_jax.types import Task, ToolCall, ToolResult, ToolSpec, Usage

if TYPE_CHECKING:  # importing transformers takes two seconds
    from transformers import PreTrainedTokenizerFast

Message = dict[str, Any]
# A policy written by hand: from the task and the results so far to the next call, or to words: the final answer, or
# what it says to the user. A user's words stand among the results as a text alone.
Script = Callable[[Task, Sequence[ToolResult]], ToolCall | str]
Thoughts = Callable[[Task, Sequence[ToolResult]], str]  # what a script thinks aloud before its next action
DO_NOTHING, RANDOM, CHEAPEST_FIRST, EXPERT = "do_nothing", "random", "cheapest_first", "expert/"  # baselines of all


@dataclass(frozen=True, slots=True)
class Score:
    """The verdict on a trajectory.

    Attributes:
        usage: ledger rows of the judge that was asked.
        criteria: for reports, name -> what is wrong in a sentence, "" where the criterion holds.
    """

    solved: bool
    usage: tuple[Usage, ...] = ()
    criteria: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Episode(Protocol):
    """One rollout of one task; it holds the environment's state between calls.

    It may also have `prices`, the price list of this instance, which holds for the policy's tokens too.
    """

    @property
    def messages(self) -> list[Message]:
        """Initial chat messages: an optional system message and the user's with the preference appended."""

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The menu of this instance, in the order shown."""

    async def step(self, call: ToolCall) -> ToolResult:
        """Execute one call. An unknown tool or bad arguments give a result that is `refused`.

        A call that raised InfrastructureError, or was cancelled because it was overdue, is made again: it must not have
        changed the environment.

        Raises:
            InfrastructureError: the tool failed through no fault of the policy; the sample is invalid.
        """

    async def score(self, answer: str) -> "bool | Score":
        """Return r_outcome of Eq. 1: whether the final answer (and the environment's state) solves the task."""


class ToolEpisode(ABC):
    """An `Episode` whose calls an executor runs; a subclass scores the answer. `messages` are `initial_messages`."""

    def __init__(self, task: Task, executor: ToolExecutor, messages: list[Message] | None = None) -> None:
        self.task, self.tools, self._executor = task, task.tools, executor
        self.messages = initial_messages(task) if messages is None else messages

    @property
    def prices(self) -> PriceList | None:
        """Price list of this instance; None: the run's."""
        return self._executor.shown

    async def step(self, call: ToolCall) -> ToolResult:
        return await self._executor.step(call)

    @abstractmethod
    async def score(self, answer: str) -> bool | Score: ...


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """Examples from which a policy with random weights learns the format, and what it should copy exactly.

    Attributes:
        tasks: training tasks, each of which the script plays once.
        gate: further training tasks, on which copying is measured.
        script: script with right format and arguments; its choice of tools should carry no information.
        think: gives what a demonstration thinks aloud after these results, "" for nothing; None: it never does.
        reference_call: gives a call of the tool with the arguments that are copied from the task and earlier results.
        answer_from: gives the answer that is copied exactly from these results.
        reads_menu: tells whether a turn with these words and this tool read the task's menu right; None: it need not.
    """

    tasks: Sequence[Task]
    gate: Sequence[Task]
    script: Script
    reference_call: Callable[[Task, str, Sequence[ToolResult]], ToolCall]
    answer_from: Callable[[Sequence[ToolResult]], str]
    think: Thoughts | None = None
    reads_menu: Callable[[Task, str, str], bool | None] = lambda task, said, tool: None
    beginnings: Callable[[Task], Sequence[tuple[ToolCall, float]]] | None = None  # first calls, each with its share


@dataclass(frozen=True, kw_only=True)
class OwnChat:
    """The chat of an environment for a policy that starts from random weights.

    Attributes:
        tokenizer: tokenizer with every word of the environment and a chat template.
        compact_menu: whether the template shows prices and latencies itself, so that descriptions leave them out.
    """

    tokenizer: "PreTrainedTokenizerFast"
    compact_menu: bool = False


@dataclass(frozen=True)
class Baseline:
    """A script as a policy.

    Attributes:
        silent: whether its words are no tokens and cost nothing, so that only its calls cost.
    """

    name: str
    script: Script
    silent: bool = True


@dataclass(frozen=True)
class OfferedExpert:
    """A model that a menu offers to answer the question: its true name, and the call that asks it."""

    name: str
    call: ToolCall


class Environment(ABC):
    """Tasks and episodes, and what the episodes share: sandboxes, indices, connections.

    A run makes it with its configuration as the only argument, and calls the class methods before that. It may
    also have `rollout_source`, a subclass of `RolloutSource` that hands out trajectories of its own.
    """

    silent_baselines: bool = False  # True: the words of its baselines are no tokens and cost nothing
    rival: tuple[str, str] | None = None  # the baseline of a run's verdict (`evaluation.verdict`), and its last line

    @classmethod
    def problems(cls, cfg: WorldConfig) -> list[str]:
        """Return one sentence, with the fix, for everything that this environment lacks; start nothing."""
        return []

    @classmethod
    def chat(cls, cfg: WorldConfig) -> OwnChat | None:
        """Return the chat of `model.tokenizer=environment`; None: a policy needs a tokenizer's folder."""
        return None

    @classmethod
    def forecast(cls, cfg: WorldConfig) -> str | None:
        """Return what is told before anything is spent: the data, and what a step will cost outside; None: nothing."""
        return None

    @abstractmethod
    def train_tasks(self, batch_size: int) -> TaskIterator:
        """Return the endless stream of training tasks from its beginning, see `data.pipeline.task_iterator`."""

    @abstractmethod
    def held_out(self, count: int) -> Sequence[Task]:
        """Return the first `count` tasks of evaluation, or all if there are fewer; none of them is trained on."""

    @abstractmethod
    def reset(self, task: Task, budget: Budget) -> Episode:
        """Begin a fresh episode of `task`; cheap, because a step starts hundreds.

        Args:
            budget: budget of the trajectory, which pays for the calls. What the policy need not pay is charged to its
                parent.
        """

    def largest_menu(self) -> int | None:
        """Return the size of the largest menu, so that rewards compile once; None: the largest that was seen so far."""
        return None

    def demonstrations(self) -> Demonstrations | None:
        """Return what the warm start learns from; None: a policy needs weights to start from."""
        return None

    def paired_preferences(self, count: int) -> Mapping[str, Sequence[Task]]:
        """Return the same `count` held-out questions under each kind of preference (preference_swap); may be empty."""
        return {}

    def baselines(self) -> Mapping[str, Script]:
        """Return scripts to compare a policy with, by name, beside those of `envs.baselines`; may be empty."""
        return {}

    def experts(self, task: Task) -> Sequence[OfferedExpert]:
        """Return the models that the menu of `task` offers to answer it, the cheapest first; for baselines."""
        return ()

    def copied_call(self, task: Task, tool: str) -> ToolCall:
        """Return a call of `tool` as well as it can be made without a model; for baselines."""
        from orchestra_jax.envs.copying import copied_call

        return copied_call(task, tool)

    def said(self, task: Task, result: ToolResult) -> str | None:
        """Return what a result in an episode of `task` says as an answer; None: nothing; for baselines."""
        return said(result)

    async def close(self) -> None:  # noqa: B027  most environments own nothing
        """Release what the environment owns; afterwards it cannot be used."""


def said(result: ToolResult) -> str | None:
    """Return what a result says as an answer; None: nothing."""
    text = (result.text if result.final is None else result.final).strip()
    return None if result.is_error or result.refused or not text else text


def do_nothing(task: Task, results: Sequence[ToolResult]) -> ToolCall | str:
    """Give the empty answer, at once."""
    return ""


def initial_messages(task: Task, system: str | None = None) -> list[Message]:
    """Return the optional system message, then the question with the preference's instruction appended."""
    parts = [text for text in (task.question, task.preference.instruction) if text]
    user: Message = {"role": "user", "content": "\n\n".join(parts)}
    return [{"role": "system", "content": system}, user] if system else [user]
