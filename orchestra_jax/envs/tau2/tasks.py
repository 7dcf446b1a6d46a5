"""The tasks of a domain: the user's wishes, the golden calls, and the criteria that count.

The rows are those of the package, or the original ones of `$ORCHESTRA_DATA/tau2`: those of the authors' repository,
which the leaderboard uses. There 12 tasks of the airline and 10 of the shop have other golden calls, three have other
facts, and 112 of the shop are scored by `NL_ASSERTION` in the place of COMMUNICATE.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra_jax.config.schema import ConfigError
from orchestra_jax.envs.tau2 import package
from orchestra_jax.types import ToolCall

WHEEL, ORIGINAL = "wheel", "original"
SOURCES = (WHEEL, ORIGINAL)
AGENT, USER = "assistant", "user"  # as the rows call them
UNLOCKED = "call_discoverable_agent_tool"  # calls a tool of the bank that the policy unlocked
TRAIN, TEST, BASE = "train", "test", "base"
_EVERY = 4  # one task of so many is held out of a domain without splits
_BASIS = ("DB", "COMMUNICATE")  # for a row that names none


@dataclass(frozen=True)
class Action:
    """A golden call.

    Attributes:
        who: AGENT or USER.
        only: the arguments that are compared if calls count; None: all of them.
    """

    who: str
    call: ToolCall
    only: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Assertion:
    """A question to the domain that must have this answer in the end."""

    who: str
    call: ToolCall
    value: bool


@dataclass(frozen=True)
class Tau2Scenario:
    """One task.

    Attributes:
        id: unique over all domains, such as "airline-3".
        domain: name of its domain.
        source: one of `SOURCES`.
        split: TRAIN or TEST.
        situation: the text that a simulated user is told, as the package writes it.
        opening: the first words of a scripted user: the situation, and what they know.
        basis: the criteria that count: DB, COMMUNICATE, ACTION, ENV_ASSERTION, NL_ASSERTION.
        actions: golden calls in order.
        facts: facts that the user must be told.
        assertions: questions to the domain, with their answers.
        claims: sentences about the conversation, for a judge.
        start: `initial_state` of the row.
    """

    id: str
    domain: str
    source: str
    split: str
    situation: str
    opening: str
    basis: frozenset[str]
    actions: tuple[Action, ...] = ()
    facts: tuple[str, ...] = ()
    assertions: tuple[Assertion, ...] = ()
    claims: tuple[str, ...] = ()
    start: Mapping[str, Any] | None = None

    def calls(self, who: str) -> Sequence[ToolCall]:
        """Return the golden calls of one side."""
        return [action.call for action in self.actions if action.who == who]

    @property
    def unlocked(self) -> frozenset[str]:
        """Names of the bank's unlocked tools that golden calls name."""
        return frozenset(
            str(call.arguments.get("agent_tool_name")) for call in self.calls(AGENT) if call.name == UNLOCKED
        )


def data_folder(domain: str, source: str, original: str | None) -> Path:
    """Return the folder of a domain's files.

    Args:
        original: folder of the original data.

    Raises:
        ConfigError: there is none.
    """
    if source == WHEEL:
        return package.needed() / "data" / "domains" / package.LAYOUTS[domain].data
    found = Path(original or "") / domain
    if original is None or not (found / "tasks.json").is_file():
        raise ConfigError(
            f"There is no original data of {domain} in {original}: set ORCHESTRA_DATA, or env.options.source={WHEEL}."
        )
    return found


def scenarios(domain: str, source: str, original: str | None = None) -> list[Tau2Scenario]:
    """Return the tasks of a domain's benchmark in their order.

    Raises:
        ConfigError: the files are not there, or hold something else.
    """
    place = data_folder(domain, source, original)
    try:
        rows = package.read(place, "tasks.json")
        if (place / "split_tasks.json").is_file():
            splits = package.read(place, "split_tasks.json")
            base, held_out = set(splits[BASE]), set(splits[TEST])
        else:
            names = [row["id"] for row in rows]
            base, held_out = set(names), set(names[::_EVERY])
        kind = package.load(package.needed(), "data_model.tasks", "UserScenario")
        return [
            _scenario(domain, source, TEST if row["id"] in held_out else TRAIN, row, kind)
            for row in rows
            if row["id"] in base
        ]
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"The tasks in {place} are none that we read: {type(error).__name__}: {error}.") from error


def _scenario(domain: str, source: str, split: str, row: Mapping[str, Any], kind: Any) -> Tau2Scenario:
    """Return one of the authors' tasks in our form; `kind` is their class of a user's situation."""
    asked, told = row["evaluation_criteria"], row["user_scenario"]
    return Tau2Scenario(
        id=f"{domain}-{row['id']}",
        domain=domain,
        source=source,
        split=split,
        situation=str(kind.model_validate(told)),
        opening=_opening(told["instructions"]),
        basis=frozenset(asked.get("reward_basis") or _BASIS),
        actions=tuple(
            Action(
                each.get("requestor") or AGENT,
                ToolCall(each["name"], each["arguments"]),
                None if each.get("compare_args") is None else tuple(each["compare_args"]),
            )
            for each in asked.get("actions") or ()
        ),
        facts=tuple(asked.get("communicate_info") or ()),
        assertions=tuple(
            Assertion(each["env_type"], ToolCall(each["func_name"], each["arguments"]), each.get("assert_value", True))
            for each in asked.get("env_assertions") or ()
        ),
        claims=tuple(asked.get("nl_assertions") or ()),
        start=row.get("initial_state"),
    )


def _opening(instructions: Mapping[str, Any] | str) -> str:
    """Return all of the situation as a note, so that a policy can work without asking."""
    if isinstance(instructions, str):
        return f"Please read my note.\n\n{instructions.strip()}"
    parts = {
        "Please read my note: it is about": instructions.get("reason_for_call"),
        "What I know": instructions.get("known_info"),
        "How I decide": instructions.get("task_instructions"),
    }
    return "\n\n".join(f"{head}: {text.strip()}" for head, text in parts.items() if text and text.strip())
