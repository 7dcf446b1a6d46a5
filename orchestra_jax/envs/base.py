"""What every world offers the collector: episodes with messages, tools, steps and a final score."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from orchestra_jax.money.budgets import Budget
from orchestra_jax.types import Task, ToolCall, ToolResult, ToolSpec, Usage

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Score:
    """Whether a task is solved, and the rows of the judge that was asked."""

    solved: bool
    usage: tuple[Usage, ...] = ()


@runtime_checkable
class Episode(Protocol):
    """One rollout of one task; it holds the world's state between calls.

    Attributes:
        messages: initial chat messages, an optional system message and the user's with the preference appended.
        tools: the menu of this instance, in the order shown.
    """

    @property
    def messages(self) -> list[Message]: ...

    @property
    def tools(self) -> tuple[ToolSpec, ...]: ...

    async def step(self, call: ToolCall) -> ToolResult:
        """Executes one call. An unknown tool or bad arguments give an `is_error` result.

        Raises:
            InfrastructureError: the tool failed through no fault of the policy; the sample is invalid.
        """
        ...

    async def score(self, answer: str) -> "bool | Score":
        """r_outcome of Eq. 1: whether the final answer (and the world's state) solves the task."""
        ...


@runtime_checkable
class Environment(Protocol):
    """Makes episodes and owns what they share: sandboxes, indices, connections."""

    def reset(self, task: Task, budget: Budget) -> Episode:
        """A fresh episode of `task`; cheap, because a step starts hundreds.

        Args:
            task: what is asked.
            budget: of the trajectory: pays for the calls. What is not the policy's to pay is charged to its parent.
        """
        ...

    async def close(self) -> None:
        """Releases what the environment owns; afterwards it cannot be used."""
        ...


def initial_messages(task: Task, system: str | None = None) -> list[Message]:
    """The optional system message, then the question with the preference's instruction appended."""
    parts = [text for text in (task.question, task.preference.instruction) if text]
    user: Message = {"role": "user", "content": "\n\n".join(parts)}
    return [{"role": "system", "content": system}, user] if system else [user]
