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


# Traits of tools that users have preferences about; a tool that Meta made also has the trait MADE_BY + "Meta".
OPEN_WEIGHTS, CODE, SEARCH, FREE, PAID, MADE_BY = "open weights", "code", "search", "free", "paid", "made by "


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool as the policy sees it, with the price and latency that this instance's menu shows.

    Attributes:
        name: the name the policy calls.
        description: one paragraph of plain text.
        parameters: JSON schema of the arguments, as Qwen3's template and the OpenAI API expect it.
        price_usd: dollars per call shown in the menu, or None where the price is per token.
        latency_s: typical seconds per call shown in the menu, or None when unknown.
        local: whether the tool runs on the user's own machine.
        traits: reasons to prefer it, see `data.preferences`; not shown, since the description says it in words.
        terminal: whether its result ends the task.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    price_usd: float | None = None
    latency_s: float | None = None
    local: bool = False
    traits: tuple[str, ...] = ()
    terminal: bool = False


@dataclass(frozen=True, slots=True)
class Preference:
    """A user's wish: an instruction in words and the vector P of Eq. 2, every weight in [0, 1].

    Attributes:
        name: the kind of preference, for reports ("cost", "fast", ...).
        instruction: the wording that is appended to the question.
        tools: weight by tool name; tools that are absent weigh 0.
        outcome, compute, latency: the last three elements of P.
    """

    name: str
    instruction: str
    tools: Mapping[str, float] = field(default_factory=dict)
    outcome: float = 1.0
    compute: float = 0.0
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class Task:
    """One instance: a question, its reference answer, the tools on offer and the user's preference.

    Attributes:
        id: unique and stable across runs.
        question: the user's text, without the preference.
        answer: the reference answer(s); any of them counts.
        tools: the menu of this instance, in the order shown.
        preference: instruction and vector.
        family: question family, for reports.
        extra: data that the environment needs to run or score this task.
    """

    id: str
    question: str
    answer: tuple[str, ...]
    tools: tuple[ToolSpec, ...]
    preference: Preference
    family: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A parsed call; `arguments` is a JSON object that was not validated against the tool's schema yet."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """One ledger row: the tokens, dollars and seconds of one call of a model or tool.

    Attributes:
        name: tool or model ("orchestrator" for the policy itself).
        role: "orchestrator" | "tool" | "judge" | "user_simulator"; see TRAJECTORY_ROLES.
        prompt_tokens, cached_tokens, completion_tokens: tokens; `cached_tokens` is a part of `prompt_tokens`.
        cost_usd: dollars.
        seconds: seconds of work on the clock that rewards use (simulated where the world says so).
        price_list: id of the price list that was applied.
        estimated: the tokens are our own count, or a worst case, because the provider reported none.
    """

    name: str
    role: str = "tool"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0
    price_list: str = ""
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer of a tool.

    Attributes:
        text: the observation.
        usage: ledger rows of the call.
        is_error: the text is the tool's own error, which is an observation like any other.
        final: the answer with which the episode ends, from a terminal tool.
        refused: the call was not carried out (an unknown tool, bad arguments, no budget, an expert that wrote nothing
            to run): it does not count as a call of the tool. `usage` holds what was paid until then.
    """

    text: str
    usage: tuple[Usage, ...] = ()
    is_error: bool = False
    final: str | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class UserTurn:
    """A turn of a conversation's user.

    Attributes:
        text: their words; the policy reads them unless they end the conversation.
        done: the conversation is over: the user wrote a stop word, or was handed over to somebody else.
        usage: ledger rows of the model that plays the user, role "user_simulator".

    Raises:
        ValueError: a row has another role: the policy would pay for its user.
    """

    text: str
    done: bool = False
    usage: tuple[Usage, ...] = ()

    def __post_init__(self) -> None:
        if roles := {row.role for row in self.usage} - {USER_ROLE}:
            raise ValueError(f"The rows of a user have the role {USER_ROLE}, not {', '.join(sorted(roles))}.")


class InfrastructureError(Exception):
    """A tool, server or network failed through no fault of the policy: the sample is invalid, not wrong."""


class ReplayMiss(Exception):  # noqa: N818  named like the fact it states
    """A call that has to be replayed was never recorded: the run cannot go on without the network."""


class ReplayBroken(ReplayMiss):
    """The record can be read or written no more: the run cannot go on without paying for what it could not keep."""


class OutOfTime(Exception):  # noqa: N818  an event, no error
    """The run was told to stop and gives up the step under way, which did not end in time."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation of the policy and the environment's answer.

    Attributes:
        prompt_ids: ids appended to the sequence before sampling (turn 0: the whole prompt).
        sampled_ids: the very ids the engine sampled, stop id included.
        logprobs: the engine's log-probs of `sampled_ids` at the sampling temperature.
        weight_version: the oldest version of the weights that sampled a token of it.
        finish_reason: "stop" | "length" | "abort".
        text: decoded `sampled_ids` without the stop token, for logs.
        calls, results: parsed calls and the results in the same order.
        version_spans: (version, number of tokens) in order, where the weights changed while it was sampled; empty
            where `weight_version` sampled every token.
        heard: the reply of a conversation's user; None: no reply, or there is no user.
    """

    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int
    finish_reason: str
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    version_spans: tuple[tuple[int, int], ...] = ()
    heard: str | None = None

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """(version, number of tokens) for all sampled tokens."""
        return self.version_spans or ((self.weight_version, len(self.sampled_ids)),)

    def without_ids(self) -> "Turn":
        """Return the turn with counts of tokens and without the tokens: all that figures and transcripts need."""
        return replace(self, prompt_ids=(), sampled_ids=(), logprobs=(), version_spans=self.spans)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout of one task.

    Attributes:
        task: the question, menu and preference.
        group: index of the GRPO group within the step; `member`: index within the group.
        sequences: lists of turns; `history: keep` has one sequence, forks start a new one. Within a sequence the
            token ids are the concatenation of each turn's `prompt_ids` and `sampled_ids`.
        status: its end; `reason`: one sentence for every status but COMPLETED.
        answer: the final answer, None without one.
        solved: r_outcome of Eq. 1.
        ledger: every call's row; the cost is the sum over it, the latency is not (calls of a turn run side by side).
        criteria: the problem of each named criterion, "" where it is met; empty where the world has no criteria.
    """

    task: Task
    group: int
    member: int
    sequences: tuple[tuple[Turn, ...], ...]
    status: Status
    reason: str
    answer: str | None
    solved: bool
    ledger: tuple[Usage, ...]
    criteria: Mapping[str, str] = field(default_factory=dict)

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
