"""When a conversation solves its task: what counts for it, each reported and all of it needed.

    db             the content is what the golden calls leave; those that fail leave what they wrote until then
    communicate    every fact was said to the user, numbers by their value
    action         every golden call was made; each needs a call of its own
    env_assertion  the domain answers every question as it should
    errors         of any task: fewer than `max_errors` calls of the policy failed

The official scorer compares a fact as text, so that "10" is said by "2010", lets one call stand for several golden ones
and compares no argument of a hand-over; here those are compared that the task names. `NL_ASSERTION`, sentences about
the conversation, needs a judge (`claims`); without one it is left out, and the facts count instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestra_jax.envs.database.calls import missing_calls
from orchestra_jax.envs.database.facts import problem, unsaid
from orchestra_jax.envs.database.state import State, differing
from orchestra_jax.envs.tau2.tasks import AGENT, USER, Scenario
from orchestra_jax.envs.tau2.world import HAND_OVER, Desk, World
from orchestra_jax.types import ToolCall

CLAIMS = "NL_ASSERTION"


@dataclass
class Record:
    """What was done and said in an episode.

    Attributes:
        made: by side: the calls that did not fail.
        told: all that was said and called, for a judge.
        said: the policy's words to the user.
        errors: calls of the policy that failed.
    """

    made: dict[str, list[ToolCall]] = field(default_factory=lambda: {AGENT: [], USER: []})
    said: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    errors: int = 0


def judge(
    world: World,
    scenario: Scenario,
    golden: State,
    desk: Desk,
    record: Record,
    max_errors: int | None = None,
    untrue: Sequence[str] | None = None,
) -> dict[str, str]:
    """What is wrong by criterion, "" where it holds; the task is solved where nothing is.

    Args:
        golden: what the golden calls leave.
        untrue: the claims that a judge found to be so; None: nobody was asked.
    """
    found = dict[str, str]()
    if "DB" in scenario.basis:
        keys = differing(golden, desk.state)
        found["db"] = _listed("Not as it should be", [f"{table} {name}" for table, name in keys])
    if CLAIMS in scenario.basis and untrue is not None:
        found["nl_assertion"] = _listed("Not true", [repr(claim) for claim in untrue])
    if ({"COMMUNICATE"} if untrue is not None else {"COMMUNICATE", CLAIMS}) & scenario.basis:
        found["communicate"] = _listed("Not said", [repr(fact) for fact in unsaid(scenario.facts, record.said)])
    if "ACTION" in scenario.basis:
        found["action"] = _listed("Not called", [call.name for call in _missing(world, scenario, record)])
    if "ENV_ASSERTION" in scenario.basis:
        wrong = [each.call.name for each in scenario.assertions if not desk.holds(each)]
        found["env_assertion"] = _listed("Does not hold", wrong)
    if max_errors is not None:
        found["errors"] = f"{record.errors} calls failed." if record.errors >= max_errors else ""
    return found


def _missing(world: World, scenario: Scenario, record: Record) -> Sequence[ToolCall]:
    missing = list[ToolCall]()
    for who in (AGENT, USER):
        golden = [action for action in scenario.actions if action.who == who]
        only = [() if a.only is None and a.call.name == HAND_OVER else a.only for a in golden]
        specs = {spec.name: spec for spec in world.specs[who]}
        missing += missing_calls([action.call for action in golden], record.made[who], specs, only)
    return missing


def _listed(head: str, found: Sequence[str]) -> str:
    return f"{head}: {', '.join(found)}." if found else ""


@dataclass(frozen=True)
class Replay:
    """What the golden calls of a task come to.

    Attributes:
        state: what they leave.
        failed: a sentence for every one that the domain answered with an error.
        unusable: why nobody can be scored on the task; None: it can be used.
    """

    state: State
    failed: Sequence[str]
    unusable: str | None


def replay(world: World, scenario: Scenario) -> Replay:
    """Plays the golden calls. One that fails makes no task unusable: some users misremember what they ask for."""
    desk, record, failed = world.open(scenario.start), Record(said=list(scenario.facts)), list[str]()
    for number, action in enumerate(scenario.actions, start=1):
        result = desk.call(action.who, action.call)
        if result.is_error:
            failed.append(f"Golden call {number} ({action.call.name}) fails: {result.text}")
        else:
            record.made[action.who].append(action.call)
    wrong = [f"The fact {fact!r} says nothing." for fact in scenario.facts if problem(fact)]
    if not wrong:
        found: Mapping[str, str] = judge(world, scenario, desk.state, desk, record)
        wrong = [f"The golden calls do not solve it. {sentence}" for sentence in found.values() if sentence]
    if not (scenario.basis - {CLAIMS}):
        wrong.append("Only a judge could score it.")
    return Replay(desk.state, failed, wrong[0] if wrong else None)
