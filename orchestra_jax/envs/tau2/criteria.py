"""The criteria by which a conversation solves its task; each is reported, all that count for the task are needed.

    db             the content is what the golden calls leave; those that fail leave what they wrote until then
    communicate    every fact stands in the policy's words to the user, by the leaderboard's rule (`official_unsaid`)
    action         every golden call was asked for, by the leaderboard's rule (`official_missing`)
    env_assertion  the domain answers every question as it should
    errors         of any task: fewer than `max_errors` calls of the policy failed

`NL_ASSERTION`, sentences about the conversation, needs a judge (`claims`); without one it is left out, and the facts
count instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestra_jax.envs.database.facts import problem, unsaid
from orchestra_jax.envs.database.state import State, differing
from orchestra_jax.envs.tau2.domain import Tau2Domain, Tau2Session
from orchestra_jax.envs.tau2.tasks import Action, Tau2Scenario
from orchestra_jax.types import ToolCall

CLAIMS = "NL_ASSERTION"


@dataclass
class ConversationRecord:
    """Words of an episode.

    Attributes:
        told: all words and calls, for a judge.
        said: the policy's words to the user.
        errors: calls of the policy that failed.
    """

    said: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    errors: int = 0


def judge(
    scenario: Tau2Scenario,
    golden: State,
    session: Tau2Session,
    record: ConversationRecord,
    max_errors: int | None = None,
    untrue: Sequence[str] | None = None,
) -> dict[str, str]:
    """Return a sentence on the fault by criterion, or "" if it holds; the task is solved if all hold.

    Args:
        golden: the state that the golden calls leave.
        untrue: the claims that a judge found untrue; None: no judge was asked.
    """
    found = dict[str, str]()
    if "DB" in scenario.basis:
        keys = differing(golden, session.state)
        found["db"] = _listed("Not as it should be", [f"{table} {name}" for table, name in keys])
    if CLAIMS in scenario.basis and untrue is not None:
        found["nl_assertion"] = _listed("Not true", [repr(claim) for claim in untrue])
    if ({"COMMUNICATE"} if untrue is not None else {"COMMUNICATE", CLAIMS}) & scenario.basis:
        found["communicate"] = _listed("Not said", map(repr, official_unsaid(scenario.facts, record.said)))
    if "ACTION" in scenario.basis:
        missing = official_missing(scenario.actions, session.asked)
        found["action"] = _listed("Not called", [action.call.name for action in missing])
    if "ENV_ASSERTION" in scenario.basis:
        wrong = [each.call.name for each in scenario.assertions if not session.holds(each)]
        found["env_assertion"] = _listed("Does not hold", wrong)
    if max_errors is not None:
        found["errors"] = f"{record.errors} calls failed." if record.errors >= max_errors else ""
    return found


def official_unsaid(facts: Sequence[str], said: Sequence[str]) -> list[str]:
    """Return the facts that the leaderboard does not find in any text: it looks for a part of the text without commas.

    So "2010" says "10", and "$481.5" does not say "481.50".
    """
    return [fact for fact in facts if not any(fact.lower() in text.lower().replace(",", "") for text in said)]


def official_missing(actions: Sequence[Action], asked: Sequence[ToolCall]) -> list[Action]:
    """Return the golden calls that the leaderboard does not find among the calls of both sides.

    A call counts although it failed, and one call may stand for several golden ones. Where the task names no
    arguments, those of the call are compared: what it leaves out is not missed.
    """

    def stands(call: ToolCall, action: Action) -> bool:
        names = call.arguments.keys() if action.only is None else action.only
        mine, golden = (
            {k: v for k, v in each.items() if k in names} for each in (call.arguments, action.call.arguments)
        )
        return call.name == action.call.name and mine == golden

    return [action for action in actions if not any(stands(call, action) for call in asked)]


def stricter(faults: Mapping[str, str], scenario: Tau2Scenario, record: ConversationRecord) -> dict[str, str]:
    """Return the fault of a figure beside the score: where facts count, those that are not said by their value."""
    if not ("communicate" in faults and scenario.facts):
        return {}
    return {"communicate_by_value": _listed("Not said", map(repr, unsaid(scenario.facts, record.said)))}


def _listed(head: str, found: Iterable[str]) -> str:
    told = ", ".join(found)
    return f"{head}: {told}." if told else ""


@dataclass(frozen=True)
class GoldenReplay:
    """The result of a task's golden calls.

    Attributes:
        state: the content that they leave.
        failed: a sentence for every call that the domain answered with an error.
        unusable: why nobody can be scored on the task; None: it can be used.
    """

    state: State
    failed: Sequence[str]
    unusable: str | None


def replay(domain: Tau2Domain, scenario: Tau2Scenario) -> GoldenReplay:
    """Play the golden calls. One that fails makes no task unusable: some users misremember what they ask for."""
    session, record, failed = domain.open(scenario), ConversationRecord(said=list(scenario.facts)), list[str]()
    for number, action in enumerate(scenario.actions, start=1):
        result = session.call(action.who, action.call)
        if result.is_error:
            failed.append(f"Golden call {number} ({action.call.name}) fails: {result.text}")
    wrong = [f"The fact {fact!r} says nothing." for fact in scenario.facts if problem(fact)]
    if not wrong:
        found: Mapping[str, str] = judge(scenario, session.state, session, record)
        wrong = [f"The golden calls do not solve it. {sentence}" for sentence in found.values() if sentence]
    if not (scenario.basis - {CLAIMS}):
        wrong.append("Only a judge could score it.")
    return GoldenReplay(session.state, failed, wrong[0] if wrong else None)
