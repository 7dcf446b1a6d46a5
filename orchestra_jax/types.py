"""The nouns everybody shares: plain frozen dataclasses, no JAX, no I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """The ways in which a trajectory ends."""

    COMPLETED = "completed"  # the policy gave a final answer
    MALFORMED = "malformed"  # an output broke the tool-call format (the paper's format filter)
    NO_ANSWER = "no_answer"  # turn cap or context limit reached before an answer (invalid-output filter)
    FAILED = "failed"  # infrastructure failure after all tries: dropped from its group, see docs/rollouts.md


# Roles whose rows make up a trajectory's cost and latency. Rows of a "judge" or a "user_simulator" are kept apart.
TRAJECTORY_ROLES = ("orchestrator", "tool")
USER_ROLE = "user_simulator"

HAND_IN = ("answer", "relay")  # tools that only hand in the answer: no choice between ways to find it


# Traits of tools that users have preferences about; a tool that Meta made also has the trait MADE_BY + "Meta".
OPEN_WEIGHTS, CODE, SEARCH, FREE, PAID, MADE_BY = "open weights", "code", "search", "free", "paid", "made by "


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool as the policy sees it, with the price and latency that this instance's menu shows."""

    name: str
    description: str  # one paragraph of plain text
    parameters: Mapping[str, Any]  # JSON schema of the arguments, as Qwen3's template and the OpenAI API expect it
    price_usd: float | None = None  # dollars per call; None: the price is per token
    latency_s: float | None = None  # typical seconds per call; None: unknown
    local: bool = False  # it runs on the user's own machine
    traits: tuple[str, ...] = ()  # reasons to prefer it (`data.preferences`), which the description says in words
    terminal: bool = False  # its result ends the task


@dataclass(frozen=True, slots=True)
class Preference:
    """A user's wish: an instruction in words and the vector P of Eq. 2, every weight in [0, 1]."""

    name: str  # the kind of preference, for reports ("cost", "fast", ...)
    instruction: str  # the wording that is appended to the question
    tools: Mapping[str, float] = field(default_factory=dict)  # weight by tool name; tools that are absent weigh 0
    outcome: float = 1.0
    compute: float = 0.0
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class Task:
    """One instance: a question, its reference answer, the tools on offer and the user's preference."""

    id: str  # unique and stable across runs
    question: str  # the user's text, without the preference
    answer: tuple[str, ...]  # the reference answer(s); any of them counts
    tools: tuple[ToolSpec, ...]  # the menu of this instance, in the order shown
    preference: Preference
    family: str = ""  # question family, for reports
    extra: Mapping[str, Any] = field(default_factory=dict)  # what the environment needs to run or score this task


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A parsed call; `arguments` is a JSON object that was not validated against the tool's schema yet."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """One ledger row: the tokens, dollars and seconds of one call of a model or tool."""

    name: str  # tool or model ("orchestrator" for the policy itself)
    role: str = "tool"  # "orchestrator" | "tool" | "judge" | "user_simulator"; see TRAJECTORY_ROLES
    prompt_tokens: int = 0
    cached_tokens: int = 0  # a part of `prompt_tokens`
    completion_tokens: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0  # work on the clock that rewards use (simulated where the world says so)
    price_list: str = ""  # id of the price list that was applied
    estimated: bool = False  # the tokens are our own count, or a worst case: the provider reported none


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer of a tool.

    A refused call was not carried out (an unknown tool, bad arguments, no budget, an expert that wrote nothing to run):
    it does not count as a call of the tool. `usage` holds what was paid until then.
    """

    text: str  # the observation
    usage: tuple[Usage, ...] = ()
    is_error: bool = False  # the text is the tool's own error, which is an observation like any other
    final: str | None = None  # the answer with which the episode ends, from a terminal tool
    refused: bool = False


class InfrastructureError(Exception):
    """A tool, server or network failed through no fault of the policy: the sample is invalid, not wrong."""

    usage: tuple[Usage, ...] = ()  # what was paid until then


class ReplayMiss(Exception):  # noqa: N818  named like the fact it states
    """A call that has to be replayed was never recorded: the run cannot go on without the network."""


class OutOfTime(Exception):  # noqa: N818  an event, no error
    """The run gives up the step under way: it was told to stop and the step took too long, or no server is left."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation of the policy and the environment's answer."""

    prompt_ids: tuple[int, ...]  # ids appended to the sequence before sampling (turn 0: the whole prompt)
    sampled_ids: tuple[int, ...]  # the very ids the engine sampled, stop id included
    logprobs: tuple[float, ...]  # the engine's, of `sampled_ids` at the sampling temperature
    weight_version: int  # the oldest version of the weights that sampled a token of it
    finish_reason: str  # "stop" | "length" | "abort"
    text: str = ""  # decoded `sampled_ids` without the stop token, for logs
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()  # in the order of the calls
    version_spans: tuple[tuple[int, int], ...] = ()  # see `spans`; empty where `weight_version` sampled every token
    heard: str | None = None  # the reply of a conversation's user; None: no reply, or there is no user

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """(version, number of tokens) in order, for all sampled tokens."""
        return self.version_spans or ((self.weight_version, len(self.sampled_ids)),)

    def without_ids(self) -> "Turn":
        """Return the turn with counts of tokens and without the tokens: all that figures and transcripts need."""
        return replace(self, prompt_ids=(), sampled_ids=(), logprobs=(), version_spans=self.spans)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout of one task.

    `history: keep` has one sequence, forks start a new one. Within a sequence the token ids are the concatenation of
    each turn's `prompt_ids` and `sampled_ids`.
    """

    task: Task
    group: int  # index of the GRPO group within the step
    member: int  # index within the group
    sequences: tuple[tuple[Turn, ...], ...]
    status: Status
    reason: str  # one sentence for every status but COMPLETED
    answer: str | None  # the final answer, None without one
    solved: bool  # r_outcome of Eq. 1
    ledger: tuple[Usage, ...]  # of every call; the latency is not their sum, as calls of a turn run side by side
    criteria: Mapping[str, str] = field(default_factory=dict)  # problem of each named criterion, "" where it is met

    @property
    def turns(self) -> Sequence[Turn]:
        """The turns of all sequences, in order."""
        return [turn for sequence in self.sequences for turn in sequence]

    def without_ids(self) -> "Trajectory":
        """Return the trajectory with counts of tokens and without the tokens."""
        return replace(self, sequences=tuple(tuple(t.without_ids() for t in turns) for turns in self.sequences))

    @property
    def completed(self) -> bool:
        """True if the policy gave a final answer."""
        return self.status is Status.COMPLETED

    @property
    def cost_usd(self) -> float:
        """Dollars of all calls of models and tools that the policy caused."""
        return sum(row.cost_usd for row in self.ledger if row.role in TRAJECTORY_ROLES)

    @property
    def latency_s(self) -> float:
        """Clock(τ) of Eq. 2: the seconds of all generations and, for each turn, of its longest call."""
        return work_seconds(self.ledger) - sum(map(_saved_seconds, self.turns))

    @property
    def calls(self) -> list[ToolCall]:
        """Every executed call, in order, without refused ones and those that came too late to be executed."""
        answered = [pair for turn in self.turns for pair in zip(turn.calls, turn.results, strict=False)]
        return [call for call, result in answered if not result.refused]

    @property
    def tool_names(self) -> list[str]:
        """The tool's name for every executed call, in order."""
        return [call.name for call in self.calls]

    @property
    def refused(self) -> int:
        """The number of refused calls, see `ToolResult`."""
        return sum(result.refused for turn in self.turns for result in turn.results)


def work_seconds(rows: Iterable[Usage]) -> float:
    """Add up the seconds of the rows that make up a trajectory's latency."""
    return sum(row.seconds for row in rows if row.role in TRAJECTORY_ROLES)


def _saved_seconds(turn: Turn) -> float:
    """Return the seconds that were saved because the calls of the turn ran side by side."""
    seconds = [work_seconds(result.usage) for result in turn.results]
    return sum(seconds) - max(seconds, default=0.0)
