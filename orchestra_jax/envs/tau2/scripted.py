"""A user without a model, and the policy that knows the golden calls.

The user hands over a note with the whole situation, and afterwards:

- makes the user's golden calls, in order, each once the policy names it, and calls of one name one a turn. The policy
  names a call by all its words ("toggle_airplane_mode") or by those that tell it from others ("airplane mode"); a tool
  that the policy gave, by its whole name;
- looks up what they are asked about, if that takes no arguments ("status bar"), and tells what they did and saw;
- says yes, and that the note is all they know, `PATIENCE` times in a row; then, or after a hand-over, they leave.

So this is another, easier conversation than the benchmark's, in which a model plays the user; reports say so.
"""

import re
from collections.abc import Sequence

from orchestra_jax.envs.tau2.domain import Tau2Domain, Tau2Session
from orchestra_jax.envs.tau2.tasks import AGENT, USER, Tau2Scenario
from orchestra_jax.envs.users import STOPS
from orchestra_jax.tools.user_turn import UserTurn
from orchestra_jax.types import ToolCall, ToolResult

PATIENCE = 2
YES = "Yes, do it if your rules allow it. My note is all I know; tell me when you are done."
DONE = "Done."  # what the golden policy says at the end, with the facts
_STOP, _TRANSFER, _ = STOPS
_LOOKS = ("check_", "can_", "run_speed_test")
_COMMON = {"toggle", "check", "set", "run", "make", "can", "grant", "for"}
_SAME = {"restart": "reboot", "phone": "device", "permissions": "permission", "pay": "payment", "apps": "app"}
_GIVEN = "discoverable_tool_name"  # argument that names a tool which the policy gave


class ScriptedUser:
    """One user in one conversation."""

    def __init__(self, domain: Tau2Domain, scenario: Tau2Scenario, session: Tau2Session) -> None:
        self._session, self._left = session, list(scenario.calls(USER))
        self._looks = [
            ToolCall(spec.name, {})
            for spec in domain.specs[USER]
            if spec.name.startswith(_LOOKS) and not spec.parameters["required"]
        ]
        self._idle = 0

    def reply(self, text: str, handed_over: bool) -> UserTurn:
        """Make the user's calls, and return their words."""
        asked = set(_words(text))
        made, told = list[ToolCall](), list[str]()
        names = set[str]()
        while self._left and _name(self._left[0]) not in names and named(self._left[0], asked):
            names.add(_name(self._left[0]))
            self._do(self._left.pop(0), made, told)
        for look in self._looks:
            if named(look, asked) and look not in made:
                self._do(look, made, told)
        if told:
            self._idle = 0
            return UserTurn("\n".join([*told, "What next?"]))
        if handed_over:
            return UserTurn(_TRANSFER, done=True)
        self._idle += 1
        return UserTurn(YES) if self._idle <= PATIENCE else UserTurn(_STOP, done=True)

    def _do(self, call: ToolCall, made: list[ToolCall], told: list[str]) -> None:
        result = self._session.call(USER, call)
        told.append(f"{call.name}: {result.text}")
        if not result.is_error:
            made.append(call)


def named(call: ToolCall, asked: set[str]) -> bool:
    """Return whether a text of these words asks for a call of the user's."""
    given = _GIVEN in call.arguments
    return {word for word in _words(_name(call)) if given or word not in _COMMON} <= asked


def _name(call: ToolCall) -> str:
    """Return the name of what the user calls; a tool that the policy gave has its own name."""
    return str(call.arguments.get(_GIVEN, call.name))


def _words(text: str) -> Sequence[str]:
    found = re.findall(r"[a-z0-9]+", text.lower().replace("wi-fi", "wifi"))
    return [_SAME.get(word, word) for word in found]


def play(scenario: Tau2Scenario, observed: Sequence[ToolResult]) -> ToolCall | str:
    """Make the policy's golden calls, ask the user for theirs, and say the facts until the end."""
    plan: list[ToolCall | str] = [
        action.call if action.who == AGENT else f"Please use {_name(action.call)}." for action in scenario.actions
    ]
    return plan[len(observed)] if len(observed) < len(plan) else " ".join([DONE, *(f"{f}." for f in scenario.facts)])
